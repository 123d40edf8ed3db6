/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Records of family hip: a call of the HIP runtime, laid out as an operation (otelgpu/model/operations.py). */
#ifndef OTELGPU_HIP_H
#define OTELGPU_HIP_H

#include "../lib/record.h"
#include "calls.h"

/* The numbers are those of OperationKind. */
enum hip_kind {
	HIP_LAUNCH = 1,
	HIP_GRAPH_LAUNCH = 2,
	HIP_COPY = 3,
	HIP_ALLOCATION = 4,
	HIP_FREE = 5,
	HIP_SYNCHRONIZATION = 6,
	HIP_SET = 7,
	HIP_STREAM = 9,
	HIP_EVENT = 10,
	HIP_DEVICE = 13,
};

/* The numbers are those of Memory. */
enum hip_memory {
	HIP_MEMORY_NONE = 0,
	HIP_MEMORY_DEVICE = 1,
	HIP_MEMORY_MANAGED = 2,
	HIP_MEMORY_HOST = 3,
	HIP_MEMORY_POOL = 4,
};

/* Which function was called: the enumerator is API_ and the exported name. */
enum hip_api {
	API_NONE = 0,
#define HIP_ENUMERATOR(symbol, ...) API_##symbol,
	HIP_CALLS(HIP_ENUMERATOR)
#undef HIP_ENUMERATOR
		API_COUNT
};

/* Whose calls they are, in samples of a profile: lib/call_stacks.h. */
enum call_family { CALL_FAMILY = 15 };

#define HIP_DEVICE_UNKNOWN (-1)

struct hip_call {
	struct record_head head;
	union {
		__u64 object;
		__u64 function; /* launches: the kernel's host stub */
	};
	__u64 other;
	union {
		__u64 bytes;
		__u64 shared_bytes;
	};
	__u64 stream;
	union {
		struct {
			__u64 extra;
			__u64 caller; /* allocations: return address of the call */
			__u32 detail; /* copies: hipMemcpyKind */
			__u8 memory;  /* enum hip_memory */
			__u8 reserved[3];
		};
		struct {
			__u32 grid[3];
			__u32 block[3];
		};
	};
	__s32 status; /* hipError_t */
	__u16 api;    /* enum hip_api */
	__s16 device; /* that the thread chose, or HIP_DEVICE_UNKNOWN */
};

_Static_assert(sizeof(struct hip_call) == 128, "as an operation");

#endif
