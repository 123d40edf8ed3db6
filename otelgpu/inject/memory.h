/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory that an observed process shares with the agent, who makes it, sizes
 * it and seals the size: a header, an array of struct inject_thread, and as many
 * rings. A ring has one writer, the thread that owns it, and one reader, the
 * agent. Its records have the framing of a BPF ring buffer: an 8-byte header
 * (length, with DISCARD for filling), then the record. No record wraps: the rest
 * of the ring is filled with one that is discarded.
 *
 * The agent reads the layout from this file's BTF (memory.c).
 */
#ifndef OTELGPU_MEMORY_H
#define OTELGPU_MEMORY_H

#include "lib/record.h"
#include "cupti.h"

#define INJECT_RECORD_HEADER	    8
#define INJECT_DISCARD		    (1U << 30)
#define INJECT_COUNTERS		    16 /* room for more than there are: two cache lines */
#define INJECT_DEVICE_TIME_COUNTERS 32

enum inject_number {
	INJECT_MAGIC = 0x4f54474a, /* "OTGJ" */
	INJECT_VERSION = 2,
	INJECT_HEADER_BYTES = 4096,
};

enum inject_heard {
	HEARD_LAST = 1,
};

/* What the function that a live process is made to call is given: live.c. */
struct live_request {
	__u32 magic;
	__u32 version;
	__u32 per_second;  /* OTELGPU_INJECT_CUPTI_RATE; 0: the default */
	__u32 buffers_mib; /* OTELGPU_INJECT_CUPTI_MIB; 0: the default */
};

enum live_answer {
	LIVE_NONE = 0,
	LIVE_OBSERVED = 1,	/* from now on, until the agent goes */
	LIVE_ALREADY = 2,	/* an agent is there already: nothing was changed */
	LIVE_NOT_CONNECTED = 3, /* the agent has gone, or refused */
	LIVE_MALFORMED = 4,	/* the request is of another version */
	LIVE_CUPTI = 64, /* and enum cupti_counter: why there is no device time; nothing is left */
};

/* Named as the counters of the BPF programs (bpf/lib/counters.h), where both can happen. */
enum inject_counter {
	INJECT_SUBMITTED = 0,		/* records given to the ring: not a loss */
	INJECT_RING_FULL = 1,		/* no room: the record is lost */
	INJECT_CALL_ABANDONED = 2,	/* entered, never returned (longjmp, exception) */
	INJECT_THREAD_STATE_FAILED = 3, /* no ring was free: the call is not recorded */
	INJECT_NOT_CONNECTED = 4,	/* made before the agent had answered: not recorded */
	INJECT_COPIES_EXHAUSTED = 5, /* a function's address was given out that is not observed */
	INJECT_ARGUMENT_UNREADABLE = 6, /* a pointer that cannot be one: the field is zero */
	INJECT_BATCH_CUT = 7,		/* copies of a batch beyond those whose sizes are summed */
	INJECT_CONTEXT_TABLE_FULL = 8,	/* a context whose device is not remembered */
	INJECT_COUNTER_COUNT = 9,
};

/* First message of a process, answered by the memory's descriptor when all of it is right. */
struct inject_hello {
	__u32 magic;
	__u32 version;
	__u64 digest; /* of the functions' names in the order of their numbers: FNV-1a */
};

/* At the beginning of the memory. Written by the agent before it gives the memory away. */
struct inject_header {
	__u32 magic;
	__u32 version;
	__u32 threads;	  /* rings */
	__u32 ring_bytes; /* of each; a power of two */
	__u64 rings;	  /* offset of the first */
	__u64 heard_ns; /* CLOCK_MONOTONIC when the agent last looked; HEARD_LAST: it will not again */
	__u64 counters[INJECT_COUNTERS]; /* enum inject_counter; what belongs to no thread */
	__u64 device_time[INJECT_DEVICE_TIME_COUNTERS]; /* enum cupti_counter */
};

struct inject_thread {
	__u64 consumer; /* bytes read so far; written by the agent */
	__u64 padding[7];
	__u64 producer; /* bytes written so far; from here on written by the thread */
	__u32 owner;	/* its tid in its own PID namespace; 0: free */
	__u32 reserved;
	__u64 more_padding[6];
	__u64 counters[INJECT_COUNTERS]; /* enum inject_counter, of all owners so far */
};

_Static_assert(CUPTI_COUNTER_COUNT <= INJECT_DEVICE_TIME_COUNTERS, "room for all");
_Static_assert(sizeof(struct inject_thread) == 256,
	       "reader and writer on cache lines of their own");

#endif
