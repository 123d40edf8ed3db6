/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What a call means beside its arguments: its number, its group, the communicators that it makes. */
#ifndef OTELGPU_NCCL_GROUPS_H
#define OTELGPU_NCCL_GROUPS_H

#include "slots.h"

/* -- Sequence numbers --------------------------------------------------------------------------- */

static __always_inline __s32 graphs_of(const struct nccl_layout *layout, __u64 communicator)
{
	__s32 graphs = 0;

	if (layout->graphs_at &&
	    !read_at(&graphs, sizeof(graphs), communicator + layout->graphs_at))
		count(COUNTER_COMMUNICATOR_UNREADABLE);
	return graphs;
}

static __always_inline bool read_sequence(__u64 *sequence, const struct nccl_layout *layout,
					  __u64 communicator, __u8 function)
{
	if (function >= layout->sequences)
		return false;
	if (read_at(sequence, sizeof(*sequence),
		    communicator + layout->sequences_at + 8ULL * function))
		return true;
	count(COUNTER_COMMUNICATOR_UNREADABLE);
	return false;
}

/* At the entry, of a communicator that was read. */
static __always_inline void fill_sequence(struct call *call, const struct nccl_layout *layout,
					  __u8 function, __s32 ranks)
{
	struct nccl_call *record = &call->record;

	call->graphs = graphs_of(layout, record->communicator);
	if (!record->count && record->datatype != NCCL_NO_TYPE) {
		record->sequence_source = NCCL_SEQUENCE_CAPTURED;
	} else if (ranks > 1 &&
		   read_sequence(&record->sequence, layout, record->communicator, function)) {
		record->sequence_source = NCCL_SEQUENCE_FUNCTION;
		call->counted = 1;
	}
}

/* At the return of a call that succeeded and is in no group: whether it has been what it was taken for. */
static __always_inline void check_sequence(struct call *call, const struct nccl_layout *layout,
					   __u8 function)
{
	struct nccl_call *record = &call->record;
	__u64 after = 0;

	if (graphs_of(layout, record->communicator) > call->graphs) {
		record->sequence_source = NCCL_SEQUENCE_CAPTURED;
	} else if (call->counted &&
		   (!read_sequence(&after, layout, record->communicator, function) ||
		    after == record->sequence)) {
		record->sequence = 0;
		record->sequence_source = NCCL_SEQUENCE_UNKNOWN;
	}
}

/* -- Groups ------------------------------------------------------------------------------------- */

static __always_inline void begin_group(struct thread *thread)
{
	struct group *group = &thread->group;

	if (group->depth >= GROUP_DEEPEST) {
		count(COUNTER_CALLS_NESTED_TOO_DEEP);
		return;
	}
	if (group->depth++)
		return;
	group->ordinal++;
	group->calls = 0;
	group->pendings = 0;
	group->communicator = 0;
	group->hash = 0;
	group->stream = 0;
	group->kept = 1;
	group->collectives = 0;
	group->rank = -1;
	group->device = -1;
	group->time_ns = bpf_ktime_get_ns();
}

static __always_inline void join_group(struct group *group, struct call *call,
				       const struct spec *spec)
{
	struct nccl_call *record = &call->record;

	record->group = group->ordinal;
	if (group->calls++ == 0) {
		group->communicator = record->communicator;
		group->hash = record->hash;
		group->rank = record->rank;
		group->device = record->device;
		group->stream = record->stream;
		group->graphs = call->graphs;
	} else if (group->communicator != record->communicator) {
		group->kept = 0;
	}
	if (spec->kind == NCCL_COLLECTIVE)
		group->collectives = 1;
}

static __always_inline void fill_group(struct nccl_call *record, const struct group *group)
{
	record->head.time_ns = group->time_ns;
	record->group = group->ordinal;
	record->extra = group->calls;
	if (!group->kept)
		return;
	record->communicator = group->communicator;
	record->hash = group->hash;
	record->rank = group->rank;
	record->device = group->device;
	record->stream = group->stream;
}

/* -- Communicators made --------------------------------------------------------------------------- */

static __always_inline void report_made(const struct pending *made, struct identity who,
					__u64 address, __u64 begun_ns, __u64 time_ns, __s32 status,
					__u8 layout, struct nccl_call *record)
{
	struct communicator_known known = {
		.parent = made->parent,
		.identity = made->identity,
		.rank = made->rank,
		.ranks = made->ranks,
		.color = made->color,
	};
	struct reporting reporting = {
		.address = address,
		.time_ns = time_ns,
		.begun_ns = begun_ns,
		.who = who,
		.status = status,
		.api = made->api,
		.layout = layout,
	};

	if (!address)
		return; /* this rank is in none of the new ones */
	see_made(&reporting, &known);
	if (record && !record->communicator) {
		record->communicator = address;
		record->hash = known.hash;
		record->rank = known.rank;
		record->device = (__s16)known.device;
	}
}

/* At the end of a group. Of its own for the verifier. */
__attribute__((noinline)) int report_pendings(struct thread *thread, __u64 time_ns, __s32 status)
{
	struct identity who;

	if (!thread)
		return 0;
	who.tgid = thread->call.record.head.tgid;
	who.tid = thread->call.record.head.tid;
	for (__u32 i = 0; i < PENDING; i++) {
		if (i >= thread->group.pendings)
			break;
		report_made(&thread->pending[i], who, user_word(thread->pending[i].at),
			    thread->group.time_ns, time_ns, status, thread->call.layout, NULL);
	}
	thread->group.pendings = 0;
	return 0;
}

/* All of ncclCommInitAll: rank by rank. */
static __always_inline void report_all(struct call *call, struct identity who, __u64 time_ns)
{
	for (__s32 i = 0; i < PENDING; i++) {
		if (i >= call->made.ranks)
			return;
		call->made.rank = i;
		report_made(&call->made, who, user_word(call->out + 8ULL * i),
			    call->record.head.time_ns, time_ns, call->record.status, call->layout,
			    &call->record);
	}
	if (call->made.ranks > PENDING)
		count_many(COUNTER_COMMUNICATORS_CUT, call->made.ranks - PENDING);
}

#define RESULT_IN_PROGRESS 7 /* ncclInProgress: a non-blocking communicator goes on by itself */

static __always_inline bool may_have_worked(__s32 status)
{
	return !status || status == RESULT_IN_PROGRESS;
}

/*
 * At the return of a call that makes communicators. In a group they are there when it ends. Of its own:
 * a program and all functions that it is in share 512 bytes of stack.
 */
__attribute__((noinline)) int finish_making(struct thread *thread, __u32 shape, __u64 end_ns)
{
	struct nccl_call *record;
	struct identity who;
	struct call *call;

	if (!thread)
		return 0;
	call = &thread->call;
	record = &call->record;
	who.tgid = record->head.tgid;
	who.tid = record->head.tid;
	if (!may_have_worked(record->status))
		return 0;
	if (shape == SHAPE_MADE_ALL) {
		report_all(call, who, end_ns);
	} else if (!thread->group.depth) {
		report_made(&call->made, who, user_word(call->made.at), record->head.time_ns,
			    end_ns, record->status, call->layout, record);
	} else if (thread->group.pendings < PENDING) {
		thread->pending[thread->group.pendings & (PENDING - 1)] = call->made;
		thread->group.pendings++;
	} else {
		count(COUNTER_COMMUNICATORS_CUT);
	}
	return 0;
}

#endif
