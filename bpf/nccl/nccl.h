/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Records of family nccl. A call is one struct nccl_call, laid out as an operation
 * (otelgpu/model/operations.py) so that decoding is looking at it differently; what is known of a
 * communicator is distinguished, whenever it is learnt or changes. Which function has which argument
 * where is the table in calls.h.
 */
#ifndef OTELGPU_NCCL_H
#define OTELGPU_NCCL_H

#include "../lib/record.h"
#include "calls.h"

/* The first four are those of OperationKind (otelgpu/model/operations.py): a test compares them. */
enum nccl_kind {
	NCCL_COLLECTIVE = 14,
	NCCL_POINT_TO_POINT = 15,
	/* communicator: made, split, shrunk, grown, asked, aborted or destroyed */
	NCCL_COMMUNICATOR_CALL = 16,
	/* ncclGroupStart to ncclGroupEnd, outermost; extra: calls in it */
	NCCL_GROUP = 17,
	NCCL_COMMUNICATOR = 18, /* struct nccl_communicator */
};

/*
 * What `sequence` of a collective is, as SequenceSource of otelgpu/model/operations.py.
 *
 * The library counts a collective when its launch is made, which is inside the call if that is in no group
 * and the communicator is blocking. Then `sequence` is the call's own number, from 0, on every rank.
 *
 * Inside a group (`group` is not 0) nothing is launched before the group's end: all its members of one
 * communicator and function report the same number, that of the first of them; the others follow it in
 * the order of their calls. Non-blocking communicators launch in a thread of the library's: as long as that
 * is behind, the number is one that was reported before, and is a lower bound. Who numbers them takes the
 * greater of the number reported and the last one given plus one.
 */
enum nccl_sequence {
	/*
	 * `sequence` is 0: the communicator cannot be read, its version keeps no count (before 2.26), this
	 * function has none (AlltoAll, Gather, Scatter, point to point), it has one rank, or it has returned
	 * without having been counted.
	 */
	NCCL_SEQUENCE_UNKNOWN = 0,
	NCCL_SEQUENCE_FUNCTION = 1, /* collectives of this function */
	NCCL_SEQUENCE_OPERATIONS =
		2, /* not reported: opCount moves only where a proxy is started */
	/*
	 * The stream is being captured into a graph: the call is no collective of its own and has not moved
	 * the count. Of a group this is reported by its own record, after its members'. Known only where the
	 * layout says where the communicator counts its graphs. Also: no elements, nothing is moved.
	 */
	NCCL_SEQUENCE_CAPTURED = 3,
};

struct nccl_call {
	struct record_head head;
	__u64 communicator; /* ncclComm_t, an address; groups: that of all members, 0 if they differ */
	__u64 hash;	    /* its commHash, the same on every rank; 0: not known */
	__u64 count;	    /* elements; user space makes bytes of it */
	__u64 stream;
	union {
		__u64 sequence; /* collectives: see enum nccl_sequence */
		__u64 extra;	/* groups: calls in it; communicators made: ranks */
	};
	__u32 group;   /* ordinal of the thread's outermost group, from 1; 0: in none */
	__s32 rank;    /* -1: not known */
	__s32 peer;    /* root, or the other rank; -1: none */
	__u8 datatype; /* ncclDataType_t; NCCL_NO_TYPE: the call has none */
	__u8 reduction; /* ncclRedOp_t, from 5 on the program's own; NCCL_NO_REDUCTION: it has none */
	__u8 sequence_source; /* enum nccl_sequence */
	__u8 reserved;
	__s32 status; /* ncclResult_t */
	__u16 api;    /* enum nccl_api */
	__s16 device; /* cudaDev of the communicator, -1: not known */
};

/* Whose calls they are, in samples of a profile: lib/call_stacks.h. */
enum call_family { CALL_FAMILY = 2 };

#define NCCL_NO_TYPE	      255
#define NCCL_NO_REDUCTION     255
#define NCCL_REDUCTION_OF_OWN 5 /* ncclNumOps: numbers from here on are reported as this one */

/* What is known of a communicator: when it is made, when it is first seen or changes, when it ends. */
struct nccl_communicator {
	struct record_head head;
	__u64 communicator;
	__u64 hash;   /* 0: its structure could not be read (no layout of this library yet) */
	__u64 parent; /* address of the one it was split, shrunk or grown from; 0: of none */
	__u64 identity; /* keyed digest of the first word of the unique id it was made with; 0: not seen */
	__s32 rank;	   /* -1: not known */
	__s32 ranks;	   /* how many; -1: not known */
	__s32 device;	   /* -1: not known */
	__s32 color;	   /* of a split */
	__s32 async_error; /* what ncclCommGetAsyncError reported: ncclResult_t; 0 else */
	__s32 status;	   /* of the call that made it */
	__u16 api;	   /* which call reported; enum nccl_api */
	__u8 ended;	   /* destroyed or aborted: the address may become another's */
	__u8 layout;	   /* index of the library's layout, see layouts in nccl.bpf.c */
	__u8 created;	   /* seen from its creation on: counts begin at 0 */
	__u8 reserved[3];
};

/* Which function was called: the enumerator is API_ and the exported name. */
enum nccl_api {
	API_NONE = 0,
#define NCCL_ENUMERATOR(symbol, ...) API_##symbol,
	NCCL_CALLS(NCCL_ENUMERATOR)
#undef NCCL_ENUMERATOR
		API_COUNT
};

_Static_assert(sizeof(struct nccl_call) == 128, "two cache lines, as an operation");
_Static_assert(sizeof(struct nccl_communicator) == 128, "as a call");

#endif
