/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Calls of a library, the entry of each paired with its return on the thread that makes it.
 *
 * The calls that a thread is inside of are a stack, innermost last. What contains what is known by the stack pointer
 * at entry. A call that began above the present one is under way as long as its return address is where it was: the
 * kernel's trampoline, on the last page of the address space, if its return is probed. What comes after it from as
 * deep in the stack has written something else there: it was left, by longjmp or an exception if it never returned.
 * One that began at the same place and is under way has jumped to the present one.
 *
 *     cudaMemcpy      sp 9000   innermost_call(): none               open_call(): depth 1
 *       cuMemcpyHtoD  sp 8800   innermost_call(): cudaMemcpy         the family takes it for a part of that: not opened
 *       returns                 close_call(): none, it was inside another one
 *     longjmp
 *     cudaFree        sp 8900   innermost_call(): none, and one call abandoned      open_call(): depth 1
 *       returns                 close_call(): cudaFree, depth 0
 *
 * A family keeps for each thread an array of a struct that begins with struct open_call, and how many of them are
 * open. It decides what a call inside another one is, and it alone reads arguments and results.
 */
#ifndef OTELGPU_CALLS_H
#define OTELGPU_CALLS_H

#include "arguments.h"
#include "call_stacks.h"
#include "emit.h"
#include "return_address.h"

/*
 * Return probes are off (they would harm the observed processes on this kernel): what a call did and how long it took
 * is not known, and what is recorded is recorded at its entry.
 */
const volatile bool entry_only = false;

/*
 * An attach cookie (otelgpu/kernel/attach.py): the function's number in the family's table, whether its return is left
 * alone, and above that what the family knows of the file.
 */
#define COOKIE_ENTRY_ONLY (1ULL << 32)
#define COOKIE_FILE_SHIFT 33

/* Whether the return of the call at hand will be seen. */
static __always_inline bool returns_of(__u64 cookie)
{
	return !entry_only && !(cookie & COOKIE_ENTRY_ONLY);
}

/* What a program on entries answers: as one of a session, it can decline the return. */
enum wanted { RETURN_WANTED = 0, RETURN_IGNORED = 1 };

/* -- The calls that a thread is inside of ----------------------------------------------------- */

/* What a family's struct for a call begins with. */
struct open_call {
	__u64 sp;	      /* at entry: where the return address is */
	__u64 return_address; /* of a call whose return is not probed */
	__u32 function;	      /* its number in the family's table */
	__u8 unreturned;      /* its return is not probed */
	__u8 silent; /* for the family: nothing is recorded of it, what is inside is inside all the same */
	__u8 reserved[2];
};

struct open_calls {
	void *first;  /* of `most` structs of `bytes` each; `most` is a power of two */
	__u32 *depth; /* how many are open */
	__u32 bytes;
	__u32 most;
};

#define OPEN_CALLS(first_, most_, depth_)                                   \
	({                                                                  \
		_Static_assert(!((most_) & ((most_)-1)), "a power of two"); \
		(struct open_calls){ .first = (first_),                     \
				     .depth = &(depth_),                    \
				     .bytes = sizeof(*(first_)),            \
				     .most = (most_) };                     \
	})

static __always_inline void *nth_call(struct open_calls calls, __u32 nth)
{
	__u64 index = nth;

	/* The compiler may not know the bound, or it leaves out what the verifier sees it by. */
	asm volatile("" : "+r"(index));
	return (char *)calls.first + (index & (calls.most - 1)) * calls.bytes;
}

/*
 * Whether function `outer` of the family is known to call `inner` of it. Asked only where returns are not probed: an
 * old return address may lie in its place for long.
 */
typedef bool (*known_to_call)(__u32 outer, __u32 inner);

static __always_inline bool is_under_way(const struct open_call *outer, __u64 sp, __u32 function,
					 known_to_call known)
{
	__u64 address = 0;

	if (outer->sp < sp)
		return false;
	if (outer->unreturned)
		return outer->sp > sp && known && known(outer->function, function) &&
		       is_still_there(outer->sp, outer->return_address);
	return !bpf_probe_read_user(&address, sizeof(address), (void *)outer->sp) &&
	       is_trampoline(address);
}

/*
 * At the entry of `function`, with the stack pointer at `sp`: the innermost call that the thread is still inside of, or
 * NULL. Calls that were left without a return are forgotten.
 */
static __always_inline void *innermost_call(struct open_calls calls, __u64 sp, __u32 function,
					    known_to_call known)
{
	__u32 depth = *calls.depth;

	if (__builtin_expect(!depth, 1))
		return NULL;
	for (__u32 i = 0; i < calls.most && depth; i++) {
		struct open_call *call = nth_call(calls, depth - 1);

		if (is_under_way(call, sp, function, known)) {
			*calls.depth = depth;
			return call;
		}
		if (!call->unreturned)
			count(COUNTER_CALL_ABANDONED);
		depth--;
	}
	*calls.depth = depth;
	return NULL;
}

static __always_inline __u64 return_address(struct pt_regs *regs)
{
	__u64 address = 0;

	read_user(&address, sizeof(address), (void *)regs->sp);
	return address;
}

/*
 * At the entry, after innermost_call(): one more call, of which only struct open_call is set. NULL, which is counted:
 * as many are open as are kept.
 */
static __always_inline void *open_call(struct open_calls calls, struct pt_regs *regs,
				       __u32 function, bool returns)
{
	__u32 depth = *calls.depth;
	struct open_call *call;

	if (depth >= calls.most) {
		count(COUNTER_CALLS_NESTED_TOO_DEEP);
		return NULL;
	}
	call = nth_call(calls, depth);
	call->sp = regs->sp;
	call->function = function;
	call->unreturned = !returns;
	call->silent = 0;
	if (!returns)
		call->return_address = return_address(regs);
	*calls.depth = depth + 1;
	return call;
}

/*
 * At the return of `function`: the call that has returned, which stays as it is until the next one is opened; NULL if
 * it was inside another one, or not opened. `all`: each entry of it opens a call or is inside one, so that a return
 * without either is of a call that began before the probes were there, which is counted.
 */
static __always_inline void *close_call(struct open_calls calls, struct pt_regs *regs,
					__u32 function, bool all)
{
	__u64 sp = regs->sp - sizeof(__u64); /* what it was at entry */
	__u32 depth = *calls.depth;

	for (__u32 i = 0; i < calls.most && depth; i++) {
		struct open_call *call = nth_call(calls, depth - 1);

		if (call->sp > sp || (call->sp == sp && call->function != function))
			return NULL; /* it was inside this one */
		depth--;
		*calls.depth = depth;
		if (call->unreturned)
			continue;
		if (call->sp == sp)
			return call;
		count(COUNTER_CALL_ABANDONED);
	}
	if (all)
		count(COUNTER_RETURN_WITHOUT_ENTRY);
	return NULL;
}

/* -- Records that are kept from the entry to the return ---------------------------------------- */

/* At the entry, into a zeroed head; the caller reads the clock, last thing before the call itself. */
static __always_inline void begin_head(struct record_head *head, __u16 kind, struct identity who)
{
	head->tgid = who.tgid;
	head->tid = who.tid;
	head->kind = kind;
}

/* Into the ring, of `bytes` with `head` at its beginning. */
static __always_inline void submit_call(struct record_head *head, __u64 bytes, __u64 end_ns,
					bool returned)
{
	head->duration_ns = end_ns - head->time_ns;
	head->cgroup_id = bpf_get_current_cgroup_id();
	head->cpu = (__u16)bpf_get_smp_processor_id();
	head->returned = returned;
	output(head, bytes);
}

/* -- Programs ----------------------------------------------------------------------------------- */

/* A row's symbol, for a list of functions in a section's name. */
#define NAME(symbol, ...) #symbol ","

/*
 * The programs of a list of functions: one on entries, which runs `enter(regs, session)`, and one on returns, which runs
 * `leave(regs)`. What `enter` answers is an enum wanted, with STACK_WANTED or without.
 */
#define ENTRIES_AND_RETURNS(name, functions, enter, leave) \
	SEC("uprobe/" functions)                           \
	int name##_entry(struct pt_regs *regs)             \
	{                                                  \
		int answer;                                \
                                                           \
		ON_OWN_STACK(regs);                        \
		answer = enter(regs, false);               \
		HAND_ON(regs, answer);                     \
		return 0;                                  \
	}                                                  \
                                                           \
	SEC("uretprobe/" functions)                        \
	int name##_return(struct pt_regs *regs)            \
	{                                                  \
		ON_OWN_STACK(regs);                        \
		return leave(regs);                        \
	}

/* The same, and one for both where the kernel has sessions: of the three, user space loads what is needed. */
#define CALL_PROGRAMS(name, functions, enter, leave) \
	SEC("usession/" functions)                   \
	int name##_session(struct pt_regs *regs)     \
	{                                            \
		int answer;                          \
                                                     \
		ON_OWN_STACK_IN_SESSION(regs);       \
		if (is_return(regs))                 \
			return leave(regs);          \
		answer = enter(regs, true);          \
		HAND_ON_IN_SESSION(regs, answer);    \
		return answer & RETURN_IGNORED;      \
	}                                            \
                                                     \
	ENTRIES_AND_RETURNS(name, functions, enter, leave)

/*
 * spec_of(api): a function's row in the family's `specs`, NULL of no function; rows begin at `first`. Linux 6.1 forgets
 * the bound of a number that is spilled, but not that of a pointer: the compiler is to make the one of the other here,
 * and not later.
 */
#define SPEC_OF(first)                                               \
	static __always_inline const struct spec *spec_of(__u32 api) \
	{                                                            \
		const struct spec *spec;                             \
		__u64 row = api;                                     \
                                                                     \
		asm volatile("" : "+r"(row));                        \
		if (row < (first) || row >= API_COUNT)               \
			return NULL;                                 \
		spec = &specs[row];                                  \
		asm volatile("" : "+r"(spec));                       \
		return spec;                                         \
	}

#endif
