/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The functions of the HIP runtime (libamdhip64) that have probes: what each does, and which of its arguments, counted
 * from 1, goes into which slot of its record. 0: none. OUT: what the argument points at when the call returns.
 *
 * Signatures: hip_runtime_api.h of ROCm 6.
 */
#ifndef OTELGPU_HIP_CALLS_H
#define OTELGPU_HIP_CALLS_H

#define OUT 0x80

/* X(symbol, kind, memory, object, other, bytes, stream, detail) */
#define HIP_CALLS(X)                                                  \
	X(hipLaunchKernel, LAUNCH, NONE, 0, 0, 0, 0, 0)               \
	X(hipGraphLaunch, GRAPH_LAUNCH, NONE, 1, 0, 0, 2, 0)          \
	X(hipMemcpy, COPY, NONE, 1, 2, 3, 0, 4)                       \
	X(hipMemcpyAsync, COPY, NONE, 1, 2, 3, 5, 4)                  \
	X(hipMalloc, ALLOCATION, DEVICE, OUT | 1, 0, 2, 0, 0)         \
	X(hipMallocManaged, ALLOCATION, MANAGED, OUT | 1, 0, 2, 0, 3) \
	X(hipMallocAsync, ALLOCATION, POOL, OUT | 1, 0, 2, 3, 0)      \
	X(hipHostMalloc, ALLOCATION, HOST, OUT | 1, 0, 2, 0, 3)       \
	X(hipFree, FREE, DEVICE, 1, 0, 0, 0, 0)                       \
	X(hipFreeAsync, FREE, POOL, 1, 0, 0, 2, 0)                    \
	X(hipHostFree, FREE, HOST, 1, 0, 0, 0, 0)                     \
	X(hipDeviceSynchronize, SYNCHRONIZATION, NONE, 0, 0, 0, 0, 0) \
	X(hipStreamSynchronize, SYNCHRONIZATION, NONE, 1, 0, 0, 0, 0) \
	X(hipEventSynchronize, SYNCHRONIZATION, NONE, 1, 0, 0, 0, 0)  \
	X(hipMemset, SET, NONE, 1, 2, 3, 0, 0)                        \
	X(hipMemsetAsync, SET, NONE, 1, 2, 3, 4, 0)                   \
	X(hipStreamCreate, STREAM, NONE, OUT | 1, 0, 0, 0, 0)         \
	X(hipStreamDestroy, STREAM, NONE, 1, 0, 0, 0, 0)              \
	X(hipEventRecord, EVENT, NONE, 1, 0, 0, 2, 0)                 \
	X(hipSetDevice, DEVICE, NONE, 1, 0, 0, 0, 0)

#endif
