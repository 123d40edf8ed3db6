/* SPDX-License-Identifier: Apache-2.0 */
/* Launches of kernels and host functions. */
#include "runtime.h"

#include <stdint.h>

#define THREADS_PER_BLOCK_MAX 1024 /* of every device since compute capability 2.0 */

static cudaError_t check(const void *function, const dim3 *grid, const dim3 *block)
{
	uint64_t blocks = (uint64_t)grid->x * grid->y * grid->z;
	uint64_t threads = (uint64_t)block->x * block->y * block->z;

	if (!function)
		return cudaErrorInvalidDeviceFunction;
	return blocks && threads && threads <= THREADS_PER_BLOCK_MAX
		       ? cudaSuccess
		       : cudaErrorInvalidConfiguration;
}

static cudaError_t launch(const void *function, dim3 grid, dim3 block, void **args, size_t shared,
			  cudaStream_t stream)
{
	cudaError_t status = check(function, &grid, &block);

	if (status != cudaSuccess)
		return status;
	return of_driver(driver.cuLaunchKernel(kernel_of(function), grid.x, grid.y, grid.z, block.x,
					       block.y, block.z, (unsigned int)shared, stream, args,
					       NULL));
}

static cudaError_t launch_cooperative(const void *function, dim3 grid, dim3 block, void **args,
				      size_t shared, cudaStream_t stream)
{
	cudaError_t status = check(function, &grid, &block);

	if (status != cudaSuccess)
		return status;
	return of_driver(driver.cuLaunchCooperativeKernel(kernel_of(function), grid.x, grid.y,
							  grid.z, block.x, block.y, block.z,
							  (unsigned int)shared, stream, args));
}

static cudaError_t launch_configured(const cudaLaunchConfig_t *config, const void *function,
				     void **args, bool per_thread)
{
	cudaError_t status = config ? check(function, &config->gridDim, &config->blockDim)
				    : cudaErrorInvalidValue;
	CUlaunchConfig driver_config;

	if (status != cudaSuccess)
		return status;
	driver_config = (CUlaunchConfig){
		.gridDimX = config->gridDim.x,
		.gridDimY = config->gridDim.y,
		.gridDimZ = config->gridDim.z,
		.blockDimX = config->blockDim.x,
		.blockDimY = config->blockDim.y,
		.blockDimZ = config->blockDim.z,
		.sharedMemBytes = (unsigned int)config->dynamicSmemBytes,
		.hStream = per_thread && !config->stream ? cudaStreamPerThread : config->stream,
	};
	return of_driver(driver.cuLaunchKernelEx(&driver_config, kernel_of(function), args, NULL));
}

API_PTSZ(cudaLaunchKernel,
	 (const void *func, dim3 gridDim, dim3 blockDim, void **args, size_t sharedMem,
	  cudaStream_t stream),
	 launch(func, gridDim, blockDim, args, sharedMem, stream))
API_PTSZ(cudaLaunchCooperativeKernel,
	 (const void *func, dim3 gridDim, dim3 blockDim, void **args, size_t sharedMem,
	  cudaStream_t stream),
	 launch_cooperative(func, gridDim, blockDim, args, sharedMem, stream))
API(cudaLaunchKernelExC, (const cudaLaunchConfig_t *config, const void *func, void **args),
    launch_configured(config, func, args, false))
API(cudaLaunchKernelExC_ptsz, (const cudaLaunchConfig_t *config, const void *func, void **args),
    launch_configured(config, func, args, true))
API_PTSZ(cudaLaunchHostFunc, (cudaStream_t stream, cudaHostFn_t fn, void *userData),
	 of_driver(driver.cuLaunchHostFunc(stream, fn, userData)))

/* The kernel's handle arrives at cudaLaunchKernel in the place of its host stub, as in the real library. */
CALL_ENTRY(__cudaLaunchKernel, false);
LINKAGE cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 gridDim, dim3 blockDim,
				       void **args, size_t sharedMem, cudaStream_t stream)
{
	call_begin(&call___cudaLaunchKernel);
	return cudaLaunchKernel(kernel, gridDim, blockDim, args, sharedMem, stream);
}

CALL_ENTRY(__cudaLaunchKernel_ptsz, false);
LINKAGE cudaError_t __cudaLaunchKernel_ptsz(cudaKernel_t kernel, dim3 gridDim, dim3 blockDim,
					    void **args, size_t sharedMem, cudaStream_t stream)
{
	call_begin(&call___cudaLaunchKernel_ptsz);
	return cudaLaunchKernel_ptsz(kernel, gridDim, blockDim, args, sharedMem, stream);
}
