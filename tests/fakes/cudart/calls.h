/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every exported function does first and last: count the call, fail it
 * when that was asked for, remember the thread's last error.
 */
#ifndef FAKE_CUDART_CALLS_H
#define FAKE_CUDART_CALLS_H

#include <crt/host_runtime.h>

/* Each exported function that is counted and that can be made to fail. */
#define FAKE_CUDART_FUNCTIONS(X)          \
	X(cudaLaunchKernel)               \
	X(cudaLaunchKernelExC)            \
	X(cudaGraphLaunch)                \
	X(cudaMalloc)                     \
	X(cudaFree)                       \
	X(cudaMemcpy)                     \
	X(cudaMemcpyAsync)                \
	X(cudaStreamCreate)               \
	X(cudaStreamDestroy)              \
	X(cudaStreamSynchronize)          \
	X(cudaDeviceSynchronize)          \
	X(cudaEventCreate)                \
	X(cudaEventDestroy)               \
	X(cudaEventRecord)                \
	X(cudaEventSynchronize)           \
	X(cudaStreamBeginCapture)         \
	X(cudaStreamEndCapture)           \
	X(cudaGraphInstantiate)           \
	X(cudaGraphExecDestroy)           \
	X(cudaGraphDestroy)               \
	X(cudaGetDeviceCount)             \
	X(cudaSetDevice)                  \
	X(cudaGetDevice)                  \
	X(cudaDriverGetVersion)           \
	X(cudaRuntimeGetVersion)          \
	X(__cudaGetKernel)                \
	X(__cudaPopCallConfiguration)     \
	/* From here on: counted only. */ \
	X(cudaGetLastError)               \
	X(cudaPeekAtLastError)            \
	X(cudaGetErrorName)               \
	X(cudaGetErrorString)             \
	X(__cudaLaunchKernel)             \
	X(__cudaPushCallConfiguration)    \
	X(__cudaRegisterFatBinary)        \
	X(__cudaRegisterFatBinaryEnd)     \
	X(__cudaUnregisterFatBinary)      \
	X(__cudaRegisterFunction)

enum call {
#define ENUMERATOR(name) CALL_##name,
	FAKE_CUDART_FUNCTIONS(ENUMERATOR)
#undef ENUMERATOR
		CALL_COUNT,
};
#define CALL_FIRST_COUNTED_ONLY CALL_cudaGetLastError

/*
 * Reads FAKE_CUDART_FAIL and FAKE_CUDART_LEDGER; an unreadable value ends the
 * process with a line on stderr, since a test would otherwise test nothing.
 */
void calls_configure(void);

/* Writes the ledger line, once. */
void calls_report(void);

/* Forgets the counts: a child of fork() has made no call yet. */
void calls_reset(void);

/* Counts one call. The result is the failure to answer with, or cudaSuccess. */
cudaError_t call_begin(enum call call);

/* Remembers a failure as this thread's last error. The result is `status`. */
cudaError_t call_end(cudaError_t status);

/* This thread's last error; cleared too when `clear`. */
cudaError_t call_last_error(int clear);

#endif
