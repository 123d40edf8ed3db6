/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What completed, as the program polls it: most polls find nothing, which costs them the trap all the same. */
#ifndef OTELGPU_VERBS_POLLS_H
#define OTELGPU_VERBS_POLLS_H

#include "posts.h"

#define POLLED 256 /* completions of one call */

static __always_inline void report_transfer(const struct posted_key *key,
					    const struct posted *posted,
					    const struct completion *done, __u64 now_ns)
{
	struct identity who = current_identity();
	struct verbs_transfer *record;

	record = EMIT_BEGIN(verbs_transfer, VERBS_TRANSFER, who, posted->time_ns, now_ns);
	if (!record)
		return;
	record->head.returned = 1;
	record->queue_pair = key->queue_pair;
	record->id = key->id;
	record->bytes = posted->bytes;
	record->number = done->number;
	record->vendor_error = done->vendor_error;
	record->status = (__u16)done->status;
	record->operation = posted->operation;
	submit(record);
}

/* A completion of a send queue. One whose post was not seen shows that others on their way may be unseen too. */
static __always_inline void match_post(struct verbs_counted *to, const struct posted_key *key,
				       const struct completion *done, __u64 now_ns)
{
	struct posted spoilt = { .window = window, .outstanding = 1, .ahead = ~0U };
	struct posted *known = bpf_map_lookup_elem(&on_their_way, key);

	if (!window)
		return;
	if (!known || known->window != spoilt.window) {
		bpf_map_update_elem(&on_their_way, key, &spoilt, BPF_ANY);
		return;
	}
	if (known->ahead == ~0U)
		return;
	if (known->time_ns && !known->ahead) {
		__u64 took = now_ns - known->time_ns;

		if (!done->status) {
			__u32 bucket = logarithm(took);

			if (bucket < VERBS_LATENCIES)
				add(&to->latencies[bucket], 1);
			add(&to->latency_sum_ns, took);
		}
		if (transfers)
			report_transfer(key, known, done, now_ns);
		known->time_ns = 0;
	} else if (known->time_ns) {
		known->ahead--;
	}
	if (known->outstanding <= 1)
		bpf_map_delete_elem(&on_their_way, key);
	else
		known->outstanding--;
}

static __always_inline void count_completion(const struct verbs_counted_key *key,
					     const struct completion *done, bool may_be_sent)
{
	struct posted_key posted = { .queue_pair = key->queue_pair, .tgid = key->tgid };
	__u32 status = done->status < VERBS_STATUSES ? done->status : VERBS_STATUSES - 1;
	struct verbs_counted *to = counted_of(key);
	__u64 now_ns = bpf_ktime_get_ns();

	if (!to)
		return;
	add(&to->completions, 1);
	add(&to->statuses[status], 1);
	if (status) {
		to->vendor_error = done->vendor_error;
		to->last_error_ns = now_ns;
	}
	if (may_be_sent) {
		posted.id = done->id;
		match_post(to, &posted, done, now_ns);
	} else if (!status) {
		add(&to->completed_bytes, done->bytes);
	}
}

/* Completion `row` of what a call gave. */
__attribute__((noinline)) int take_completion(struct polling *polling, __u32 row)
{
	struct completion done;
	struct number_key number = {};
	struct verbs_counted_key key = {};
	__u64 *address;

	if (!polling)
		return 0;
	if (!read_user(&done, sizeof(done),
		       (void *)(polling->completions + (__u64)row * sizeof(done))))
		return 0;
	number.context = polling->context;
	number.tgid = polling->tgid;
	number.number = done.number;
	address = bpf_map_lookup_elem(&numbers, &number);
	key.queue_pair = address ? *address : 0;
	key.tgid = polling->tgid;
	key.number = done.number;
	/* Of a failure, the operation is not reported. */
	count_completion(&key, &done, done.status || !(done.operation & COMPLETES_RECEIVE));
	return 1;
}

/* Of its own for the stack: the program has little of it left. */
__attribute__((noinline)) int take_extended(struct polling *polling)
{
	struct verbs_counted_key key = {};
	struct completion done = {};
	struct address_key queue;
	struct pair pair;
	__u64 *address;

	if (!polling)
		return 0;
	queue = address_of(polling->tgid, polling->queue);
	address = bpf_map_lookup_elem(&pair_of_queue, &queue);
	key.tgid = polling->tgid;
	if (!read_user(&done.status, sizeof(done.status),
		       (void *)(polling->queue + QUEUE_STATUS)) ||
	    !read_user(&done.id, sizeof(done.id), (void *)(polling->queue + QUEUE_ID)))
		return 0;
	if (address && *address != SEVERAL && read_user(&pair, sizeof(pair), (void *)*address)) {
		key.queue_pair = *address;
		key.number = done.number = pair.number;
	}
	count_completion(&key, &done, true);
	return 0;
}

static __always_inline int enter_poll(struct pt_regs *regs, bool session)
{
	__u32 api = (__u32)bpf_get_attach_cookie(regs);
	struct verbs_calls *called;
	struct open_calls calls;
	struct polling *polling;
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
		add(&called->polls, 1);
	polling = &hot->polling;
	calls = OPEN_CALLS(polling, 1, hot->polls_open);
	if (innermost_call(calls, regs->sp, api, NULL))
		return RETURN_IGNORED;
	open_call(calls, regs, api, true);
	polling->queue = ARGUMENT_1(regs);
	polling->room = (__u32)ARGUMENT_2(regs);
	polling->completions = ARGUMENT_3(regs);
	polling->api = api;
	polling->tgid = who.tgid;
	return RETURN_WANTED;
}

static __always_inline int leave_poll(struct pt_regs *regs)
{
	__u32 api = (__u32)bpf_get_attach_cookie(regs);
	struct hot *hot = hot_thread(false);
	__s32 got = (__s32)RESULT(regs);
	struct polling *polling;

	if (!hot || !close_call(OPEN_CALLS(&hot->polling, 1, hot->polls_open), regs, api, false))
		return 0;
	polling = &hot->polling;
	if (polling->api != API_poll_cq)
		return got ? 0 : take_extended(polling);
	if (got <= 0 || (__u32)got > polling->room)
		return 0;
	if (!read_user(&polling->context, sizeof(polling->context), (void *)polling->queue))
		return 0;
	if (got > POLLED) {
		count_many(COUNTER_COMPLETIONS_CUT, got - POLLED);
		got = POLLED;
	}
	for (__u32 row = 0; row < POLLED; row++) {
		if (row >= (__u32)got)
			break;
		take_completion(polling, row);
	}
	return 0;
}

#endif
