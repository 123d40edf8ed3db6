/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the code that nvcc emits for `kernel<<<grid, block>>>(…)` calls in
 * libcudart. Prototypes from crt/host_runtime.h of CUDA 12.9 (PyPI:
 * nvidia-cuda-nvcc-cu12 12.9.86); the two that no public header declares,
 * __cudaPushCallConfiguration and __cudaLaunchKernel, from the code of
 * libcudart.so.12.9.79 (it takes its arguments as cudaLaunchKernel does and
 * jumps to it).
 */
#ifndef FAKE_CRT_HOST_RUNTIME_H
#define FAKE_CRT_HOST_RUNTIME_H

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

extern unsigned CUDARTAPI __cudaPushCallConfiguration(dim3 gridDim, dim3 blockDim, size_t sharedMem,
						      struct CUstream_st *stream);
extern cudaError_t CUDARTAPI __cudaPopCallConfiguration(dim3 *gridDim, dim3 *blockDim,
							size_t *sharedMem, void *stream);

extern void **CUDARTAPI __cudaRegisterFatBinary(void *fatCubin);
extern void CUDARTAPI __cudaRegisterFatBinaryEnd(void **fatCubinHandle);
extern void CUDARTAPI __cudaUnregisterFatBinary(void **fatCubinHandle);
extern void CUDARTAPI __cudaRegisterFunction(void **fatCubinHandle, const char *hostFun,
					     char *deviceFun, const char *deviceName,
					     int thread_limit, uint3 *tid, uint3 *bid, dim3 *bDim,
					     dim3 *gDim, int *wSize);

extern void CUDARTAPI __cudaRegisterVar(void **fatCubinHandle, char *hostVar, char *deviceAddress,
					const char *deviceName, int ext, size_t size, int constant,
					int global);
extern char CUDARTAPI __cudaInitModule(void **fatCubinHandle);

/* Since CUDA 12.9 a host stub launches a handle, unless __NV_LEGACY_LAUNCH is defined. */
extern cudaError_t CUDARTAPI __cudaGetKernel(cudaKernel_t *kernel, const void *entryFuncAddr);
extern cudaError_t CUDARTAPI __cudaLaunchKernel(cudaKernel_t kernel, dim3 gridDim, dim3 blockDim,
						void **args, size_t sharedMem, cudaStream_t stream);
extern cudaError_t CUDARTAPI __cudaLaunchKernel_ptsz(cudaKernel_t kernel, dim3 gridDim,
						     dim3 blockDim, void **args, size_t sharedMem,
						     cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
