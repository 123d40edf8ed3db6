/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Time off the CPU: who left it under which stack, when it was back, and who woke it.
 *
 * The stack is taken as a thread leaves, for nothing runs in its name when it comes back: at sched_switch the
 * current thread is the one that leaves, and memory of another's user space cannot be read. What is said when it is
 * back, from the context of the thread before it, was therefore put together when it left.
 */
#ifndef OTELGPU_WAITS_H
#define OTELGPU_WAITS_H

#include "asking.h"
#include "stack.h"
#include <bpf/bpf_tracing.h>

const volatile __u64 offcpu_least_ns = 1000000; /* shorter waits are passed over, ... */
const volatile __u64 offcpu_sum_ns =
	0; /* ... or, unless 0, reported as one when they sum to this */

/* include/linux/sched.h */
#define TASK_INTERRUPTIBLE   0x0001
#define TASK_UNINTERRUPTIBLE 0x0002
#define TASK_STOPPED	     0x0004
#define TASK_TRACED	     0x0008
#define TASK_DEAD	     0x0080
#define TASK_PARKED	     0x0040

#define NR_FUTEX 202 /* arch/x86/entry/syscalls/syscall_64.tbl */

#define THREAD_BYTES 16384 /* arch/x86: THREAD_SIZE, the least of all configurations */

/* A thread that contends for Python's lock has six, beside those where it is preempted. */
#define PLACES 8

/* Where a thread left the CPU, and its stack there. */
struct seen_place {
	__u64 place; /* a hash; 0: none was seen */
	__u64 stack;
	__u64 walked_ns;
	__u64 met_ns;
};

/* Walks so far. */
struct budget {
	__u64 window_ns;
	__u64 walks; /* since */
};

struct wait {
	__u64 since_ns; /* 0: on a CPU, or has not been seen to leave it */
	__u64 stack;
	struct record_head head; /* of its record */
	__u32 waker;		 /* thread; 0: an interrupt, or unknown */
	__u8 state;		 /* enum profile_state */
	__u8 assumed;		 /* the stack is that of an earlier wait, and may be another */
	__u8 resumed; /* it goes on with the one before; said when that is known to have ended */
	__u8 reserved;
	__u64 begun_ns;	     /* of one that goes on: when the part that is not reported began ... */
	__u64 unreported_ns; /* ... and how long it waited in that; 0: there is none */
	__u64 back_ns;	     /* on a CPU since */
	__u64 registers;     /* where it left from: a hash; 0: that says nothing */
	__u64 short_ns;	     /* in short waits that are not reported yet */
	struct budget budget;
	struct seen_place seen[PLACES];
};

/* What a thread waits for. The kernel frees it with the thread. */
struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct wait);
} waits SEC(".maps");

/*
 * A walk takes up to 25 us, and some threads leave the CPU a thousand times a second, of a hundred in a process. Who
 * leaves from a place that was walked lately has the stack that was found there. A place is where the registers are,
 * the system call, the thread's state and the innermost Python frames; of who is preempted in user space the frames
 * alone. Callers of Python frames further out may be others by then; as places are walked again as often as a CPU has
 * time for, they have their shares of the waits, as of any time that is sampled. Where no Python runs registers say
 * too little: only a thread that has had its walks is taken to be where it was. A wait that is reported under a stack of
 * which some of this is assumed is counted.
 */
#define WALKS	      8 /* of a thread, in this time, whatever it runs */
#define AGAIN	      2 /* of a CPU, to places that are known */
#define WALKS_IN_NS   10000000ULL
#define KNOWN_MOST_NS 1000000000ULL

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct budget);
} walks_again SEC(".maps");

/* One more walk; whether there is that many. */
static __always_inline bool spend(struct budget *budget, __u64 now, __u64 most)
{
	if (now - budget->window_ns >= WALKS_IN_NS) {
		budget->window_ns = now;
		budget->walks = 0;
	}
	return budget->walks++ < most;
}

/* The registers of who is preempted in user space: they are others each time. */
static __always_inline __u64 anywhere(void)
{
	return mix(HASH_PRIME, STATE_RUNNABLE);
}

/* Of its own for the verifier. (How deep the kernel's stack is says nothing: each system call begins it elsewhere.) */
__attribute__((noinline)) __u64 place_by_registers(__u8 state)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(task);
	__u64 first = (long)regs->orig_ax >= 0 ? regs->di : 0; /* argument: the lock, the file */
	__u64 place = mix(mix(HASH_PRIME, regs->sp), regs->ip);

	if (state == STATE_RUNNABLE && (long)regs->orig_ax < 0)
		return anywhere();
	if (regs->orig_ax == NR_FUTEX)
		first &= ~7ULL; /* a condition of glibc's has two, side by side, in turns */
	return mix(mix(place, first), regs->orig_ax << 8 | state);
}

/* With Python's frames, into `place`. */
static __always_inline enum python_place place_by_frames(__u64 *place, struct identity who)
{
	struct stack *stack = stack_at(LEVEL_SWITCH);
	enum python_place known;

	if (!stack || stack->busy)
		return PYTHON_PLACE_NONE;
	stack->who = who;
	stack->hash = *place;
	known = place_in_python(stack);
	if (known != PYTHON_PLACE_NONE)
		*place = stack->hash;
	return known;
}

/* Where a place is kept, or else the one that was met longest ago. */
static __always_inline struct seen_place *seen_at(struct wait *wait, __u64 place)
{
	struct seen_place *oldest = &wait->seen[0];

	for (int i = 0; i < PLACES; i++) {
		if (wait->seen[i].place == place)
			return &wait->seen[i];
		if (wait->seen[i].met_ns < oldest->met_ns)
			oldest = &wait->seen[i];
	}
	return oldest;
}

/* The thread may be under another stack than it was at this place, and there is time to see. */
static __always_inline bool is_due(struct wait *wait, const struct seen_place *seen,
				   enum python_place known, __u64 now)
{
	struct budget *budget;
	__u32 zero = 0;

	if (known == PYTHON_PLACE_NONE)
		return spend(&wait->budget, now, WALKS);
	if (now - seen->walked_ns >= KNOWN_MOST_NS)
		return true;
	budget = bpf_map_lookup_elem(&walks_again, &zero);
	return budget && spend(budget, now, AGAIN);
}

/* The stack of the thread that leaves; `assumed` is set. */
static __always_inline __u64 stack_of_wait(void *ctx, struct wait *wait, __u64 registers,
					   struct identity who, __u64 now)
{
	__u64 place = registers;
	enum python_place known = place_by_frames(&place, who);
	struct seen_place *seen = seen_at(wait, place);

	/* Preempted in user space: which native code the innermost frame had called is not known. */
	wait->assumed = known != PYTHON_PLACE_ALL || registers == anywhere();
	if (seen->place != place || !seen->stack || is_due(wait, seen, known, now)) {
		wait->assumed = false;
		seen->place = place;
		seen->stack = take_stack(ctx, NULL, who, LEVEL_SWITCH);
		seen->walked_ns = now;
	}
	seen->met_ns = now;
	return seen->stack;
}

/*
 * Who waits for a lock with a limit tries again and again (CPython's interpreter lock: every 5 ms): that is one wait,
 * with no more between its parts than this. It is reported in parts, for others want to know of it meanwhile.
 */
#define RESUMED_NS 100000ULL
#define PART_NS	   100000000ULL

/* A thread that leaves again goes on with its last wait: for the same lock, and nobody ended that, but a timer. */
static __always_inline bool goes_on(const struct wait *wait, __u64 registers, __u64 now)
{
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(bpf_get_current_task_btf());

	return registers == wait->registers && now - wait->back_ns < RESUMED_NS && !wait->waker &&
	       wait->stack && wait->state == STATE_INTERRUPTIBLE && regs->orig_ax == NR_FUTEX &&
	       regs->r10; /* its limit */
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
 * registers that are no system call's. (Where the kernel counts its interrupts cannot be distinguished from here.)
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

/*
 * The wait of `task` from `since_ns` to `until_ns`, `waited_ns` of which it was off the CPU, and which ended if it
 * `returned`. Nothing of the current thread is reported.
 */
static __always_inline void report_wait(struct task_struct *task, struct wait *wait, __u64 since_ns,
					__u64 until_ns, __u64 waited_ns, bool returned)
{
	struct profile_sample *sample;

	sample = bpf_ringbuf_reserve(&ring, sizeof(*sample), 0);
	if (!sample) {
		lose_record(wait->head.tgid, COUNTER_RING_FULL);
		return;
	}
	__builtin_memset(sample, 0, sizeof(*sample));
	sample->head = wait->head;
	sample->head.time_ns = since_ns;
	sample->head.duration_ns = until_ns - since_ns;
	sample->head.returned = returned;
	sample->stack = wait->stack;
	sample->value = waited_ns;
	sample->other = wait->waker;
	sample->state = wait->state;
	if (wait->assumed)
		count(COUNTER_WAIT_STACK_ASSUMED);
	bpf_core_read_str(sample->name, sizeof(sample->name), &task->comm);
	submit(sample);
	if (is_reported(wait->stack))
		return;
	wait->registers = 0; /* it is walked again, and reported with that */
	for (int i = 0; i < PLACES; i++)
		if (wait->seen[i].stack == wait->stack)
			wait->seen[i].place = 0;
}

/* What is left to be reported of a wait that went on, and has ended. */
static __always_inline void report_ended(struct task_struct *task, struct wait *wait)
{
	__u64 waited_ns = __sync_lock_test_and_set(&wait->unreported_ns, 0);

	if (waited_ns)
		report_wait(task, wait, wait->begun_ns, wait->back_ns, waited_ns, true);
}

static __always_inline void leave(void *ctx, struct task_struct *task, bool preempted)
{
	__u32 state = BPF_CORE_READ(task, __state);
	__u8 how = state_of(preempted, state);
	__u64 now, registers;
	struct identity who;
	struct wait *wait;

	if (state & TASK_DEAD) {
		wait = bpf_task_storage_get(&waits, task, NULL, 0);
		if (wait)
			report_ended(task, wait);
		return;
	}
	if (!in_scope(&who) || is_kernel_thread())
		return;
	wait = bpf_task_storage_get(&waits, task, NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!wait) {
		count(COUNTER_THREAD_STATE_FAILED);
		return;
	}
	now = bpf_ktime_get_ns();
	registers = place_by_registers(how);
	wait->resumed = goes_on(wait, registers, now);
	if (!wait->resumed || now - wait->begun_ns >= PART_NS)
		report_ended(task, wait);
	if (!wait->unreported_ns)
		wait->begun_ns = now;
	if (!wait->resumed) {
		fill_head(&wait->head, PROFILE_OFF_CPU, who, now, now);
		wait->registers = registers;
		wait->state = how;
		wait->stack = stack_of_wait(ctx, wait, registers, who, now);
	}
	wait->waker = 0;
	wait->since_ns = now;
}

/*
 * A thousand page faults wait 40 us each: each is too short to be reported, and they make a gap. As a clock does, one
 * of them stands for those since the last that did: the longer waits of a place are in all, the more often is it one of
 * them.
 */
static __always_inline void sum_short(struct task_struct *task, struct wait *wait, __u64 waited_ns,
				      __u64 now)
{
	__u64 sum;

	if (!offcpu_sum_ns)
		return;
	sum = wait->short_ns + waited_ns;
	wait->short_ns = sum < offcpu_sum_ns ? sum : 0;
	if (sum >= offcpu_sum_ns)
		report_wait(task, wait, now - sum, now, sum, true);
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
	wait->back_ns = now;
	if (now - since_ns < offcpu_least_ns) {
		sum_short(task, wait, now - since_ns, now);
		return;
	}
	if (wait->resumed)
		__sync_fetch_and_add(&wait->unreported_ns, now - since_ns);
	else
		report_wait(task, wait, since_ns, now, now - since_ns, true);
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
int BPF_PROG(waker_sample, struct task_struct *task)
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
	if (wait->resumed)
		since_ns = wait->begun_ns;
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

/* Asked for by user space: waits that last are reported so far, and go on from now. */
SEC("iter/task")
int offcpu_report(struct iterated_task *at)
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
	if (!since_ns || now < since_ns || now - since_ns < offcpu_least_ns) {
		report_ended(task, wait);
		wait->begun_ns = since_ns ? since_ns : now;
		return 0;
	}
	/* It may come back at this moment: one of us says it. */
	if (__sync_val_compare_and_swap(&wait->since_ns, since_ns, now) == since_ns) {
		__u64 begun_ns = wait->resumed ? wait->begun_ns : since_ns;
		__u64 before_ns = __sync_lock_test_and_set(&wait->unreported_ns, 0);

		wait->begun_ns = now;
		report_wait(task, wait, begun_ns, now, before_ns + now - since_ns, false);
	}
	return 0;
}

#endif
