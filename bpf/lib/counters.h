/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Every branch that drops, skips or fails to read adds to one of these. A family that has reasons of its own has an
 * enum <family>_counter of them, COUNTER_ and the reason, from COUNTER_COUNT on.
 */
#ifndef OTELGPU_COUNTERS_H
#define OTELGPU_COUNTERS_H

#include "record.h"
#include <bpf/bpf_helpers.h>

enum counter {
	COUNTER_SUBMITTED = 0,		   /* records given to the ring: not a loss */
	COUNTER_RING_FULL = 1,		   /* no room: the record is lost */
	COUNTER_ARGUMENT_UNREADABLE = 2,   /* user memory fault: the field is zero */
	COUNTER_CALLS_NESTED_TOO_DEEP = 3, /* the call is not recorded */
	COUNTER_CALL_ABANDONED = 4,	   /* entered, never returned (longjmp, exception) */
	COUNTER_RETURN_WITHOUT_ENTRY = 5,  /* probed while the call was under way */
	COUNTER_THREAD_STATE_FAILED = 6,   /* no memory for the thread's state */
	COUNTER_CONNECTION_TABLE_FULL = 7, /* the connection is not followed */
	COUNTER_CONNECTION_NOT_HTTP = 8, /* its first bytes start no known protocol; not followed */
	COUNTER_CONNECTION_TLS = 9,	 /* TLS: not followed here, but where it is in clear */
	COUNTER_BYTES_NOT_CAPTURED = 10, /* body bytes beyond the bound */
	COUNTER_VECTORS_NOT_CAPTURED = 11,  /* iovecs beyond the bound */
	COUNTER_SOCKET_UNREADABLE = 12,	    /* addresses of a socket could not be read */
	COUNTER_FILE_UNREADABLE = 13,	    /* a mapped file could not be identified */
	COUNTER_SCOPE_TABLE_FULL = 14,	    /* a child process could not be followed */
	COUNTER_DETAIL_SHED = 15,	    /* calls counted instead of recorded: overload */
	COUNTER_CALL_TABLE_FULL = 16,	    /* ... without saying of which process */
	COUNTER_CONTEXT_TABLE_FULL = 17,    /* the device of a context is unknown */
	COUNTER_BATCH_CUT = 18,		    /* copies of a batch beyond the bound: their bytes */
	COUNTER_GRAPH_TABLE_FULL = 19,	    /* the nodes of a graph are unknown */
	COUNTER_CONTEXT_UNREADABLE = 20,    /* a thread's published context: the record has none */
	COUNTER_PUBLISHERS_FULL = 21,	    /* where a child's threads publish is not known */
	COUNTER_CLOSE_UNSEEN = 22,	    /* a descriptor was another connection's before */
	COUNTER_QUEUE_PAIR_TABLE_FULL = 23, /* its posts and completions are not counted */
	COUNTER_SCATTER_CUT = 24,     /* entries of a work request beyond the bound: their bytes */
	COUNTER_COMPLETIONS_CUT = 25, /* of one poll, beyond the bound */
	COUNTER_COMMUNICATOR_LAYOUT_UNKNOWN =
		26, /* a call's communicator is not read: version not known */
	COUNTER_COMMUNICATOR_UNREADABLE = 27,  /* ... its memory is not there, or no longer */
	COUNTER_COMMUNICATOR_IMPLAUSIBLE = 28, /* ... it reads as no communicator does */
	COUNTER_COMMUNICATOR_TABLE_FULL = 29,  /* it is reported again at its next use */
	COUNTER_COMMUNICATORS_CUT =
		30, /* made in one call or group, beyond the bound: reported at first use */
	COUNTER_GROUP_BEGIN_UNSEEN = 31, /* ncclGroupEnd of a group that began before the probes */
	COUNTER_STACK_BUSY =
		32, /* the thread's stack was being taken already: the sample has none */
	COUNTER_STACK_EMPTY = 33,	 /* no frame could be read: the sample has no stack */
	COUNTER_SYSCALL_TABLE_FULL = 34, /* quick calls are reported one by one, without a stack */
	COUNTER_BLOCK_TABLE_FULL = 35,	 /* requests under way: the request is not reported */
	COUNTER_PYTHON_THREADS_CUT =
		36, /* too many Python threads to look at: the stack has no Python frames yet */
	/* Of stacks that end before their outermost frame: in the order of enum stack_end. */
	COUNTER_STACK_TOO_DEEP = 37,  /* a sample's stack has more frames than are kept */
	COUNTER_STACK_NOT_READY = 38, /* no unwind table yet: by frame pointers as far as they go */
	COUNTER_STACK_NO_TABLE = 39,  /* a file without unwind table: likewise */
	COUNTER_STACK_NO_ROW = 40,    /* the unwind table has nothing for a place of the stack */
	COUNTER_STACK_UNREADABLE = 41, /* memory of a sample's stack could not be read */
	COUNTER_STACK_UNMAPPED = 42,   /* code that was made at run time, without frame pointers */
	COUNTER_STACK_PYTHON_DAMAGED = 43, /* Python frames that could not be followed */
	COUNTER_WAIT_STACK_ASSUMED =
		44, /* a wait whose stack was found at this place before: callers may be others */
	COUNTER_ALLOCATOR_TABLE_FULL = 45, /* a device's totals of tensor memory are not kept */
	COUNTER_ALLOCATOR_IMPLAUSIBLE =
		46, /* a report of tensor memory with sizes that none can have */
	COUNTER_TASK_UNREADABLE =
		47, /* what a thread runs, on the way to it: the record has no task */
	COUNTER_TASK_PROCESSES_FULL = 48, /* how a child's tasks are reached is not known */
	COUNTER_COUNT = 49,
};
ENUM(counter);

#define COUNTERS 64 /* those of a family among them */

/* counter -> count, per CPU; read and summed by user space. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, COUNTERS);
	__type(key, __u32);
	__type(value, __u64);
} counters SEC(".maps");

static __always_inline void count_many(__u32 which, __u64 amount)
{
	__u64 *value = bpf_map_lookup_elem(&counters, &which);

	/* Programs that run for processes are preempted by each other, on one CPU too. */
	if (value)
		__sync_fetch_and_add(value, amount);
}

static __always_inline void count(__u32 which)
{
	count_many(which, 1);
}

#endif
