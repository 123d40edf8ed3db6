// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Family nccl: calls of the NCCL API, entry paired with return per thread. What is observed and how it is
 * read is the table in calls.h; a program knows by its attach cookie for which function it runs (enum
 * nccl_api), and how the communicators of that copy of the library are laid out.
 *
 * A call made inside another on the same thread (ncclBcast calls ncclBroadcast; lib/calls.h) is part of that one
 * and is not recorded.
 */
#include "groups.h"
#include "../lib/calls.h"
#include <bpf/bpf_tracing.h>

RECORD(nccl_call);
RECORD(nccl_communicator);
ENUM(nccl_kind);
ENUM(nccl_api);
ENUM(nccl_shape);
ENUM(nccl_function);
ENUM(nccl_sequence);
ENUM(call_family);

/* -- Entry and return ------------------------------------------------------------------------- */

/* Where returns are not probed. */
static __always_inline bool calls_another(__u32 outer, __u32 inner)
{
	return outer == API_ncclBcast && inner == API_ncclBroadcast;
}

static __always_inline struct reporting reporting_of(const struct call *call, __u64 time_ns)
{
	struct reporting reporting = {
		.address = call->record.communicator,
		.time_ns = time_ns,
		.who = { .tgid = call->record.head.tgid, .tid = call->record.head.tid },
		.status = call->record.status,
		.api = call->record.api,
		.layout = call->layout,
	};

	return reporting;
}

/* What the communicator says of itself. Of its own for the stack, as finish_making(). */
__attribute__((noinline)) int look_into(struct call *call, __u32 api, __u64 now_ns)
{
	struct communicator_read found = { .rank = -1, .ranks = -1, .device = -1 };
	const struct spec *spec = spec_of(api);
	const struct nccl_layout *layout;
	struct nccl_call *record;
	struct reporting reporting;
	__u32 index;

	if (!call || !spec)
		return 0;
	reporting = reporting_of(call, now_ns);
	record = &call->record;
	index = call->layout;
	if (spec->shape == SHAPE_ENDED) {
		reporting.ended = 1;
		read_communicator(&found, reporting.address, index, 0, 0);
		see_ended(&reporting, &found);
	} else {
		see_communicator(&found, &reporting);
	}
	record->hash = found.hash;
	record->rank = found.rank;
	record->device = (__s16)found.device;
	layout = bpf_map_lookup_elem(&layouts, &index);
	if (layout && found.hash && spec->kind == NCCL_COLLECTIVE)
		fill_sequence(call, layout, spec->function, found.ranks);
	return 0;
}

/* Above COOKIE_FILE_SHIFT the attach cookie says how communicators are laid out. */
static __always_inline int enter(struct pt_regs *regs, bool session)
{
	__u64 cookie = bpf_get_attach_cookie(regs);
	__u32 api = (__u32)cookie;
	const struct spec *spec = spec_of(api);
	bool returns = returns_of(cookie);
	struct open_calls calls;
	struct thread *thread;
	struct identity who;
	int answer = RETURN_WANTED;
	struct call *call;
	__u64 now_ns;

	(void)session;
	if (!spec || !in_scope(&who))
		return RETURN_IGNORED;
	thread = this_thread(true);
	if (!thread)
		return RETURN_IGNORED;
	calls = OPEN_CALLS(&thread->call, 1, thread->depth);
	if (innermost_call(calls, regs->sp, api, calls_another))
		return RETURN_IGNORED;
	if (spec->shape == SHAPE_GROUP_BEGUN) {
		begin_group(thread);
		return RETURN_IGNORED;
	}
	if (spec->shape == SHAPE_GROUP_ENDED && thread->group.depth != 1) {
		if (thread->group.depth)
			thread->group.depth--;
		else
			count(COUNTER_GROUP_BEGIN_UNSEEN);
		return RETURN_IGNORED;
	}
	if (!returns && spec->shape == SHAPE_ASYNC_ERROR)
		return RETURN_IGNORED; /* the answer is known at the return only */
	now_ns = bpf_ktime_get_ns();
	call = &thread->call;
	__builtin_memset(call, 0, sizeof(*call));
	open_call(calls, regs, api, returns);
	call->layout = (cookie >> COOKIE_FILE_SHIFT) & (NCCL_LAYOUTS - 1);
	begin_head(&call->record.head, spec->kind, who);
	call->record.api = (__u16)api;
	call->record.rank = -1;
	call->record.device = -1;
	read_words(&thread->words, regs, spec->stack);
	fill_slots(&call->record, &thread->words, spec);
	if (spec->shape)
		fill_shape(call, &thread->words, spec->shape);
	if (spec->shape == SHAPE_ASYNC_ERROR)
		return RETURN_WANTED;
	fill_context(&call->record.head);
	if (call->record.communicator)
		look_into(call, api, now_ns);
	if (makes(spec->shape)) {
		call->record.extra = call->made.ranks > 0 ? call->made.ranks : 0;
		if (!call->record.communicator)
			call->record.rank = call->made.rank;
	}
	if (spec->shape == SHAPE_GROUP_ENDED)
		thread->group.depth = 0;
	else if (thread->group.depth)
		join_group(&thread->group, call, spec);
	/* Last thing before the call itself: the clock is read as late as can be. */
	call->record.head.time_ns = bpf_ktime_get_ns();
	if (!returns)
		answer = RETURN_IGNORED;
	if (wants_stack(spec->kind)) {
		bool ends_group = spec->shape == SHAPE_GROUP_ENDED;

		answer = ask_for_stack(CALL_FAMILY, api,
				       ends_group ? thread->group.time_ns
						  : call->record.head.time_ns,
				       0, ends_group || !returns, answer);
	}
	if (returns)
		return answer;
	now_ns = call->record.head.time_ns;
	if (spec->shape == SHAPE_GROUP_ENDED)
		fill_group(&call->record, &thread->group);
	submit_call(&call->record.head, sizeof(call->record), now_ns, false);
	return answer;
}

/* A group has ended: its record, after those of its members. */
static __always_inline void finish_group(struct thread *thread, __u64 end_ns)
{
	struct call *call = &thread->call;
	const struct nccl_layout *layout;
	__u32 index = call->layout;

	fill_group(&call->record, &thread->group);
	layout = bpf_map_lookup_elem(&layouts, &index);
	if (layout && layout->known && call->record.hash && thread->group.collectives &&
	    graphs_of(layout, call->record.communicator) > thread->group.graphs)
		call->record.sequence_source = NCCL_SEQUENCE_CAPTURED;
	if (may_have_worked(call->record.status))
		report_pendings(thread, end_ns, call->record.status);
}

/* Of its own for the stack, as finish_making(). */
__attribute__((noinline)) int finish_async_error(struct call *call, __u64 end_ns)
{
	struct reporting reporting;
	__s32 error = 0;

	if (!call || call->record.status || !call->out ||
	    !read_user(&error, sizeof(error), (void *)call->out))
		return 0;
	reporting = reporting_of(call, end_ns);
	if (!may_have_worked(error) && reporting.address)
		see_async_error(&reporting, error);
	return 0;
}

static __always_inline int leave(struct pt_regs *regs)
{
	__u64 end_ns = bpf_ktime_get_ns();
	__u32 api = (__u32)bpf_get_attach_cookie(regs);
	const struct nccl_layout *layout;
	const struct spec *spec = spec_of(api);
	struct thread *thread;
	struct call *call;
	__u32 index;

	thread = this_thread(false);
	if (!thread || !spec)
		return 0; /* out of scope at entry */
	/* Ends of inner groups are not waited for. */
	call = close_call(OPEN_CALLS(&thread->call, 1, thread->depth), regs, api,
			  spec->shape != SHAPE_GROUP_ENDED);
	if (!call)
		return 0;
	call->record.status = (__s32)RESULT(regs);
	if (wants_stack(spec->kind))
		call->record.head.time_ns =
			start_with_stack(CALL_FAMILY, call->record.head.time_ns);
	index = call->layout;
	if (spec->shape == SHAPE_ASYNC_ERROR) {
		finish_async_error(call, end_ns);
		return 0;
	}
	if (spec->shape == SHAPE_GROUP_ENDED)
		finish_group(thread, end_ns);
	else if (makes(spec->shape))
		finish_making(thread, spec->shape, end_ns);
	layout = bpf_map_lookup_elem(&layouts, &index);
	if (layout && spec->kind == NCCL_COLLECTIVE && call->record.hash && !call->record.status &&
	    !call->record.group)
		check_sequence(call, layout, spec->function);
	submit_call(&call->record.head, sizeof(call->record), end_ns, true);
	return 0;
}

/* -- Programs ------------------------------------------------------------------------------ */

#define PAIRS	"libnccl:" NCCL_PAIRS(NAME)
#define ENTRIES "libnccl:" NCCL_ENTRIES(NAME)

CALL_PROGRAMS(call, PAIRS, enter, leave)

SEC("uprobe/" ENTRIES)
int call_reported_at_entry(struct pt_regs *regs)
{
	ON_OWN_STACK(regs);
	enter(regs, false);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
