// SPDX-License-Identifier: Apache-2.0
/* A libcudart whose launch takes no time, so that what is on its way is all that is measured. */
#include "cuda_runtime_api.h"

cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **arguments,
			     size_t shared_bytes, cudaStream_t stream)
{
	(void)function, (void)grid, (void)block, (void)arguments, (void)shared_bytes, (void)stream;
	return cudaSuccess;
}
