// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * A family that is nothing but bpf/lib/calls.h: each call is recorded, with the function that it was made inside of, and
 * outermost ones have stacks.
 */
#include "../../../bpf/lib/calls.h"

#define FUNCTIONS(CALL) \
	CALL(outer) CALL(inner) CALL(jumps) CALL(jumped_to) CALL(leaves) CALL(recurses)
#define API(symbol) API_##symbol,

enum pairing_kind { PAIRING_CALL = 1 };
enum pairing_api { API_NONE = 0, FUNCTIONS(API) API_COUNT };

struct pairing_call {
	struct record_head head;
	__u64 argument;
	__s32 status;
	__u16 api;
	__u16 inside; /* function that it was made inside of; 0: none that is open */
};

enum call_family { CALL_FAMILY = 15 };
enum pairing_counter { COUNTER_RECURSIONS = COUNTER_COUNT }; /* a function inside itself */

RECORD(pairing_call);
ENUM(pairing_kind);
ENUM(pairing_api);
ENUM(call_family);
ENUM(pairing_counter);

#define NESTED 4

struct call {
	struct open_call open;
	struct pairing_call record;
};

struct thread {
	struct call calls[NESTED];
	__u32 depth;
	__u32 reserved;
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct thread);
} threads SEC(".maps");

static __always_inline bool calls_inner(__u32 outer, __u32 inner)
{
	return outer == API_outer && inner == API_inner;
}

static __always_inline int enter(struct pt_regs *regs, bool session)
{
	__u64 cookie = bpf_get_attach_cookie(regs);
	bool returns = returns_of(cookie);
	const struct open_call *within;
	__u32 api = (__u32)cookie;
	struct open_calls calls;
	struct thread *thread;
	struct identity who;
	struct call *call;
	int answer;

	(void)session;
	if (!in_scope(&who))
		return RETURN_IGNORED;
	thread = bpf_task_storage_get(&threads, bpf_get_current_task_btf(), NULL,
				      BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!thread)
		return RETURN_IGNORED;
	calls = OPEN_CALLS(thread->calls, NESTED, thread->depth);
	within = innermost_call(calls, regs->sp, api, calls_inner);
	if (within && within->function == api)
		count(COUNTER_RECURSIONS);
	call = open_call(calls, regs, api, returns);
	if (!call)
		return RETURN_IGNORED;
	__builtin_memset(&call->record, 0, sizeof(call->record));
	begin_head(&call->record.head, PAIRING_CALL, who);
	call->record.api = (__u16)api;
	call->record.inside = within ? (__u16)within->function : 0;
	call->record.argument = ARGUMENT_1(regs);
	call->record.head.time_ns = bpf_ktime_get_ns();
	answer = returns ? RETURN_WANTED : RETURN_IGNORED;
	if (!within && wants_stack(PAIRING_CALL))
		answer = ask_for_stack(CALL_FAMILY, api, call->record.head.time_ns, 0, !returns,
				       answer);
	if (!returns)
		submit_call(&call->record.head, sizeof(call->record), call->record.head.time_ns,
			    false);
	return answer;
}

static __always_inline int leave(struct pt_regs *regs)
{
	__u64 end_ns = bpf_ktime_get_ns();
	__u32 api = (__u32)bpf_get_attach_cookie(regs);
	struct thread *thread;
	struct call *call;

	thread = bpf_task_storage_get(&threads, bpf_get_current_task_btf(), NULL, 0);
	if (!thread)
		return 0;
	call = close_call(OPEN_CALLS(thread->calls, NESTED, thread->depth), regs, api, true);
	if (!call)
		return 0;
	if (wants_stack(PAIRING_CALL))
		call->record.head.time_ns =
			start_with_stack(CALL_FAMILY, call->record.head.time_ns);
	call->record.status = (__s32)RESULT(regs);
	submit_call(&call->record.head, sizeof(call->record), end_ns, true);
	return 0;
}

CALL_PROGRAMS(call, "pairing:" FUNCTIONS(NAME), enter, leave)

char LICENSE[] SEC("license") = "Dual BSD/GPL";
