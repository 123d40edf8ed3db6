/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The stack of the current thread: taken, numbered, and reported to user space once.
 *
 * Its number is a hash of the process and all its words, so that equal stacks are one on all CPUs without a table
 * that could be full. Whether it was reported lately is in a table, which may forget: it is reported again then.
 */
#ifndef OTELGPU_STACK_H
#define OTELGPU_STACK_H

#include "profile.h"
#include "../lib/emit.h"

/* Reported again after this long: who reads may have forgotten it. */
const volatile __u64 stack_again_ns = 60000000000ULL;

/* -- What a stack is put together in -------------------------------------------------------------------- */

#define STACK_PARTS 10
#define STACK_WORDS (STACK_PARTS * STACK_PART_WORDS)

_Static_assert(STACK_WORDS >= MAX_KERNEL_FRAMES + MAX_USER_FRAMES + 2 * MAX_PYTHON_FRAMES,
	       "the longest stack fits");

/*
 * Who takes a stack, and so where it is put together. One level is not interrupted by itself on a CPU, or else
 * is a thread's own; each may be interrupted by the next.
 */
enum stack_level {
	LEVEL_TASK = 0,	     /* uprobes, tracepoints of system calls: these may be preempted */
	LEVEL_SWITCH = 1,    /* the scheduler's tracepoints: interrupts are off */
	LEVEL_INTERRUPT = 2, /* perf events */
};

/* Code of a process. */
struct unwind_mapping {
	__u64 start;
	__u64 end;
	__u64 bias;	/* address in the process, less that in the file */
	__u32 file;	/* 0: there is no table */
	__u32 blocks;	/* of the file */
	__u32 mappings; /* of the process: the same in each */
	__u8 why;	/* enum stack_end: why there is no table */
	__u8 reserved[3];
};

struct stack {
	__u64 words[STACK_WORDS]; /* as of struct profile_stack, all parts */
	__u64 hash;
	__u64 ip; /* registers of the frame that comes next */
	__u64 sp;
	__u64 bp;
	struct unwind_mapping mapping; /* that was found last, of the frames' */
	struct identity who;
	__u32 count; /* words so far */
	__u16 kernel;
	__u16 user;
	__u16 python;
	__u8 end; /* enum stack_end */
	__u8 busy;
	__u8 exact;   /* ip is where the thread is, and no return address */
	__u8 pointed; /* a frame pointer was followed */
	__u8 entered; /* the thread enters a function: at sp is where that returns to */
	__u8 doubt; /* enum stack_end: why frames may be missing that frame pointers passed over */
};

/* LEVEL_TASK. The kernel frees it with the thread. */
struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct stack);
} stack_of_task SEC(".maps");

/* LEVEL_SWITCH, LEVEL_INTERRUPT: one for each CPU. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, struct stack);
} stack_of_cpu SEC(".maps");

/* Number of a stack -> when it was reported last. Forgets those that were used least lately. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 32768);
	__type(key, __u64);
	__type(value, __u64);
} reported_stacks SEC(".maps");

static __always_inline struct stack *stack_at(enum stack_level level)
{
	struct stack *stack;
	__u32 slot = level - LEVEL_SWITCH;

	if (level == LEVEL_TASK)
		stack = bpf_task_storage_get(&stack_of_task, bpf_get_current_task_btf(), NULL,
					     BPF_LOCAL_STORAGE_GET_F_CREATE);
	else
		stack = bpf_map_lookup_elem(&stack_of_cpu, &slot);
	if (!stack)
		count(COUNTER_THREAD_STATE_FAILED);
	return stack;
}

#define PF_KTHREAD 0x00200000 /* include/linux/sched.h */

/* The current thread is the kernel's own: it has no user space. */
static __always_inline bool is_kernel_thread(void)
{
	struct task_struct *task = (struct task_struct *)bpf_get_current_task();

	return BPF_CORE_READ(task, flags) & PF_KTHREAD;
}

/* -- Words ---------------------------------------------------------------------------------------------- */

#define HASH_PRIME 0x9E3779B97F4A7C15ULL /* 2^64 by the golden ratio */

static __always_inline __u64 mix(__u64 hash, __u64 word)
{
	hash = (hash ^ word) * HASH_PRIME;
	return hash ^ hash >> 29;
}

/* One more word; false where there is no room. */
static __always_inline bool push_word(struct stack *stack, __u64 word)
{
	__u64 at = stack->count;

	asm volatile("" : "+r"(at)); /* the bound is to be that of this register */
	if (at >= STACK_WORDS)
		return false;
	stack->words[at] = word;
	stack->count = at + 1;
	stack->hash = mix(stack->hash, word);
	return true;
}

#include "python.h"
#include "unwind.h"

/* -- Kernel and frame pointers ---------------------------------------------------------------------------- */

#define BPF_F_USER_STACK (1ULL << 8)

/* `bytes` of addresses lie behind the words: they are words now. Of its own for the verifier. */
__attribute__((noinline)) int adopt_addresses(struct stack *stack, __u64 bytes)
{
	__u32 adopted = 0;

	if (!stack)
		return 0;
	for (__u32 i = 0; i < MAX_USER_FRAMES; i++) {
		__u64 at = stack->count;

		asm volatile("" : "+r"(at));
		if (8 * i >= bytes || at >= STACK_WORDS || !stack->words[at])
			break;
		stack->hash = mix(stack->hash, stack->words[at]);
		stack->count = at + 1;
		adopted++;
	}
	return adopted;
}

/* The frames of the kernel, below which those of user space lie. */
static __always_inline void take_kernel(void *ctx, struct stack *stack)
{
	long bytes = bpf_get_stack(ctx, stack->words, 8 * MAX_KERNEL_FRAMES, 0);

	if (bytes > 0)
		stack->kernel = adopt_addresses(stack, bytes);
}

/* By the kernel, which follows frame pointers only. */
static __always_inline void take_pointed(void *ctx, struct stack *stack)
{
	__u64 at = stack->count;
	long bytes;

	asm volatile("" : "+r"(at));
	if (at > MAX_KERNEL_FRAMES)
		return;
	bytes = bpf_get_stack(ctx, &stack->words[at], 8 * MAX_USER_FRAMES, BPF_F_USER_STACK);
	stack->end = STACK_NO_TABLE; /* where it ends, nobody says */
	if (bytes > 0)
		stack->user = adopt_addresses(stack, bytes);
	else
		stack->end = STACK_UNREADABLE;
}

/* -- SignalSettings -------------------------------------------------------------------------------------------- */

/* One part; 0: reported. Of its own for the verifier. */
__attribute__((noinline)) int report_part(struct stack *stack, __u32 number)
{
	struct profile_stack *record;
	__u64 part = number, now = bpf_ktime_get_ns();

	if (!stack)
		return 1;
	record = EMIT_BEGIN(profile_stack, PROFILE_STACK, stack->who, now, now);
	if (!record)
		return 1;
	record->stack = stack->hash;
	record->kernel = stack->kernel;
	record->user = stack->user;
	record->python = stack->python;
	record->end = stack->end;
	record->part = number;
	asm volatile("" : "+r"(part));
	if (part < STACK_PARTS) {
		__u32 from = part * STACK_PART_WORDS;
		__u64 words = stack->count - from;

		asm volatile("" : "+r"(words));
		if (words > STACK_PART_WORDS)
			words = STACK_PART_WORDS;
		bpf_probe_read_kernel(record->words, 8 * words, &stack->words[from]);
	}
	submit(record);
	return 0;
}

/* All parts, unless they were reported lately. Of its own for the verifier. */
__attribute__((noinline)) int report_stack(struct stack *stack)
{
	__u64 now = bpf_ktime_get_ns(), number, *reported;

	if (!stack)
		return 0;
	number = stack->hash;
	reported = bpf_map_lookup_elem(&reported_stacks, &number);
	if (reported && now - *reported < stack_again_ns)
		return 0;
	for (__u32 part = 0; part < STACK_PARTS; part++) {
		if (part * STACK_PART_WORDS >= stack->count)
			break;
		if (report_part(stack, part)) {
			bpf_map_delete_elem(&reported_stacks,
					    &number); /* at its next sight, then */
			return 0;
		}
	}
	bpf_map_update_elem(&reported_stacks, &number, &now, BPF_ANY);
	return 0;
}

_Static_assert(COUNTER_STACK_PYTHON_DAMAGED - COUNTER_STACK_TOO_DEEP ==
		       STACK_PYTHON_DAMAGED - STACK_TOO_DEEP,
	       "each end has a counter");

/* All words are there. Of its own for the verifier. */
__attribute__((noinline)) int finish_stack(struct stack *stack)
{
	if (!stack)
		return 0;
	stack->hash = mix(stack->hash, (__u64)stack->end << 48 | (__u64)stack->python << 32 |
					       (__u64)stack->user << 16 | stack->kernel);
	if (!stack->hash)
		stack->hash = 1;
	if (stack->end)
		count(COUNTER_STACK_TOO_DEEP - STACK_TOO_DEEP + stack->end);
	return report_stack(stack);
}

/*
 * The stack of the current thread, which is `who`: its number, 0 where none could be taken, which is counted.
 * `regs`: user space's registers where the program got them (uprobes), else NULL. The kernel's frames are
 * taken at all levels but LEVEL_TASK.
 */
static __always_inline __u64 take_stack(void *ctx, struct pt_regs *regs, struct identity who,
					enum stack_level level)
{
	struct stack *stack = stack_at(level);
	__u64 number;

	if (!stack)
		return 0;
	if (stack->busy) {
		count(COUNTER_STACK_BUSY);
		return 0;
	}
	stack->busy = 1;
	stack->who = who;
	stack->hash = mix(HASH_PRIME, who.tgid);
	stack->count = 0;
	stack->kernel = 0;
	stack->user = 0;
	stack->python = 0;
	stack->end = STACK_COMPLETE;
	if (level != LEVEL_TASK)
		take_kernel(ctx, stack);
	if (unwind_loops) {
		take_registers(stack, regs);
		if (stack->ip)
			walk_user(stack);
	} else {
		take_pointed(ctx, stack);
	}
	walk_python(stack);
	number = 0;
	if (stack->count) {
		finish_stack(stack);
		number = stack->hash;
	} else {
		count(COUNTER_STACK_EMPTY);
	}
	stack->busy = 0;
	return number;
}

/* Whether user space has the words of a stack, and will keep them for a while. */
static __always_inline bool is_reported(__u64 number)
{
	__u64 *reported = bpf_map_lookup_elem(&reported_stacks, &number);

	return reported && bpf_ktime_get_ns() - *reported < stack_again_ns;
}

/* -- Samples -------------------------------------------------------------------------------------------- */

/* A sample of the current thread in memory of one's own, for output() later. */
static __always_inline void fill_sample(struct profile_sample *sample, enum profile_kind kind,
					struct identity who, __u64 start_ns, __u64 end_ns)
{
	__builtin_memset(sample, 0, sizeof(*sample));
	fill_head(&sample->head, kind, who, start_ns, end_ns);
	bpf_get_current_comm(sample->name, sizeof(sample->name));
}

/* A sample of the current thread in the ring, for submit(); NULL with the loss counted. */
static __always_inline struct profile_sample *
begin_sample(enum profile_kind kind, struct identity who, __u64 start_ns, __u64 end_ns)
{
	struct profile_sample *sample = EMIT_BEGIN(profile_sample, kind, who, start_ns, end_ns);

	if (sample)
		bpf_get_current_comm(sample->name, sizeof(sample->name));
	return sample;
}

#endif
