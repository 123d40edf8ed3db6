/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Records of family cuda: one per call of the CUDA runtime. All are of one
 * size, so that a ring full of them is one numpy array.
 */
#ifndef OTELGPU_CUDA_H
#define OTELGPU_CUDA_H

#include "../lib/record.h"

enum cuda_kind {
	CUDA_LAUNCH = 1,
	CUDA_GRAPH_LAUNCH = 2,
	CUDA_COPY = 3,
	CUDA_ALLOCATION = 4,
	CUDA_FREE = 5,
	CUDA_SYNCHRONIZATION = 6,
	CUDA_KERNEL = 7,
};

/* Which function was called: the enumerator is API_ and the exported name. */
enum cuda_api {
	API_cudaLaunchKernel = 1,
	API_cudaLaunchKernelExC = 2,
	API_cudaGraphLaunch = 3,
	API_cudaMalloc = 4,
	API_cudaFree = 5,
	API_cudaMemcpy = 6,
	API_cudaMemcpyAsync = 7,
	API_cudaStreamSynchronize = 8,
	API_cudaDeviceSynchronize = 9,
	API_cudaEventSynchronize = 10,
	API___cudaGetKernel = 11,
	API_cudaGetKernel = 12,
};

struct cuda_launch {
	struct record_head head;
	__u64 function; /* host address of the kernel's stub */
	__u64 stream;
	__u64 shared_bytes;
	__u32 grid[3];
	__u32 block[3];
	__s32 status; /* cudaError_t */
	__u16 api;    /* enum cuda_api */
	__u8 reserved[10];
};

struct cuda_graph_launch {
	struct record_head head;
	__u64 graph; /* cudaGraphExec_t */
	__u64 stream;
	__s32 status;
	__u16 api;
	__u8 reserved[42];
};

struct cuda_copy {
	struct record_head head;
	__u64 destination;
	__u64 source;
	__u64 bytes;
	__u64 stream;
	__s32 status;
	__u32 direction; /* enum cudaMemcpyKind */
	__u16 api;
	__u8 reserved[22];
};

struct cuda_allocation {
	struct record_head head;
	__u64 pointer; /* what the call gave; 0 when it failed or was not read */
	__u64 bytes;
	__s32 status;
	__u16 api;
	__u8 reserved[42];
};

struct cuda_free {
	struct record_head head;
	__u64 pointer;
	__s32 status;
	__u16 api;
	__u8 reserved[50];
};

struct cuda_synchronization {
	struct record_head head;
	__u64 object; /* stream or event; 0 for the device or the default stream */
	__s32 status;
	__u16 api;
	__u8 reserved[50];
};

/*
 * A kernel got a handle: later launches pass the handle where older code passes
 * the stub's address (the default of nvcc 12.9 and later).
 */
struct cuda_kernel {
	struct record_head head;
	__u64 handle; /* cudaKernel_t */
	__u64 stub;   /* host address */
	__s32 status;
	__u16 api;
	__u8 reserved[42];
};

#define CUDA_RECORD_BYTES 128
_Static_assert(sizeof(struct cuda_launch) == CUDA_RECORD_BYTES, "one size");
_Static_assert(sizeof(struct cuda_graph_launch) == CUDA_RECORD_BYTES, "one size");
_Static_assert(sizeof(struct cuda_copy) == CUDA_RECORD_BYTES, "one size");
_Static_assert(sizeof(struct cuda_allocation) == CUDA_RECORD_BYTES, "one size");
_Static_assert(sizeof(struct cuda_free) == CUDA_RECORD_BYTES, "one size");
_Static_assert(sizeof(struct cuda_synchronization) == CUDA_RECORD_BYTES, "one size");
_Static_assert(sizeof(struct cuda_kernel) == CUDA_RECORD_BYTES, "one size");

#endif
