/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The stack of a call of a vendor's library: the program that sees the call begin hands the visit on, by a tail call, to
 * one of family profile that takes the stack (bpf/profile/calls.h). So there is no second probe on the function, what
 * is the outermost call is decided once, and the sample has the very start that the call's record has.
 *
 * Where the record is written at the return, its start is the time after the stack was taken: what that costs is in
 * no duration.
 */
#ifndef OTELGPU_CALL_STACKS_H
#define OTELGPU_CALL_STACKS_H

#include "counters.h"
#include "own_stack.h"

/* Bit of a kind of operation (OperationKind): its calls report their stacks. 0: nothing of this is there. */
const volatile __u32 stack_kinds = 0;
#define STACK_POSTS   31 /* and that of work requests posted, which are no operations */
#define STACK_TENSORS 30 /* and of memory given to tensors */

/*
 * Each family whose calls have stacks says which it is, and user space reads it there: ENUM(call_family), which is
 * `enum call_family { CALL_FAMILY = n }` with an n of its own from 1 up to CALL_FAMILIES - 1
 * (tests/unit/engine/test_call_families.py compares them).
 */
#define CALL_FAMILIES 16

struct stack_asked {
	__u64 began_ns; /* of the call, as the program knows it that asks */
	__u64 start_ns; /* the start that both will report */
	__u64 value;
	__u64 bytes;
	__u32 api;
	__u8 fixed; /* the record has been written, or has another start: began_ns it is */
	__u8 reserved[3];
};

/* By family: a call of one is often inside one of another. */
struct call_stack {
	struct stack_asked of[CALL_FAMILIES]; /* by CALL_FAMILY */
	__u32 family;			      /* that asks now */
	__u32 answer; /* of a session program: whether the return is wanted */
};

/* Shared between all families; the kernel frees it with the thread. */
struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct call_stack);
} call_stacks SEC(".maps");

/* Family profile's programs, one array for each way of attaching; empty while it is not loaded. Shared. */
NO_PROGRAMS(call_stack_programs);
NO_PROGRAMS(call_stack_sessions);

/* To be given by who enters a call, beside whether the return is wanted (0 or 1). */
#define STACK_WANTED 2

/* The last thing in a program on entries: what follows runs only if nobody is there to take the stack. */
#define HAND_ON(regs, answered)                                       \
	do {                                                          \
		if (stack_kinds && (answered)&STACK_WANTED)           \
			bpf_tail_call(regs, &call_stack_programs, 0); \
	} while (0)
#define HAND_ON_IN_SESSION(regs, answered)                            \
	do {                                                          \
		if (stack_kinds && (answered)&STACK_WANTED)           \
			bpf_tail_call(regs, &call_stack_sessions, 0); \
	} while (0)

static __always_inline bool wants_stack(__u32 kind)
{
	return stack_kinds && stack_kinds >> (kind & 31) & 1;
}

static __always_inline struct call_stack *this_call_stack(bool create)
{
	return bpf_task_storage_get(&call_stacks, bpf_get_current_task_btf(), NULL,
				    create ? BPF_LOCAL_STORAGE_GET_F_CREATE : 0);
}

/* The call that a thread has entered is to have its stack taken; the result is `answer` with STACK_WANTED, or not. */
static __always_inline int ask_for_stack(__u32 family, __u32 api, __u64 began_ns, __u64 bytes,
					 bool fixed, int answer)
{
	struct call_stack *stack = this_call_stack(true);
	struct stack_asked *asked;

	if (!stack) {
		count(COUNTER_THREAD_STATE_FAILED);
		return answer;
	}
	asked = &stack->of[family];
	asked->began_ns = began_ns;
	asked->start_ns = began_ns;
	asked->value = 1;
	asked->bytes = bytes;
	asked->api = api;
	asked->fixed = fixed;
	stack->family = family;
	stack->answer = answer;
	return answer | STACK_WANTED;
}

/* The same of a call that stands for `value` of its kind and has no record. */
static __always_inline int ask_for_stack_of_many(__u32 family, __u32 api, __u64 began_ns,
						 __u64 value, __u64 bytes)
{
	struct call_stack *stack;
	int asked = ask_for_stack(family, api, began_ns, bytes, true, 0);

	stack = this_call_stack(false);
	if (stack)
		stack->of[family].value = value;
	return asked;
}

/* At the return: the start that the stack's sample has. */
static __always_inline __u64 start_with_stack(__u32 family, __u64 began_ns)
{
	struct call_stack *stack;

	if (!stack_kinds)
		return began_ns;
	stack = this_call_stack(false);
	if (!stack || stack->of[family].began_ns != began_ns)
		return began_ns;
	return stack->of[family].start_ns;
}

#endif
