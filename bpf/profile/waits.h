/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Time off the CPU: who left it under which stack, when it was back, and who woke it.
 *
 * The stack is taken as a thread leaves, for nothing runs in its name when it comes back: at sched_switch the
 * current thread is the one that leaves, and memory of another's user space cannot be read. What is told when it is
 * back, from the context of the thread before it, was therefore put together when it left.
 */
#ifndef OTELGPU_WAITS_H
#define OTELGPU_WAITS_H

#include "asking.h"
#include "stack.h"
#include <bpf/bpf_tracing.h>

const volatile __u64 offcpu_least_ns = 1000000; /* shorter waits are passed over */

/* include/linux/sched.h */
#define TASK_INTERRUPTIBLE   0x0001
#define TASK_UNINTERRUPTIBLE 0x0002
#define TASK_STOPPED	     0x0004
#define TASK_TRACED	     0x0008
#define TASK_DEAD	     0x0080
#define TASK_PARKED	     0x0040

#define THREAD_BYTES 16384 /* arch/x86: THREAD_SIZE, the least of all configurations */

struct wait {
	__u64 since_ns; /* 0: on a CPU, or has not been seen to leave it */
	__u64 stack;
	struct record_head head; /* of its record */
	__u32 waker;		 /* thread; 0: an interrupt, or unknown */
	__u8 state;		 /* enum profile_state */
	__u8 assumed;		 /* the stack is that of an earlier wait at this place */
	__u8 reserved[2];
	__u64 place; /* where the stack was walked last: a hash */
	__u64 walked;
	__u64 window_ns; /* walks since */
	__u64 walks;
};

/* What a thread waits for. The kernel frees it with the thread. */
struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct wait);
} waits SEC(".maps");

/*
 * A walk takes up to 25 us, and some threads leave the CPU ten thousand times a second: a thread has so many in so
 * long. Beyond that it has one only where it leaves from another place, by its registers and the system call that it
 * is in; else it has the stack that was seen there last. A wait that is told under such a stack is counted.
 */
#define WALKS	    8
#define WALKS_IN_NS 10000000ULL

/* Of its own for the verifier. (How deep the kernel's stack is says nothing: each system call begins it elsewhere.) */
__attribute__((noinline)) __u64 place_of(struct wait *wait)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(task);

	if (!wait)
		return 0;
	return mix(mix(mix(HASH_PRIME, BPF_CORE_READ(regs, sp)), BPF_CORE_READ(regs, ip)),
		   BPF_CORE_READ(regs, orig_ax) << 8 | wait->state);
}

/* Of the thread that leaves. */
static __always_inline __u64 stack_of_wait(void *ctx, struct wait *wait, struct identity who,
					   __u64 now)
{
	__u64 place = place_of(wait);

	if (now - wait->window_ns >= WALKS_IN_NS) {
		wait->window_ns = now;
		wait->walks = 0;
	}
	wait->assumed = wait->walks >= WALKS && place == wait->place;
	if (!wait->assumed) {
		wait->walks++;
		wait->place = place;
		wait->walked = take_stack(ctx, NULL, who, LEVEL_SWITCH);
	}
	return wait->walked;
}

static __always_inline enum profile_state state_of(bool preempted, __u32 state)
{
	if (preempted)
		return STATE_RUNNABLE;
	if (state & TASK_INTERRUPTIBLE)
		return STATE_INTERRUPTIBLE;
	if (state & TASK_UNINTERRUPTIBLE)
		return STATE_UNINTERRUPTIBLE;
	if (state & (TASK_STOPPED | TASK_TRACED | TASK_PARKED))
		return STATE_STOPPED;
	return state ? STATE_UNKNOWN : STATE_RUNNABLE;
}

/*
 * Whether the current thread does this itself, in a system call: an interrupt runs in whichever thread's name. One
 * that came upon the kernel has a stack of its own, where the context then lies; one that came upon user space left
 * registers that are no system call's. (Where the kernel counts its interrupts cannot be told from here.)
 */
static __always_inline bool is_own_doing(const void *ctx)
{
	struct task_struct *task = bpf_get_current_task_btf();
	__u64 bottom = (__u64)BPF_CORE_READ(task, stack), at = (__u64)ctx;
	struct pt_regs *regs;

	if (at < bottom || at >= bottom + THREAD_BYTES)
		return false;
	regs = (struct pt_regs *)bpf_task_pt_regs(task);
	return (long)BPF_CORE_READ(regs, orig_ax) >= 0;
}

/* The wait of `task` from `since_ns` to `now`, which ended if it `returned`. Nothing of the current thread is told. */
static __always_inline void tell_wait(struct task_struct *task, const struct wait *wait,
				      __u64 since_ns, __u64 now, bool returned)
{
	struct profile_sample *sample;

	sample = bpf_ringbuf_reserve(&ring, sizeof(*sample), 0);
	if (!sample) {
		count(COUNTER_RING_FULL);
		return;
	}
	__builtin_memset(sample, 0, sizeof(*sample));
	sample->head = wait->head;
	sample->head.time_ns = since_ns;
	sample->head.duration_ns = now - since_ns;
	sample->head.returned = returned;
	sample->stack = wait->stack;
	sample->value = now - since_ns;
	sample->other = wait->waker;
	sample->state = wait->state;
	if (wait->assumed)
		count(COUNTER_WAIT_STACK_ASSUMED);
	bpf_core_read_str(sample->name, sizeof(sample->name), &task->comm);
	submit(sample);
}

static __always_inline void leave(void *ctx, struct task_struct *task, bool preempted)
{
	__u32 state = BPF_CORE_READ(task, __state);
	struct identity who;
	struct wait *wait;
	__u64 now;

	if (state & TASK_DEAD || !in_scope(&who) || is_kernel_thread())
		return;
	wait = bpf_task_storage_get(&waits, task, NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!wait) {
		count(COUNTER_THREAD_STATE_FAILED);
		return;
	}
	now = bpf_ktime_get_ns();
	fill_head(&wait->head, PROFILE_OFF_CPU, who, now, now);
	wait->waker = 0;
	wait->state = state_of(preempted, state);
	wait->stack = stack_of_wait(ctx, wait, who, now);
	wait->since_ns = now;
}

static __always_inline void come_back(struct task_struct *task)
{
	struct wait *wait = bpf_task_storage_get(&waits, task, NULL, 0);
	__u64 since_ns, now;

	if (!wait)
		return;
	since_ns = __sync_lock_test_and_set(&wait->since_ns, 0);
	if (!since_ns)
		return;
	now = bpf_ktime_get_ns();
	if (now - since_ns >= offcpu_least_ns)
		tell_wait(task, wait, since_ns, now, true);
}

SEC("tp_btf/sched_switch")
int BPF_PROG(offcpu_switch, bool preempted, struct task_struct *previous, struct task_struct *next)
{
	come_back(next);
	leave(ctx, previous, preempted);
	return 0;
}

/* In the context of who wakes: a thread that is inside the kernel for it, or one that an interrupt came upon. */
SEC("tp_btf/sched_waking")
int BPF_PROG(offcpu_waking, struct task_struct *task)
{
	struct wait *wait = bpf_task_storage_get(&waits, task, NULL, 0);
	struct profile_sample *sample;
	__u64 since_ns, stack, now;
	struct identity who;

	if (!wait)
		return 0;
	since_ns = wait->since_ns;
	now = bpf_ktime_get_ns();
	if (!since_ns || wait->state == STATE_RUNNABLE || now - since_ns < offcpu_least_ns)
		return 0;
	if (!in_scope(&who) || is_kernel_thread() || !is_own_doing(ctx))
		return 0;
	wait->waker = who.tid;
	stack = take_stack(ctx, NULL, who, LEVEL_SWITCH);
	sample = begin_sample(PROFILE_WAKER, who, since_ns, now);
	if (!sample)
		return 0;
	sample->stack = stack;
	sample->value = now - since_ns;
	sample->other = wait->head.tid;
	submit(sample);
	return 0;
}

/* Asked for by user space: waits that last are told so far, and go on from now. */
SEC("iter/task")
int offcpu_tell(struct iterated_task *at)
{
	struct task_struct *task = at->task;
	__u64 since_ns, now = bpf_ktime_get_ns();
	struct wait *wait;

	if (!task)
		return 0;
	wait = bpf_task_storage_get(&waits, task, NULL, 0);
	if (!wait)
		return 0;
	since_ns = wait->since_ns;
	if (!since_ns || now < since_ns || now - since_ns < offcpu_least_ns)
		return 0;
	/* It may come back at this moment: one of us tells it. */
	if (__sync_val_compare_and_swap(&wait->since_ns, since_ns, now) == since_ns)
		tell_wait(task, wait, since_ns, now, false);
	return 0;
}

#endif
