/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What is posted. A chain of work requests is read at entry, when it is as the program wrote it; the call's
 * return says whether all of it was taken, or what came before *bad_wr. The extended API builds a work
 * request by several calls, which count once wr_complete takes them.
 */
#ifndef OTELGPU_VERBS_POSTS_H
#define OTELGPU_VERBS_POSTS_H

#include "calls.h"
#include "counting.h"
#include "../lib/call_stacks.h"

/* Read by a function that reads so many and is called so often: the verifier looks at each loop once. */
#define CHAIN_STRIDE  128
#define CHAIN_STRIDES 128
#define ENTRIES	      32 /* of one work request: more than any device takes */

enum walk_purpose { WALK_COUNTS = 0, WALK_TIMES = 1, WALK_FORGETS = 2 };

/* What a call posts. */
struct sums {
	__u64 work_requests[VERBS_OPERATION_COUNT];
	__u64 bytes[VERBS_OPERATION_COUNT];
	__u64 signalled;
	__u64 inlined;
	__u64 uncounted;
};

/* Along a chain. */
struct walk {
	struct sums sums;
	struct posted_key key;
	__u64 next;
	__u64 stop; /* the first one that was not taken */
	__u64 time_ns;
	struct request request;
	struct scattered entries[ENTRIES];
	__u32 purpose;
	__u8 receives;
	__u8 signals_all;
	__u8 reserved[2];
};

/* A call of the data path that a thread is inside of. */
struct posting {
	struct open_call open;
	__u64 queue;
	__u64 first;
	__u64 bad; /* where the first one that was not taken will be */
	struct pair pair;
	__u32 api;
	__u32 tgid;
};

struct polling {
	struct open_call open;
	__u64 queue;
	__u64 context;
	__u64 completions;
	__u32 room;
	__u32 tgid;
	__u32 api;
	__u32 reserved;
};

struct hot {
	struct walk walk;
	struct posting posting;
	struct polling polling;
	__u32 posts_open; /* 0 or 1: none is made inside another */
	__u32 polls_open;
	__u32 posts; /* since a stack was taken */
	__u32 posts_reported;
};

/* The kernel frees it with the thread. */
struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct hot);
} hot_threads SEC(".maps");

static __always_inline struct hot *hot_thread(bool create)
{
	struct hot *hot = bpf_task_storage_get(&hot_threads, bpf_get_current_task_btf(), NULL,
					       create ? BPF_LOCAL_STORAGE_GET_F_CREATE : 0);

	if (create && !hot)
		count(COUNTER_THREAD_STATE_FAILED);
	return hot;
}

static __always_inline __u32 operation_of(__u32 opcode)
{
	switch (opcode) {
	case OPCODE_SEND:
	case OPCODE_SEND_IMMEDIATE:
	case OPCODE_SEND_INVALIDATE:
		return VERBS_SEND;
	case OPCODE_WRITE:
	case OPCODE_WRITE_IMMEDIATE:
		return VERBS_WRITE;
	case OPCODE_READ:
		return VERBS_READ;
	case OPCODE_COMPARE_AND_SWAP:
	case OPCODE_FETCH_AND_ADD:
	case OPCODE_ATOMIC_WRITE:
		return VERBS_ATOMIC;
	}
	return VERBS_OTHER;
}

/* -- Times ---------------------------------------------------------------------------------- */

static __always_inline void time_post(const struct posted_key *key, __u64 time_ns, __u64 bytes,
				      __u32 operation)
{
	struct posted *known = bpf_map_lookup_elem(&on_their_way, key);
	struct posted first = {
		.time_ns = time_ns,
		.bytes = bytes,
		.window = window,
		.outstanding = 1,
		.operation = (__u8)operation,
	};

	if (!known || known->window != first.window) {
		bpf_map_update_elem(&on_their_way, key, &first, BPF_ANY);
		return;
	}
	if (!known->time_ns) {
		known->ahead = known->outstanding;
		known->bytes = bytes;
		known->operation = (__u8)operation;
		known->time_ns = time_ns;
	}
	known->outstanding++;
}

static __always_inline void forget_post(const struct posted_key *key)
{
	struct posted *known = bpf_map_lookup_elem(&on_their_way, key);

	if (!known)
		return;
	if (known->outstanding <= 1)
		bpf_map_delete_elem(&on_their_way, key);
	else
		known->outstanding--;
}

/* -- Chains --------------------------------------------------------------------------------- */

/* Bytes of a list of entries. Of its own for the verifier, as the other functions here that are not static. */
__attribute__((noinline)) __u64 bytes_of(struct walk *walk, __u64 list, __u32 entries)
{
	__u64 bytes = 0;
	__u32 size;

	if (!walk || !list)
		return 0;
	if (entries > ENTRIES) {
		count_many(COUNTER_SCATTER_CUT, entries - ENTRIES);
		entries = ENTRIES;
	}
	size = entries * sizeof(walk->entries[0]);
	if (size > sizeof(walk->entries))
		return 0;
	if (!read_user(walk->entries, size, (void *)list))
		return 0;
	for (__u32 i = 0; i < ENTRIES; i++) {
		if (i >= entries)
			break;
		bytes += walk->entries[i].bytes;
	}
	return bytes;
}

/* The next work request of the chain; 0: there is no more of it to be read. */
__attribute__((noinline)) int read_request(struct walk *walk)
{
	struct posted_key key; /* Linux 6.1 refuses one in the memory of an argument */
	struct request *request;
	__u32 operation;
	bool signalled;
	__u64 bytes;

	if (!walk || !walk->next || walk->next == walk->stop)
		return 0;
	request = &walk->request;
	if (walk->receives) {
		if (!read_user(request, __builtin_offsetof(struct request, operation),
			       (void *)walk->next))
			return 0;
		operation = VERBS_RECEIVE;
		request->flags = 0;
	} else {
		if (!read_user(request, sizeof(*request), (void *)walk->next))
			return 0;
		operation = operation_of(request->operation);
	}
	signalled = !walk->receives && (walk->signals_all || request->flags & FLAG_SIGNALLED);
	walk->next = request->next;
	key = walk->key;
	key.id = request->id;
	if (walk->purpose == WALK_FORGETS) {
		if (signalled)
			forget_post(&key);
		return 1;
	}
	bytes = request->entries > 0 ? bytes_of(walk, request->list, request->entries) : 0;
	if (operation < VERBS_OPERATION_COUNT) {
		walk->sums.work_requests[operation]++;
		walk->sums.bytes[operation] += bytes;
	}
	walk->sums.signalled += signalled;
	walk->sums.inlined += !walk->receives && request->flags & FLAG_INLINE;
	if (signalled && walk->purpose == WALK_TIMES)
		time_post(&key, walk->time_ns, bytes, operation);
	return 1;
}

/* As many as are read in one go; 0: that was the end. */
__attribute__((noinline)) int read_requests(struct walk *walk)
{
	for (int i = 0; i < CHAIN_STRIDE; i++)
		if (!read_request(walk))
			return 0;
	return 1;
}

/* The same without looking at them. */
__attribute__((noinline)) int pass_requests(struct walk *walk)
{
	if (!walk)
		return 0;
	for (int i = 0; i < CHAIN_STRIDE; i++) {
		__u64 next = 0;

		if (!walk->next || walk->next == walk->stop)
			return 0;
		walk->sums.uncounted++;
		if (!read_user(&next, sizeof(next),
			       (void *)(walk->next + __builtin_offsetof(struct request, next))))
			return 0;
		walk->next = next;
	}
	return 1;
}

__attribute__((noinline)) int follow_chain(struct walk *walk)
{
	int more = 1;

	if (!walk)
		return 0;
	for (int i = 0; i < CHAIN_STRIDES && more; i++)
		more = read_requests(walk);
	for (int i = 0; i < CHAIN_STRIDES && more; i++)
		more = pass_requests(walk);
	return 0;
}

static __always_inline void begin_walk(struct walk *walk, const struct posting *posting,
				       enum walk_purpose purpose)
{
	__builtin_memset(&walk->sums, 0, sizeof(walk->sums));
	walk->key.queue_pair = posting->queue;
	walk->key.tgid = posting->tgid;
	walk->key.reserved = 0;
	walk->next = posting->first;
	walk->stop = 0;
	walk->purpose = purpose;
	walk->receives = posting->api != API_post_send;
}

static __always_inline void add_sums(struct verbs_counted *to, const struct sums *sums)
{
	for (int i = 0; i < VERBS_OPERATION_COUNT; i++) {
		add(&to->work_requests[i], sums->work_requests[i]);
		add(&to->bytes[i], sums->bytes[i]);
	}
	add(&to->signalled, sums->signalled);
	add(&to->inlined, sums->inlined);
	add(&to->uncounted, sums->uncounted);
}

/* -- The extended API ----------------------------------------------------------------------- */

/* What was built since wr_start. */
struct built {
	struct sums sums;
	__u64 id;	 /* of the last one */
	__u32 operation; /* its */
	__u32 number;
	__u8 timed; /* it is on its way */
	__u8 signals_all;
	__u8 reserved[6];
};

/* Queue pair -> its open batch. One that falls out is not counted. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, QUEUE_PAIRS);
	__type(key, struct address_key);
	__type(value, struct built);
} batches SEC(".maps");

static __always_inline void begin_batch(const struct address_key *key)
{
	struct verbs_counted *known;
	struct built batch = {};
	struct pair pair;

	if (!read_user(&pair, sizeof(pair), (void *)key->address))
		return;
	known = counted_of_pair(key->tgid, key->address, &pair);
	batch.number = pair.number;
	batch.signals_all = known && known->signals_all;
	bpf_map_update_elem(&batches, key, &batch, BPF_ANY);
}

static __always_inline __u32 operation_built(__u32 api)
{
	switch (api) {
	case API_wr_send:
	case API_wr_send_imm:
	case API_wr_send_inv:
		return VERBS_SEND;
	case API_wr_rdma_write:
	case API_wr_rdma_write_imm:
		return VERBS_WRITE;
	case API_wr_rdma_read:
		return VERBS_READ;
	case API_wr_atomic_cmp_swp:
	case API_wr_atomic_fetch_add:
		return VERBS_ATOMIC;
	}
	return VERBS_OTHER;
}

static __always_inline void build_request(struct built *batch, const struct address_key *key,
					  __u32 api)
{
	struct posted_key posted = { .queue_pair = key->address, .tgid = key->tgid };
	struct pair_words words;
	__u32 operation = operation_built(api);
	bool signalled;

	if (!read_user(&words, sizeof(words), (void *)(key->address + PAIR_WORDS)))
		return;
	signalled = batch->signals_all || words.flags & FLAG_SIGNALLED;
	batch->id = words.id;
	batch->operation = operation;
	batch->timed = signalled && window;
	batch->sums.work_requests[operation]++;
	batch->sums.signalled += signalled;
	if (!batch->timed)
		return;
	posted.id = words.id;
	time_post(&posted, bpf_ktime_get_ns(), 0, operation);
}

static __always_inline void give_bytes(struct built *batch, const struct address_key *key,
				       __u64 bytes, bool inlined)
{
	struct posted_key posted = { .queue_pair = key->address,
				     .id = batch->id,
				     .tgid = key->tgid };
	struct posted *known;

	if (batch->operation < VERBS_OPERATION_COUNT)
		batch->sums.bytes[batch->operation] += bytes;
	batch->sums.inlined += inlined;
	if (!batch->timed)
		return;
	known = bpf_map_lookup_elem(&on_their_way, &posted);
	if (known && known->outstanding == known->ahead + 1)
		known->bytes = bytes;
}

static __always_inline void build(struct pt_regs *regs)
{
	__u32 api = (__u32)bpf_get_attach_cookie(regs);
	struct verbs_calls *called;
	struct address_key key;
	struct identity who;
	struct built *batch;
	struct hot *hot;

	if (!in_scope(&who))
		return;
	called = calls_of(who.tgid);
	if (called)
		add(&called->posts, 1);
	key = address_of(who.tgid, ARGUMENT_1(regs));
	if (api == API_wr_start) {
		begin_batch(&key);
		return;
	}
	batch = bpf_map_lookup_elem(&batches, &key);
	if (!batch)
		return; /* begun while it was not observed: none of it counts */
	switch (api) {
	case API_wr_abort:
		bpf_map_delete_elem(&batches, &key);
		break;
	case API_wr_set_sge:
		give_bytes(batch, &key, (__u32)ARGUMENT_4(regs), false);
		break;
	case API_wr_set_inline_data:
		give_bytes(batch, &key, ARGUMENT_3(regs), true);
		break;
	case API_wr_set_sge_list:
	case API_wr_set_inline_data_list:
		hot = hot_thread(true);
		if (hot)
			give_bytes(batch, &key,
				   bytes_of(&hot->walk, ARGUMENT_3(regs), (__u32)ARGUMENT_2(regs)),
				   api == API_wr_set_inline_data_list);
		break;
	default:
		build_request(batch, &key, api);
	}
}

static __always_inline int finish_batch(const struct posting *posting, bool failed)
{
	struct address_key key = address_of(posting->tgid, posting->queue);
	struct verbs_counted_key of = { .queue_pair = posting->queue, .tgid = posting->tgid };
	struct built *batch = bpf_map_lookup_elem(&batches, &key);
	struct verbs_counted *to;

	if (!batch)
		return 0;
	of.number = batch->number;
	to = counted_of(&of);
	if (to) {
		add(&to->posts, 1);
		if (failed)
			add(&to->posts_failed, 1); /* all or nothing */
		else
			add_sums(to, &batch->sums);
	}
	bpf_map_delete_elem(&batches, &key);
	return 0;
}

/* -- post_send, post_recv, post_srq_recv ---------------------------------------------------- */

static __always_inline struct verbs_counted *counted_of_posting(const struct posting *posting)
{
	struct verbs_counted_key key = { .queue_pair = posting->queue, .tgid = posting->tgid };

	if (posting->api == API_post_srq_recv)
		return counted_of(&key);
	return counted_of_pair(posting->tgid, posting->queue, &posting->pair);
}

/* The part of the chain before *bad_wr was taken, in most cases nothing. */
static __always_inline void settle_failure(struct hot *hot, struct verbs_counted *to)
{
	struct walk *walk = &hot->walk;
	bool timed = walk->purpose == WALK_TIMES;
	__u64 bad = 0;

	add(&to->posts_failed, 1);
	if (!read_user(&bad, sizeof(bad), (void *)hot->posting.bad))
		bad = hot->posting.first;
	begin_walk(walk, &hot->posting, WALK_COUNTS);
	walk->stop = bad;
	if (bad != hot->posting.first)
		follow_chain(walk);
	if (!timed || walk->receives)
		return;
	walk->purpose = WALK_FORGETS;
	walk->next = bad;
	walk->stop = 0;
	follow_chain(walk);
}

static __always_inline int finish_post(struct hot *hot, bool failed)
{
	struct verbs_counted *to = counted_of_posting(&hot->posting);

	if (!to)
		return 0;
	add(&to->posts, 1);
	if (failed)
		settle_failure(hot, to);
	add_sums(to, &hot->walk.sums);
	return 0;
}

/* Of every so many posts of a thread the stack is taken. */
const volatile __u32 stack_posts_every = 16;

static __always_inline int ask_for_stack_of_post(struct hot *hot, __u32 api, __u64 bytes)
{
	__u32 posts = ++hot->posts;

	if (hot->posts_reported && posts < stack_posts_every)
		return 0;
	hot->posts = 0;
	hot->posts_reported = 1;
	return ask_for_stack_of_many(CALL_FAMILY, api, bpf_ktime_get_ns(), posts, bytes);
}

static __always_inline __u64 bytes_posted(const struct sums *sums)
{
	__u64 bytes = 0;

	for (int i = 0; i < VERBS_OPERATION_COUNT; i++)
		bytes += sums->bytes[i];
	return bytes;
}

static __always_inline int ask_for_stack_of_batch(struct hot *hot)
{
	struct address_key key = address_of(hot->posting.tgid, hot->posting.queue);
	struct built *batch = bpf_map_lookup_elem(&batches, &key);

	return ask_for_stack_of_post(hot, API_wr_complete, batch ? bytes_posted(&batch->sums) : 0);
}

static __always_inline int enter_post(struct pt_regs *regs, bool session)
{
	__u64 cookie = bpf_get_attach_cookie(regs);
	bool returns = returns_of(cookie);
	__u32 api = (__u32)cookie;
	struct verbs_counted *known;
	struct verbs_calls *called;
	struct open_calls calls;
	struct posting *posting;
	struct identity who;
	struct hot *hot;

	(void)session;
	if (!in_scope(&who))
		return RETURN_IGNORED;
	hot = hot_thread(true);
	if (!hot)
		return RETURN_IGNORED;
	called = calls_of(who.tgid);
	if (called)
		add(&called->posts, 1);
	posting = &hot->posting;
	calls = OPEN_CALLS(posting, 1, hot->posts_open);
	if (innermost_call(calls, regs->sp, api, NULL))
		return RETURN_IGNORED;
	posting->queue = ARGUMENT_1(regs);
	posting->first = ARGUMENT_2(regs);
	posting->bad = ARGUMENT_3(regs);
	posting->api = api;
	posting->tgid = who.tgid;
	hot->walk.signals_all = 0;
	if (api == API_wr_complete) {
		int asked = wants_stack(STACK_POSTS) ? ask_for_stack_of_batch(hot) : 0;

		if (returns)
			open_call(calls, regs, api, true);
		else
			finish_batch(posting, false);
		return asked;
	}
	if (api != API_post_srq_recv) {
		if (!read_user(&posting->pair, sizeof(posting->pair), (void *)posting->queue))
			return RETURN_IGNORED;
		known = counted_of_pair(who.tgid, posting->queue, &posting->pair);
		if (known)
			hot->walk.signals_all = known->signals_all;
	}
	begin_walk(&hot->walk, posting, window && api == API_post_send ? WALK_TIMES : WALK_COUNTS);
	hot->walk.time_ns = bpf_ktime_get_ns();
	follow_chain(&hot->walk);
	if (returns)
		open_call(calls, regs, api, true);
	else
		finish_post(hot, false);
	if (wants_stack(STACK_POSTS))
		return ask_for_stack_of_post(hot, api, bytes_posted(&hot->walk.sums));
	return 0;
}

static __always_inline int leave_post(struct pt_regs *regs)
{
	__u32 api = (__u32)bpf_get_attach_cookie(regs);
	struct hot *hot = hot_thread(false);
	bool failed = (__s32)RESULT(regs) != 0;

	if (!hot || !close_call(OPEN_CALLS(&hot->posting, 1, hot->posts_open), regs, api, false))
		return 0; /* out of scope, or entered before it was observed */
	if (hot->posting.api == API_wr_complete)
		return finish_batch(&hot->posting, failed);
	return finish_post(hot, failed);
}

#endif
