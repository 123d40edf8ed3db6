/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * System calls: how many and how long, all of them; under which stack, of some.
 *
 * A slow call is reported by itself. Quick ones are added up by process and number, and reported all together by one call
 * whose stack is taken for them: the first few each, later one in n/64 (n: since they were last reported in full), so
 * that a million make a thousand samples. Sums of value and calls are exact at all times that user space asks for
 * what is left; how quick calls divide among stacks is as those samples say.
 */
#ifndef OTELGPU_SYSCALLS_H
#define OTELGPU_SYSCALLS_H

#include "asking.h"
#include "stack.h"
#include <bpf/bpf_tracing.h>

const volatile __u64 syscall_slow_ns = 1000000; /* a call as long as this is reported by itself */

#define SYSCALL_KEYS   32768
#define SAMPLES_SHIFT  6	  /* one in n/64 */
#define SYSCALL_COMPAT 0x80000000 /* the number is one of the 32-bit table */
#define USER_CODE_64   0x33	  /* arch/x86/include/asm/segment.h: __USER_CS */

struct syscall_under_way {
	__u64 start_ns; /* 0: none is */
	__u32 number;
	__u32 reserved;
};

/* The kernel frees it with the thread. */
struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct syscall_under_way);
} syscalls_under_way SEC(".maps");

struct syscall_key {
	__u32 tgid;
	__u32 number;
};

/* Calls that no sample stands for yet. */
struct syscall_sum {
	__u64 calls;
	__u64 total_ns;
	__u64 since; /* calls since user space asked */
	__u64 idle;  /* it asked, and there were none */
};

/* Deleted when user space has asked twice and there was nothing. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, SYSCALL_KEYS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct syscall_key);
	__type(value, struct syscall_sum);
} syscall_sums SEC(".maps");

static __always_inline bool report_syscalls(struct identity who, __u64 stack, __u32 number,
					    __u64 calls, __u64 total_ns, __u64 start_ns, __u64 now)
{
	struct profile_sample *sample = begin_sample(PROFILE_SYSCALL, who, start_ns, now);

	if (!sample)
		return false;
	sample->head.returned = 1;
	sample->stack = stack;
	sample->value = total_ns;
	sample->bytes = calls;
	sample->other = number;
	submit(sample);
	return true;
}

/* The calls of a key that no sample stands for: taken from it by whoever comes first. */
static __always_inline __u64 take_sum(struct syscall_sum *sum, __u64 *total_ns)
{
	*total_ns = __sync_lock_test_and_set(&sum->total_ns, 0);
	return __sync_lock_test_and_set(&sum->calls, 0);
}

/* They could not be reported: by the next sample, then. */
static __always_inline void give_back(struct syscall_sum *sum, __u64 calls, __u64 total_ns)
{
	__sync_fetch_and_add(&sum->total_ns, total_ns);
	__sync_fetch_and_add(&sum->calls, calls);
}

static __always_inline struct syscall_sum *sum_of(struct syscall_key *key)
{
	struct syscall_sum *sum = bpf_map_lookup_elem(&syscall_sums, key), none = {};

	if (sum)
		return sum;
	bpf_map_update_elem(&syscall_sums, key, &none, BPF_NOEXIST);
	return bpf_map_lookup_elem(&syscall_sums, key);
}

SEC("tp_btf/sys_enter")
int BPF_PROG(syscall_enter, struct pt_regs *regs, long number)
{
	struct syscall_under_way *call;
	struct identity who;

	(void)ctx;
	if (!in_scope(&who))
		return 0;
	call = bpf_task_storage_get(&syscalls_under_way, bpf_get_current_task_btf(), NULL,
				    BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!call) {
		count(COUNTER_THREAD_STATE_FAILED);
		return 0;
	}
	call->number = (__u32)number;
	if (BPF_CORE_READ(regs, cs) != USER_CODE_64)
		call->number |= SYSCALL_COMPAT;
	call->start_ns = bpf_ktime_get_ns();
	return 0;
}

SEC("tp_btf/sys_exit")
int BPF_PROG(syscall_exit, struct pt_regs *regs, long result)
{
	__u64 start_ns, calls, total_ns, period, now = bpf_ktime_get_ns();
	struct syscall_under_way *call;
	struct syscall_key key;
	struct syscall_sum *sum;
	struct identity who;

	(void)regs;
	(void)result;
	call = bpf_task_storage_get(&syscalls_under_way, bpf_get_current_task_btf(), NULL, 0);
	if (!call || !call->start_ns)
		return 0;
	start_ns = call->start_ns;
	call->start_ns = 0;
	if (!in_scope(&who))
		return 0;
	if (now - start_ns >= syscall_slow_ns) {
		__u64 stack = take_stack(ctx, NULL, who, LEVEL_TASK);

		report_syscalls(who, stack, call->number, 1, now - start_ns, start_ns, now);
		return 0;
	}
	key.tgid = who.tgid;
	key.number = call->number;
	sum = sum_of(&key);
	if (!sum) {
		count(COUNTER_SYSCALL_TABLE_FULL);
		report_syscalls(who, 0, call->number, 1, now - start_ns, start_ns, now);
		return 0;
	}
	__sync_fetch_and_add(&sum->total_ns, now - start_ns);
	period = 1 + (__sync_fetch_and_add(&sum->since, 1) >> SAMPLES_SHIFT);
	if (__sync_fetch_and_add(&sum->calls, 1) + 1 < period)
		return 0;
	calls = take_sum(sum, &total_ns);
	if (calls) {
		__u64 stack = take_stack(ctx, NULL, who, LEVEL_TASK);

		if (!report_syscalls(who, stack, call->number, calls, total_ns, start_ns, now))
			give_back(sum, calls, total_ns);
	}
	return 0;
}

static long report_rest(void *map, const void *at, void *value, void *context)
{
	const struct syscall_key *key = at;
	__u64 total_ns, calls, now = bpf_ktime_get_ns();
	struct identity who = { .tgid = key->tgid };
	struct syscall_sum *sum = value;

	(void)context;
	sum->since = 0;
	calls = take_sum(sum, &total_ns);
	if (calls) {
		struct profile_sample *sample;

		sum->idle = 0;
		sample = bpf_ringbuf_reserve(&ring, sizeof(*sample), 0);
		if (!sample) {
			lose_record(who.tgid, COUNTER_RING_FULL);
			give_back(sum, calls, total_ns);
			return 0;
		}
		__builtin_memset(sample, 0, sizeof(*sample));
		sample->head.kind = PROFILE_SYSCALL;
		sample->head.time_ns = now;
		sample->head.tgid = who.tgid;
		sample->head.returned = 1;
		sample->value = total_ns;
		sample->bytes = calls;
		sample->other = key->number;
		submit(sample);
	} else if (sum->idle++) {
		bpf_map_delete_elem(map, key);
	}
	return 0;
}

/* Asked for by user space: calls that no sample stands for yet are reported, without a stack and a thread. */
SEC("iter/task")
int syscall_report(struct iterated_task *at)
{
	if (!at->task) /* after the last one */
		bpf_for_each_map_elem(&syscall_sums, report_rest, NULL, 0);
	return 0;
}

#endif
