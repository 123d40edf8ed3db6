/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The control path: calls that make, change and end things, each said when it returns. */
#ifndef OTELGPU_VERBS_CONTROL_H
#define OTELGPU_VERBS_CONTROL_H

#include "calls.h"
#include "counting.h"

#define CALLS_NESTED 4 /* rdma_create_qp, rdma_create_qp_ex, ibv_create_qp, the provider's */
#define ARGUMENTS    6

/* A call that a thread is inside of. */
struct call {
	struct open_call open;
	__u64 time_ns;
	__u64 arguments[ARGUMENTS];
	__u64 context; /* of what the call ends: it cannot be read afterwards */
	__u64 address;
	__u64 bytes;
	__u32 number;
	__u8 shape;
	__u8 reserved[3];
};

/*
 * What is read of the process. Not on the stack, of which a program and all functions that it is in
 * share 512 bytes.
 */
struct seen {
	struct pair pair;
	struct pair_attributes attributes;
	struct pair_change change;
	struct region region;
	struct async_event event;
	struct managed_event managed;
};

struct thread {
	struct call calls[CALLS_NESTED]; /* innermost last */
	struct seen seen;
	__u32 depth;
	__u32 reserved;
};

#include "../lib/thread_state.h"

/* Context -> 1: its provider was reported. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, PROCESSES);
	__type(key, struct address_key);
	__type(value, __u8);
} contexts SEC(".maps");

static const __u8 shapes[API_CALLS] = { VERBS_CALLS(SHAPE_OF) };

static __always_inline __u64 word_at(__u64 address)
{
	__u64 word = 0;

	if (address)
		read_user(&word, sizeof(word), (void *)address);
	return word;
}

/* -- Providers ------------------------------------------------------------------------------ */

static __always_inline struct verbs_provider *begin_provider(struct identity who, __u64 object,
							     __u32 first_api, __u32 table)
{
	__u64 now_ns = bpf_ktime_get_ns();
	struct verbs_provider *record =
		EMIT_BEGIN(verbs_provider, VERBS_PROVIDER, who, now_ns, now_ns);

	if (record) {
		record->object = object;
		record->first_api = (__u16)first_api;
		record->table = (__u8)table;
	}
	return record;
}

/* Until user space has seen it, what the process posts is missed. */
static __always_inline void submit_provider(struct verbs_provider *record)
{
	count(COUNTER_SUBMITTED);
	bpf_ringbuf_submit(record, BPF_RB_FORCE_WAKEUP);
}

static __always_inline void read_context_functions(struct identity who, __u64 context)
{
	struct verbs_provider *record =
		begin_provider(who, context, API_post_send, VERBS_TABLE_CONTEXT);

	if (record) {
		record->functions[0] = word_at(context + CONTEXT_POST_SEND);
		record->functions[1] = word_at(context + CONTEXT_POST_RECV);
		record->functions[2] = word_at(context + CONTEXT_POLL_CQ);
		record->functions[3] = word_at(context + CONTEXT_POST_SRQ_RECV);
		submit_provider(record);
	}
	if (word_at(context + CONTEXT_ABI_COMPAT) != CONTEXT_IS_EXTENDED)
		return;
	record = begin_provider(who, context, API_create_qp_ex, VERBS_TABLE_CONTEXT);
	if (record) {
		record->functions[0] = word_at(context + CONTEXT_CREATE_QP_EX);
		record->functions[1] = word_at(context + CONTEXT_CREATE_CQ_EX);
		submit_provider(record);
	}
}

/* Functions that lie in one structure, side by side. A plain queue pair ends before them: user space judges. */
static __always_inline void read_functions(struct identity who, __u64 object, __u64 offset,
					   __u32 first_api, __u32 bytes, __u32 table)
{
	struct verbs_provider *record = begin_provider(who, object, first_api, table);

	if (!record)
		return;
	bpf_probe_read_user(record->functions, bytes, (void *)(object + offset));
	submit_provider(record);
}

static __always_inline void learn_context(struct identity who, __u64 context, bool anew)
{
	struct address_key key = address_of(who.tgid, context);
	__u8 one = 1;

	if (!context || (!anew && bpf_map_lookup_elem(&contexts, &key)))
		return;
	if (bpf_map_update_elem(&contexts, &key, &one, BPF_ANY))
		count(COUNTER_CONTEXT_TABLE_FULL);
	read_context_functions(who, context);
}

static __always_inline void fill_device(char *into, __u64 context)
{
	__u64 device = context ? word_at(context + CONTEXT_DEVICE) : 0;

	if (device &&
	    bpf_probe_read_user_str(into, VERBS_DEVICE_BYTES, (void *)(device + DEVICE_NAME)) < 0)
		count(COUNTER_ARGUMENT_UNREADABLE);
}

/* -- Queue pairs ---------------------------------------------------------------------------- */

static const struct verbs_queue_pair unknown_pair = {};

/* What is known of a queue pair, from its structure if it was never reported of. */
static __always_inline struct verbs_queue_pair *known_pair(struct pair *pair, struct identity who,
							   __u64 address)
{
	struct address_key key = address_of(who.tgid, address);
	struct verbs_queue_pair *known;

	if (!address || !read_user(pair, sizeof(*pair), (void *)address))
		return NULL;
	known = bpf_map_lookup_elem(&queue_pairs, &key);
	if (!known || known->number != pair->number) {
		bpf_map_update_elem(&queue_pairs, &key, &unknown_pair, BPF_ANY);
		known = bpf_map_lookup_elem(&queue_pairs, &key);
		if (!known) {
			count(COUNTER_QUEUE_PAIR_TABLE_FULL);
			return NULL;
		}
		known->queue_pair = address;
		known->context = pair->context;
		known->send_queue = pair->send_queue;
		known->receive_queue = pair->receive_queue;
		known->number = pair->number;
		known->type = (__u8)pair->type;
		fill_device(known->device, pair->context);
		read_functions(who, address, PAIR_FUNCTIONS, API_wr_atomic_cmp_swp,
			       sizeof(__u64) * VERBS_FUNCTIONS, VERBS_TABLE_QUEUE_PAIR);
	}
	known->state = (__u8)pair->state;
	counted_of_pair(who.tgid, address, pair);
	return known;
}

static __always_inline void report_pair(struct verbs_queue_pair *known, const struct call *call,
					struct identity who, __s32 status, __u64 end_ns)
{
	fill_head(&known->head, VERBS_QUEUE_PAIR, who, call->time_ns, end_ns);
	known->head.returned = end_ns != call->time_ns;
	known->api = (__u16)call->open.function;
	known->status = status;
	known->attributes = call->shape == SHAPE_PAIR_MODIFIED ? (__u32)call->arguments[2] : 0;
	output(known, sizeof(*known));
}

static __always_inline void made_pair(struct seen *seen, const struct call *call,
				      struct identity who, __u64 address, __u64 end_ns)
{
	struct verbs_counted_key key = { .queue_pair = address, .tgid = who.tgid };
	struct pair_attributes *attributes = &seen->attributes;
	struct verbs_queue_pair *known;
	struct verbs_counted *to;

	known = known_pair(&seen->pair, who, address);
	if (!known)
		return;
	learn_context(who, known->context, false);
	if (call->shape == SHAPE_PAIR_MADE &&
	    read_user(attributes, sizeof(*attributes), (void *)call->arguments[1])) {
		key.number = known->number;
		to = counted_of(&key);
		if (to) {
			to->signals_all = attributes->signals_all != 0;
			to->destroyed = 0;
		}
	}
	report_pair(known, call, who, 0, end_ns);
}

static __always_inline void modified_pair(struct seen *seen, const struct call *call,
					  struct identity who, __s32 status, __u64 end_ns)
{
	struct verbs_queue_pair *known = known_pair(&seen->pair, who, call->arguments[0]);
	__u32 mask = (__u32)call->arguments[2];
	struct pair_change *change = &seen->change;

	if (!known)
		return;
	learn_context(who, known->context, false);
	if (!status && read_user(change, sizeof(*change), (void *)call->arguments[1])) {
		if (mask & CHANGES_PORT)
			known->port = change->port;
		if (mask & CHANGES_PEER)
			known->peer_number = change->peer_number;
		if (mask & CHANGES_PATH) {
			known->peer_lid = change->peer_lid;
			known->has_route = change->has_route;
			known->local_gid_index = change->local_gid_index;
			if (change->has_route)
				__builtin_memcpy(known->peer_gid, change->peer_gid, 16);
		}
		if (mask & CHANGES_PATH_MTU)
			known->path_mtu = (__u8)change->path_mtu;
		if (mask & CHANGES_TIMEOUT)
			known->timeout = change->timeout;
		if (mask & CHANGES_RETRIES)
			known->retries = change->retries;
		if (mask & CHANGES_RNR_RETRIES)
			known->rnr_retries = change->rnr_retries;
	}
	report_pair(known, call, who, status, end_ns);
}

/* Its memory is freed: what is reported is what was known. */
static __always_inline void destroyed_pair(const struct call *call, struct identity who,
					   __s32 status, __u64 end_ns)
{
	struct address_key key = address_of(who.tgid, call->arguments[0]);
	struct verbs_counted_key of = {
		.queue_pair = call->arguments[0],
		.tgid = who.tgid,
		.number = call->number,
	};
	struct number_key number = {
		.context = call->context,
		.tgid = who.tgid,
		.number = call->number,
	};
	struct verbs_queue_pair *known = bpf_map_lookup_elem(&queue_pairs, &key);
	struct verbs_counted *to;

	if (!known)
		return;
	known->destroyed = !status;
	report_pair(known, call, who, status, end_ns);
	if (status)
		return;
	to = bpf_map_lookup_elem(&counted, &of);
	if (to)
		to->destroyed = 1;
	bpf_map_delete_elem(&queue_pairs, &key);
	bpf_map_delete_elem(&numbers, &number);
}

/* -- Everything else ------------------------------------------------------------------------- */

static __always_inline void report_region(const struct call *call, struct identity who,
					  __u64 region, __u64 context, __s32 status, __u64 end_ns)
{
	const __u64 *arguments = call->arguments;
	struct verbs_region *record =
		EMIT_BEGIN(verbs_region, VERBS_REGION, who, call->time_ns, end_ns);

	if (!record)
		return;
	record->head.returned = end_ns != call->time_ns;
	record->region = region;
	record->context = context;
	record->status = status;
	record->api = (__u16)call->open.function;
	record->bytes = arguments[2];
	switch (call->shape) {
	case SHAPE_REGION_MADE:
		record->address = arguments[1];
		record->access = (__u32)arguments[3];
		break;
	case SHAPE_REGION_MADE_AT:
		record->address = arguments[1];
		record->access = (__u32)arguments[4];
		break;
	case SHAPE_REGION_DMABUF:
		record->address = arguments[3];
		record->access = (__u32)arguments[5];
		record->dmabuf = 1;
		break;
	default:
		record->address = call->address;
		record->bytes = call->bytes;
		record->removed = 1;
	}
	fill_device(record->device, context);
	submit(record);
}

static __always_inline void report_object(const struct call *call, struct identity who,
					  __u64 object, __u64 context, __u64 detail, __s32 status,
					  __u64 end_ns)
{
	struct verbs_object *record =
		EMIT_BEGIN(verbs_object, VERBS_OBJECT, who, call->time_ns, end_ns);

	if (!record)
		return;
	record->head.returned = end_ns != call->time_ns;
	record->object = object;
	record->context = context;
	record->detail = detail;
	record->status = status;
	record->api = (__u16)call->open.function;
	record->removed = call->shape == SHAPE_ENDED || call->shape == SHAPE_CONTEXT_CLOSED;
	if (call->shape != SHAPE_CONTEXT_CLOSED) /* which frees the name too */
		fill_device(record->device, context);
	submit(record);
}

/* enum ibv_event_type: those of queue pairs, as the element says then. */
#define PAIR_EVENTS  (1 << 1 | 1 << 2 | 1 << 3 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 16)
#define OTHER_EVENTS (1 << 0 | 1 << 14 | 1 << 15 | 1 << 19) /* of queues, by their addresses too */

static __always_inline void report_event(struct seen *seen, const struct call *call,
					 struct identity who, __s32 status, __u64 end_ns)
{
	struct managed_event *managed = &seen->managed;
	struct async_event *event = &seen->event;
	struct verbs_event *record;
	__u64 place;

	record = EMIT_BEGIN(verbs_event, VERBS_EVENT, who, call->time_ns, end_ns);
	if (!record)
		return;
	record->head.returned = 1;
	record->api = (__u16)call->open.function;
	record->status = status;
	if (status) {
		submit(record);
		return;
	}
	if (call->shape == SHAPE_EVENT_COMPLETION) {
		record->object = word_at(call->arguments[1]);
		record->context = word_at(record->object);
	} else if (call->shape == SHAPE_EVENT_ASYNC) {
		record->context = call->arguments[0];
		if (read_user(event, sizeof(*event), (void *)call->arguments[1])) {
			record->event = event->type;
			if (event->type < 32 && PAIR_EVENTS >> event->type & 1) {
				record->object = event->element;
				read_user(&record->number, sizeof(record->number),
					  (void *)(event->element +
						   __builtin_offsetof(struct pair, number)));
			} else if (event->type < 32 && OTHER_EVENTS >> event->type & 1) {
				record->object = event->element;
			} else {
				record->number = (__u32)event->element;
			}
		}
	} else {
		place = word_at(call->arguments[1]);
		if (place && read_user(managed, sizeof(*managed), (void *)place)) {
			record->object = managed->id;
			record->event = managed->type;
			record->status = managed->status;
			record->context = word_at(managed->id + MANAGED_CONTEXT);
		}
	}
	fill_device(record->device, record->context);
	submit(record);
}

/* -- Entry and return ------------------------------------------------------------------------ */

/* What both calls make is the same thing. */
static __always_inline __u32 group_of(__u8 shape)
{
	switch (shape) {
	case SHAPE_PAIR_MADE:
	case SHAPE_PAIR_MADE_BY_ID:
		return SHAPE_PAIR_MADE;
	case SHAPE_REGION_MADE:
	case SHAPE_REGION_MADE_AT:
	case SHAPE_REGION_DMABUF:
		return SHAPE_REGION_MADE;
	}
	return shape;
}

/* A call inside another one (lib/calls.h) that makes the same. */
static __always_inline bool is_part_of(const struct call *outer, __u8 shape)
{
	return outer && group_of(outer->shape) == group_of(shape);
}

/* What cannot be read once the call has ended it. */
static __always_inline void read_before(struct seen *seen, struct call *call)
{
	struct region *region = &seen->region;
	struct pair *pair = &seen->pair;

	if (call->shape == SHAPE_PAIR_DESTROYED &&
	    read_user(pair, sizeof(*pair), (void *)call->arguments[0])) {
		call->context = pair->context;
		call->number = pair->number;
	} else if (call->shape == SHAPE_REGION_ENDED &&
		   read_user(region, sizeof(*region), (void *)call->arguments[0])) {
		call->context = region->context;
		call->address = region->address;
		call->bytes = region->bytes;
	} else if (call->shape == SHAPE_ENDED) {
		call->context = word_at(call->arguments[0]);
	}
}

/* A call that has returned; where only entries are probed, one that reports at its entry what it will do. */
__attribute__((noinline)) int report_call(const struct call *call, struct seen *seen, __u64 result,
					  __u64 end_ns)
{
	struct identity who = current_identity();
	__u64 made = result, context;
	__s32 status = (__s32)result;

	if (!call || !seen)
		return 0;
	switch (call->shape) {
	case SHAPE_CONTEXT_OPENED:
		learn_context(who, made, true);
		report_object(call, who, made, made, 0, made ? 0 : -1, end_ns);
		return 0;
	case SHAPE_CONTEXT_CLOSED:
		context = call->arguments[0];
		report_object(call, who, context, context, 0, status, end_ns);
		return 0;
	case SHAPE_MADE_IN_CONTEXT:
		context = call->arguments[0];
		learn_context(who, context, false);
		report_object(call, who, made, context, (__u32)call->arguments[1], made ? 0 : -1,
			      end_ns);
		return 0;
	case SHAPE_MADE_IN_DOMAIN:
		context = word_at(call->arguments[0]);
		learn_context(who, context, false);
		report_object(call, who, made, context, 0, made ? 0 : -1, end_ns);
		return 0;
	case SHAPE_ENDED:
		learn_context(who, call->context, false);
		report_object(call, who, call->arguments[0], call->context, 0, status, end_ns);
		return 0;
	case SHAPE_PAIR_MADE:
		if (made)
			made_pair(seen, call, who, made, end_ns);
		return 0;
	case SHAPE_PAIR_MADE_BY_ID:
		if (!status)
			made_pair(seen, call, who, word_at(call->arguments[0] + MANAGED_PAIR),
				  end_ns);
		return 0;
	case SHAPE_PAIR_MODIFIED:
		modified_pair(seen, call, who, status, end_ns);
		return 0;
	case SHAPE_PAIR_EXTENDED:
		if (made)
			known_pair(&seen->pair, who, made);
		return 0;
	case SHAPE_PAIR_DESTROYED:
		destroyed_pair(call, who, status, end_ns);
		return 0;
	case SHAPE_REGION_MADE:
	case SHAPE_REGION_MADE_AT:
	case SHAPE_REGION_DMABUF:
		context = word_at(call->arguments[0]);
		learn_context(who, context, false);
		report_region(call, who, made, context, made ? 0 : -1, end_ns);
		return 0;
	case SHAPE_REGION_ENDED:
		learn_context(who, call->context, false);
		report_region(call, who, call->arguments[0], call->context, status, end_ns);
		return 0;
	case SHAPE_EVENT_COMPLETION:
	case SHAPE_EVENT_ASYNC:
	case SHAPE_EVENT_MANAGER:
		if (call->shape == SHAPE_EVENT_ASYNC)
			learn_context(who, call->arguments[0], false);
		report_event(seen, call, who, status, end_ns);
		return 0;
	case SHAPE_MANAGED:
		context = word_at(call->arguments[0] + MANAGED_CONTEXT);
		report_object(call, who, word_at(call->arguments[0] + MANAGED_PAIR), context,
			      call->arguments[0],
			      call->open.function == API_rdma_destroy_qp ? 0 : status, end_ns);
		return 0;
	case SHAPE_QUEUE_MADE:
		if (!made)
			return 0;
		read_functions(who, made, QUEUE_FUNCTIONS, API_start_poll, 2 * sizeof(__u64),
			       VERBS_TABLE_COMPLETION_QUEUE);
		report_object(call, who, made, call->arguments[0], word_at(call->arguments[1]), 0,
			      end_ns);
	}
	return 0;
}

/* Those of which something is known before they return. */
#define REPORTED_AT_ENTRY                                                          \
	(1 << SHAPE_CONTEXT_CLOSED | 1 << SHAPE_ENDED | 1 << SHAPE_PAIR_MODIFIED | \
	 1 << SHAPE_PAIR_DESTROYED | 1 << SHAPE_REGION_ENDED | 1 << SHAPE_MANAGED)

static __always_inline int enter_call(struct pt_regs *regs, bool session)
{
	__u64 cookie = bpf_get_attach_cookie(regs);
	bool returns = returns_of(cookie);
	__u32 api = (__u32)cookie;
	struct open_calls calls;
	struct thread *thread;
	struct identity who;
	struct call *call;
	__u8 shape;

	(void)session;
	if (!in_scope(&who) || api >= API_CALLS)
		return RETURN_IGNORED;
	thread = this_thread(true);
	if (!thread)
		return RETURN_IGNORED;
	shape = shapes[api];
	calls = OPEN_CALLS(thread->calls, CALLS_NESTED, thread->depth);
	if (is_part_of(innermost_call(calls, regs->sp, api, NULL), shape))
		return RETURN_IGNORED;
	call = open_call(calls, regs, api, returns);
	if (!call)
		return RETURN_IGNORED;
	call->shape = shape;
	call->context = 0;
	call->address = 0;
	call->bytes = 0;
	call->number = 0;
	call->arguments[0] = ARGUMENT_1(regs);
	call->arguments[1] = ARGUMENT_2(regs);
	call->arguments[2] = ARGUMENT_3(regs);
	call->arguments[3] = ARGUMENT_4(regs);
	call->arguments[4] = ARGUMENT_5(regs);
	call->arguments[5] = ARGUMENT_6(regs);
	read_before(&thread->seen, call);
	call->time_ns = bpf_ktime_get_ns();
	if (returns)
		return RETURN_WANTED;
	if (REPORTED_AT_ENTRY >> shape & 1)
		report_call(call, &thread->seen, 0, call->time_ns);
	return RETURN_IGNORED;
}

static __always_inline int leave_call(struct pt_regs *regs)
{
	__u64 end_ns = bpf_ktime_get_ns();
	__u32 api = (__u32)bpf_get_attach_cookie(regs);
	struct thread *thread = this_thread(false);
	struct call *call;

	if (!thread)
		return 0;
	call = close_call(OPEN_CALLS(thread->calls, CALLS_NESTED, thread->depth), regs, api, true);
	return call ? report_call(call, &thread->seen, RESULT(regs), end_ns) : 0;
}

#endif
