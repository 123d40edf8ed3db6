/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Records of family gloo: collectives of gloo, sends and receives, and what the threads of a PyTorch program do around
 * them. A collective runs in the call, mostly on a thread of PyTorch's own, and has ended for this rank when the call
 * returns. Of a send or receive it is the wait for it.
 */
#ifndef OTELGPU_GLOO_H
#define OTELGPU_GLOO_H

#include "../lib/record.h"
#include "calls.h"

/* Numbers of OperationKind (otelgpu/model/operations.py): a test compares them. */
enum gloo_kind {
	GLOO_CALL = 14,
	GLOO_STRETCH = 20,
};

struct gloo_call {
	struct record_head head;
	__u64 context; /* gloo::Context, an address: one for each group of the process; of transfers another */
	__u64 bytes; /* of this rank's message; 0: not known */
	__u32 tag; /* of the collective in its group: the same on all ranks, one more each time; of a pair */
	__s32 rank;    /* in the group; -1: not known */
	__s32 ranks;   /* -1: not known */
	__s32 root;    /* of a transfer the peer; -1: none */
	__u16 api;     /* enum gloo_api */
	__u8 tagged;   /* 1: `tag` is known */
	__u8 transfer; /* 1: a send or receive */
	__u8 reserved[4];
};

/* As Stretch of otelgpu/model/stretches.py. */
enum gloo_stretch_of {
	STRETCH_NONE = 0,
	STRETCH_DATA_LOADER = 1,
	STRETCH_BACKWARD = 2,
	STRETCH_COMMUNICATION_WAIT = 3,
};

/* What a thread of a process that has called gloo did from the head's time on, for its duration. */
struct gloo_stretch {
	struct record_head head;
	__u16 of; /* enum gloo_stretch_of */
	__u8 reserved[6];
};

/* Which function was called: the enumerator is API_ and the exported name. */
enum gloo_api {
	API_NONE = 0,
#define GLOO_ENUMERATOR(symbol, ...) API_##symbol,
	GLOO_CALLS(GLOO_ENUMERATOR)
#undef GLOO_ENUMERATOR
		API_COUNT
};

#endif
