/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Records of family cuda. A call of the CUDA runtime or driver API is one struct
 * cuda_call whatever it did, so that a ring full of them is one numpy array; what
 * the slots of a call mean depends on its kind. Which function fills which slot
 * from which argument is the table in calls.h.
 */
#ifndef OTELGPU_CUDA_H
#define OTELGPU_CUDA_H

#include "../lib/record.h"
#include "calls.h"

/*
 * Up to CUDA_DEVICE the numbers are those of OperationKind (otelgpu/model/operations.py):
 * a test compares them.
 */
enum cuda_kind {
	/* function, shared_bytes, stream, grid, block */
	CUDA_LAUNCH = 1,
	/* object: executable graph; stream; extra: its nodes, 0 if unknown */
	CUDA_GRAPH_LAUNCH = 2,
	/* object: destination; other: source; bytes; stream; detail: direction */
	CUDA_COPY = 3,
	/* object: pointer or handle given; bytes; stream; extra: pool; detail: flags */
	CUDA_ALLOCATION = 4,
	/* object: pointer or handle; stream */
	CUDA_FREE = 5,
	/* object: stream or event, 0 for device and context */
	CUDA_SYNCHRONIZATION = 6,
	/* object: destination; other: value; bytes; stream */
	CUDA_SET = 7,
	/* object: address; other: handle, 0 to unmap; bytes; extra: offset */
	CUDA_MAPPING = 8,
	/* object: stream made or ended; detail: flags */
	CUDA_STREAM = 9,
	/* object: event; stream it is recorded on, or that waits for it */
	CUDA_EVENT = 10,
	/* object: graph; other: executable graph; stream; extra: nodes */
	CUDA_GRAPH = 11,
	/* object: module, library or context; other: image or device */
	CUDA_MODULE = 12,
	/* object: device or context made current; other: peer */
	CUDA_DEVICE = 13,
	/* object: handle given; other: host stub, or kernel it stands for */
	CUDA_KERNEL = 14,
	/* object: host stub; other: address of the kernel's name; extra: fatbin handle */
	CUDA_REGISTRATION = 15,
	CUDA_NAME = 16,		 /* struct cuda_name */
	CUDA_ACTIVITY = 17,	 /* struct cuda_activity */
	CUDA_ACTIVITY_NAME = 18, /* struct cuda_activity_name */
};

/* Kinds that report handles and names: recorded wherever they are called, also inside another call. */
#define KINDS_NAMING (1 << CUDA_KERNEL | 1 << CUDA_NAME | 1 << CUDA_REGISTRATION)

/* What an allocation gives, a free takes back and a mapping maps. */
enum cuda_memory {
	CUDA_MEMORY_NONE = 0,
	CUDA_MEMORY_DEVICE = 1,
	CUDA_MEMORY_MANAGED = 2,
	CUDA_MEMORY_HOST = 3,	    /* pinned by the vendor library */
	CUDA_MEMORY_POOL = 4,	    /* stream-ordered, from a pool */
	CUDA_MEMORY_PHYSICAL = 5,   /* cuMemCreate: a handle, not an address */
	CUDA_MEMORY_REGISTERED = 6, /* the program's own, pinned */
	CUDA_MEMORY_IMPORTED = 7,   /* another process's, opened by IPC: not counted as ours */
	CUDA_MEMORY_ADDRESS = 8,    /* reserved address range, no memory behind it */
};

/* Which function was called: the enumerator is API_ and the exported name. */
enum cuda_api {
	API_NONE = 0,
#define CUDA_ENUMERATOR(symbol, ...) API_##symbol,
	CUDA_CALLS(CUDA_ENUMERATOR)
#undef CUDA_ENUMERATOR
		API_COUNT
};

/* Whose calls they are, in samples of a profile: lib/call_stacks.h. */
enum call_family { CALL_FAMILY = 1 };

#define CUDA_DEVICE_UNKNOWN (-1)

struct cuda_call {
	struct record_head head;
	union {
		__u64 object;
		__u64 function; /* launches: address of the host stub, or the kernel's handle */
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
			__u32 detail;
			__u8 memory; /* enum cuda_memory */
			__u8 reserved[3];
		};
		struct {
			__u32 grid[3];
			__u32 block[3];
		};
	};
	__s32 status; /* cudaError_t or CUresult */
	__u16 api;    /* enum cuda_api */
	__s16 device; /* current device of the thread, or CUDA_DEVICE_UNKNOWN */
};

#define CUDA_NAME_BYTES 164 /* longer names are cut; `length` reports */

/*
 * A kernel handle and the name it was asked for by: the text is in the program's memory only for as
 * long as the call lasts.
 */
struct cuda_name {
	struct record_head head;
	__u64 object; /* CUfunction, CUkernel */
	__u64 other;  /* module or library */
	__s32 status;
	__u16 api;
	__u16 length; /* of the name, without the zero; more than `text` holds: it was cut */
	__u32 reserved;
	char text[CUDA_NAME_BYTES];
};

/* What the device did. */
enum cuda_work {
	CUDA_WORK_NONE =
		0, /* a slice of time begins: from here on calls report their correlation ids */
	CUDA_WORK_KERNEL = 1,
	CUDA_WORK_COPY = 2,
	CUDA_WORK_SET = 3,
};

/*
 * Work as the device saw it, measured by CUPTI in the in-process source: head.time_ns and
 * head.duration_ns are device times, converted to CLOCK_MONOTONIC; no thread did it. The host call
 * that caused it says the same `correlation` in its own record, see CORRELATION in cupti.h.
 */
struct cuda_activity {
	struct record_head head;
	__u64 name;	  /* kernels: `name` of a struct cuda_activity_name of the same process */
	__u64 bytes;	  /* copies and sets */
	__u64 graph_node; /* 0: not of a graph */
	__u64 slice_ns;	  /* when the slice of time began that this was measured in */
	__u32 correlation;
	__u32 graph;
	__u32 stream; /* CUPTI's number of the stream, which is not its handle */
	__u32 context;
	__u32 detail;  /* copies: CUpti_ActivityMemcpyKind; sets: the value */
	__u32 sampled; /* share of the time that was measured until the slice began, in millionths */
	__u32 reserved;
	__u16 work; /* enum cuda_work */
	__s16 device;
};

#define CUDA_ACTIVITY_NAME_BYTES 176

/* A piece of a kernel's mangled name. It is reported again in every slice, for the first time may be lost. */
struct cuda_activity_name {
	struct record_head head;
	__u64 name;   /* hash of the whole name */
	__u16 offset; /* of this piece */
	__u16 length; /* of the whole name, as far as it is reported */
	__u32 reserved;
	char text[CUDA_ACTIVITY_NAME_BYTES];
};

_Static_assert(sizeof(struct cuda_activity) == 128, "as a call");
_Static_assert(sizeof(struct cuda_activity_name) == 256, "as a name");
_Static_assert(sizeof(struct cuda_call) == 128, "two cache lines");
_Static_assert(sizeof(struct cuda_name) == 256, "the smallest size class of texts");

#endif
