// SPDX-License-Identifier: Apache-2.0
//
// Host stubs as nvcc 12.9 writes them into its .cudafe1.stub.c, with the macros __cudaLaunchPrologue,
// __cudaSetupArgSimple and __cudaLaunch of crt/host_runtime.h written out. There is no device code and
// nothing is registered, so a real GPU answers each launch with cudaErrorInvalidDeviceFunction.
#include "kernels.h"

bool launch_by_handle = false;

static cudaError_t launch(const void *stub, cudaKernel_t &handle, void **arguments)
{
	dim3 grid, block;
	size_t shared;
	cudaStream_t stream;

	if (CUDART(__cudaPopCallConfiguration, &grid, &block, &shared,
		   static_cast<void *>(&stream)) != cudaSuccess)
		return cudaErrorMissingConfiguration;
	if (!launch_by_handle)
		return CUDART(cudaLaunchKernel, stub, grid, block, arguments, shared, stream);
	return CUDART(__cudaLaunchKernel, handle, grid, block, arguments, shared, stream);
}

// The handle of the kernel with this stub; NULL where stubs launch themselves.
static cudaKernel_t get_kernel(const void *stub)
{
	cudaKernel_t handle = nullptr;

	if (launch_by_handle)
		CUDART(__cudaGetKernel, &handle, stub);
	return handle;
}

static void __device_stub__Z9flash_fwdPKfPfi(const float *q, float *out, int tokens)
{
	const void *stub = reinterpret_cast<const void *>(&flash_fwd);
	static cudaKernel_t handle = get_kernel(stub);
	void *arguments[] = { &q, &out, &tokens };

	(void)launch(stub, handle, arguments);
}

void flash_fwd(const float *q, float *out, int tokens)
{
	__device_stub__Z9flash_fwdPKfPfi(q, out, tokens);
}

template <typename T, int HEAD_DIM> void rms_norm(const T *x, T *out, int rows)
{
	const void *stub = reinterpret_cast<const void *>(&rms_norm<T, HEAD_DIM>);
	static cudaKernel_t handle = get_kernel(stub);
	void *arguments[] = { &x, &out, &rows };

	(void)launch(stub, handle, arguments);
}

template void rms_norm<float, 128>(const float *, float *, int);
