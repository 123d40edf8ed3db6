// SPDX-License-Identifier: Apache-2.0
//
// In CUDA these would be __global__ functions in a .cu file. What a host compiler gets to see is a
// host stub of the same name and signature; LAUNCH() is what `kernel<<<grid, block, shared,
// stream>>>(...)` becomes.
#pragma once

#include "cudart.h"

void flash_fwd(const float *q, float *out, int tokens);

template <typename T, int HEAD_DIM> void rms_norm(const T *x, T *out, int rows);
extern template void rms_norm<float, 128>(const float *, float *, int);

// How a stub launches: nvcc before 12.9 (and with __NV_LEGACY_LAUNCH) passes the stub's own
// address to cudaLaunchKernel; since then it asks __cudaGetKernel for a handle once, and launches that.
extern bool launch_by_handle;

#define LAUNCH(kernel, grid, block, shared, stream, ...)                                      \
	(CUDART(__cudaPushCallConfiguration, dim3(grid), dim3(block), size_t(shared), stream) \
		 ? (void)0                                                                    \
		 : kernel(__VA_ARGS__))
