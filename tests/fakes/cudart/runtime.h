/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fake CUDA runtime. Each exported function counts itself, fails when FAKE_CUDART_FAIL says so (and
 * then does nothing else), checks its arguments as the real one does, and reaches the device through the
 * driver API. None calls another through its exported name, except where the real library does too:
 * __cudaLaunchKernel jumps to cudaLaunchKernel.
 *
 * FAKE_CUDART_DRIVER=NAME   the driver to dlopen and to ask by cuGetProcAddress, as the real library does
 *                           with libcuda.so.1; not set: the copy of the fake driver that is built in,
 *                           for programs that have no libcuda.
 */
#ifndef FAKE_RUNTIME_H
#define FAKE_RUNTIME_H

#include <cuda.h>
#include <crt/host_runtime.h>

#include "../common/calls.h"

/* What the runtime needs of the driver: the function as cuda.h declares it, the name it is asked for by. */
#define DRIVER_FUNCTIONS(X)                                                  \
	X(cuInit, cuInit)                                                    \
	X(cuDeviceGetCount, cuDeviceGetCount)                                \
	X(cuDeviceGetName, cuDeviceGetName)                                  \
	X(cuDeviceGetUuid_v2, cuDeviceGetUuid)                               \
	X(cuDeviceTotalMem_v2, cuDeviceTotalMem)                             \
	X(cuDeviceGetAttribute, cuDeviceGetAttribute)                        \
	X(cuDeviceGetPCIBusId, cuDeviceGetPCIBusId)                          \
	X(cuDeviceCanAccessPeer, cuDeviceCanAccessPeer)                      \
	X(cuDeviceGetDefaultMemPool, cuDeviceGetDefaultMemPool)              \
	X(cuDeviceGetMemPool, cuDeviceGetMemPool)                            \
	X(cuDeviceSetMemPool, cuDeviceSetMemPool)                            \
	X(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain)                \
	X(cuDevicePrimaryCtxReset_v2, cuDevicePrimaryCtxReset)               \
	X(cuDriverGetVersion, cuDriverGetVersion)                            \
	X(cuCtxSetCurrent, cuCtxSetCurrent)                                  \
	X(cuCtxGetDevice, cuCtxGetDevice)                                    \
	X(cuCtxSynchronize, cuCtxSynchronize)                                \
	X(cuCtxEnablePeerAccess, cuCtxEnablePeerAccess)                      \
	X(cuCtxDisablePeerAccess, cuCtxDisablePeerAccess)                    \
	X(cuLibraryLoadData, cuLibraryLoadData)                              \
	X(cuLibraryUnload, cuLibraryUnload)                                  \
	X(cuLibraryGetKernel, cuLibraryGetKernel)                            \
	X(cuKernelGetName, cuKernelGetName)                                  \
	X(cuLaunchKernel, cuLaunchKernel)                                    \
	X(cuLaunchKernelEx, cuLaunchKernelEx)                                \
	X(cuLaunchCooperativeKernel, cuLaunchCooperativeKernel)              \
	X(cuLaunchHostFunc, cuLaunchHostFunc)                                \
	X(cuMemAlloc_v2, cuMemAlloc)                                         \
	X(cuMemAllocPitch_v2, cuMemAllocPitch)                               \
	X(cuMemAllocManaged, cuMemAllocManaged)                              \
	X(cuMemHostAlloc, cuMemHostAlloc)                                    \
	X(cuMemFreeHost, cuMemFreeHost)                                      \
	X(cuMemFree_v2, cuMemFree)                                           \
	X(cuMemHostRegister_v2, cuMemHostRegister)                           \
	X(cuMemHostUnregister, cuMemHostUnregister)                          \
	X(cuMemHostGetDevicePointer_v2, cuMemHostGetDevicePointer)           \
	X(cuMemGetInfo_v2, cuMemGetInfo)                                     \
	X(cuMemAllocAsync, cuMemAllocAsync)                                  \
	X(cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync)                  \
	X(cuMemFreeAsync, cuMemFreeAsync)                                    \
	X(cuMemPoolCreate, cuMemPoolCreate)                                  \
	X(cuMemPoolDestroy, cuMemPoolDestroy)                                \
	X(cuMemPoolTrimTo, cuMemPoolTrimTo)                                  \
	X(cuMemPoolSetAttribute, cuMemPoolSetAttribute)                      \
	X(cuIpcGetMemHandle, cuIpcGetMemHandle)                              \
	X(cuIpcOpenMemHandle_v2, cuIpcOpenMemHandle)                         \
	X(cuIpcCloseMemHandle, cuIpcCloseMemHandle)                          \
	X(cuArrayCreate_v2, cuArrayCreate)                                   \
	X(cuArray3DCreate_v2, cuArray3DCreate)                               \
	X(cuArrayDestroy, cuArrayDestroy)                                    \
	X(cuMemcpy, cuMemcpy)                                                \
	X(cuMemcpyAsync, cuMemcpyAsync)                                      \
	X(cuMemcpyHtoD_v2, cuMemcpyHtoD)                                     \
	X(cuMemcpyDtoH_v2, cuMemcpyDtoH)                                     \
	X(cuMemcpyDtoD_v2, cuMemcpyDtoD)                                     \
	X(cuMemcpyHtoDAsync_v2, cuMemcpyHtoDAsync)                           \
	X(cuMemcpyDtoHAsync_v2, cuMemcpyDtoHAsync)                           \
	X(cuMemcpyDtoDAsync_v2, cuMemcpyDtoDAsync)                           \
	X(cuMemcpyPeer, cuMemcpyPeer)                                        \
	X(cuMemcpyPeerAsync, cuMemcpyPeerAsync)                              \
	X(cuMemcpy2DUnaligned_v2, cuMemcpy2DUnaligned)                       \
	X(cuMemcpy2DAsync_v2, cuMemcpy2DAsync)                               \
	X(cuMemcpy3D_v2, cuMemcpy3D)                                         \
	X(cuMemcpy3DAsync_v2, cuMemcpy3DAsync)                               \
	X(cuMemcpy3DPeer, cuMemcpy3DPeer)                                    \
	X(cuMemcpy3DPeerAsync, cuMemcpy3DPeerAsync)                          \
	X(cuMemcpyBatchAsync, cuMemcpyBatchAsync)                            \
	X(cuMemsetD8_v2, cuMemsetD8)                                         \
	X(cuMemsetD8Async, cuMemsetD8Async)                                  \
	X(cuMemsetD2D8_v2, cuMemsetD2D8)                                     \
	X(cuMemsetD2D8Async, cuMemsetD2D8Async)                              \
	X(cuStreamCreateWithPriority, cuStreamCreateWithPriority)            \
	X(cuStreamCreate, cuStreamCreate)                                    \
	X(cuStreamDestroy_v2, cuStreamDestroy)                               \
	X(cuStreamSynchronize, cuStreamSynchronize)                          \
	X(cuStreamQuery, cuStreamQuery)                                      \
	X(cuStreamWaitEvent, cuStreamWaitEvent)                              \
	X(cuStreamBeginCapture_v2, cuStreamBeginCapture)                     \
	X(cuStreamEndCapture, cuStreamEndCapture)                            \
	X(cuStreamIsCapturing, cuStreamIsCapturing)                          \
	X(cuEventCreate, cuEventCreate)                                      \
	X(cuEventDestroy_v2, cuEventDestroy)                                 \
	X(cuEventRecord, cuEventRecord)                                      \
	X(cuEventRecordWithFlags, cuEventRecordWithFlags)                    \
	X(cuEventQuery, cuEventQuery)                                        \
	X(cuEventSynchronize, cuEventSynchronize)                            \
	X(cuEventElapsedTime, cuEventElapsedTime)                            \
	X(cuGraphCreate, cuGraphCreate)                                      \
	X(cuGraphDestroy, cuGraphDestroy)                                    \
	X(cuGraphAddKernelNode_v2, cuGraphAddKernelNode)                     \
	X(cuGraphAddEmptyNode, cuGraphAddEmptyNode)                          \
	X(cuGraphAddMemcpyNode, cuGraphAddMemcpyNode)                        \
	X(cuGraphAddMemsetNode, cuGraphAddMemsetNode)                        \
	X(cuGraphAddHostNode, cuGraphAddHostNode)                            \
	X(cuGraphAddChildGraphNode, cuGraphAddChildGraphNode)                \
	X(cuGraphAddEventRecordNode, cuGraphAddEventRecordNode)              \
	X(cuGraphAddEventWaitNode, cuGraphAddEventWaitNode)                  \
	X(cuGraphClone, cuGraphClone)                                        \
	X(cuGraphExecKernelNodeSetParams_v2, cuGraphExecKernelNodeSetParams) \
	X(cuMemcpy3DBatchAsync, cuMemcpy3DBatchAsync)                        \
	X(cuGraphGetNodes, cuGraphGetNodes)                                  \
	X(cuGraphInstantiateWithFlags, cuGraphInstantiate)                   \
	X(cuGraphInstantiateWithParams, cuGraphInstantiateWithParams)        \
	X(cuGraphExecUpdate_v2, cuGraphExecUpdate)                           \
	X(cuGraphUpload, cuGraphUpload)                                      \
	X(cuGraphLaunch, cuGraphLaunch)                                      \
	X(cuGraphExecDestroy, cuGraphExecDestroy)

struct driver {
#define MEMBER(function, name) __typeof__(function) *function;
	DRIVER_FUNCTIONS(MEMBER)
#undef MEMBER
	__typeof__(cuGetProcAddress_v2)
		*cuGetProcAddress_v2; /* NULL: the driver is the built-in one */
};

extern struct driver driver;

/* CUresult and cudaError_t have the same numbers since CUDA 10.1. */
static inline cudaError_t of_driver(CUresult result)
{
	return (cudaError_t)result;
}

/* -- begin.c ----------------------------------------------------------------------------------------- */

/* Opens the driver, initializes it and gives the thread its device's primary context: once each. */
cudaError_t runtime_begin(void);
/* The same without a context: what a question about devices needs. */
cudaError_t runtime_open(void);
cudaError_t runtime_use_device(int device);
cudaError_t runtime_reset_device(void);
cudaError_t runtime_primary(int device, CUcontext *context);
int runtime_device(void);

/* Remembers a failure as this thread's last error. The result is `status`. */
cudaError_t keep_error(cudaError_t status);
cudaError_t last_error(bool clear);

/* Counts the call, and makes the driver ready unless the call was reported to fail. */
static inline cudaError_t begin(struct call *call)
{
	cudaError_t reported = (cudaError_t)call_begin(call);

	return reported ? reported : runtime_begin();
}

/* In libcudart_static.a everything is hidden, as in nvcc's. */
#ifdef FAKE_STATIC
#define LINKAGE __attribute__((visibility("hidden"), noipa))
#else
#define LINKAGE EXPORTED
#endif

/* One function of the runtime API: its name, its parameters as the header has them, what it answers. */
#define API(name, parameters, ...)                                  \
	CALL_ENTRY(name, true);                                     \
	LINKAGE cudaError_t name parameters                         \
	{                                                           \
		cudaError_t status = begin(&call_##name);           \
		return keep_error(status ? status : (__VA_ARGS__)); \
	}

/* One that needs no driver. */
#define API_ALONE(name, parameters, ...)                                      \
	CALL_ENTRY(name, true);                                               \
	LINKAGE cudaError_t name parameters                                   \
	{                                                                     \
		cudaError_t reported = (cudaError_t)call_begin(&call_##name); \
		return keep_error(reported ? reported : (__VA_ARGS__));       \
	}

/* The same with its twin, whose default stream is the thread's; the answer uses `stream`. */
#define API_PTSZ(name, parameters, ...)                             \
	API(name, parameters, __VA_ARGS__)                          \
	CALL_ENTRY(name##_ptsz, true);                              \
	LINKAGE cudaError_t name##_ptsz parameters                  \
	{                                                           \
		cudaError_t status = begin(&call_##name##_ptsz);    \
		stream = stream ? stream : cudaStreamPerThread;     \
		return keep_error(status ? status : (__VA_ARGS__)); \
	}

/* For functions without a stream parameter: the answer uses `stream` all the same. */
#define API_PTDS(name, parameters, ...)                             \
	CALL_ENTRY(name, true);                                     \
	CALL_ENTRY(name##_ptds, true);                              \
	LINKAGE cudaError_t name parameters                         \
	{                                                           \
		const cudaStream_t stream = NULL;                   \
		cudaError_t status = begin(&call_##name);           \
		return keep_error(status ? status : (__VA_ARGS__)); \
	}                                                           \
	LINKAGE cudaError_t name##_ptds parameters                  \
	{                                                           \
		const cudaStream_t stream = cudaStreamPerThread;    \
		cudaError_t status = begin(&call_##name##_ptds);    \
		return keep_error(status ? status : (__VA_ARGS__)); \
	}

/* -- kernels.c --------------------------------------------------------------------------------------- */

/* What the driver launches for a host stub or a cudaKernel_t; NULL: too many. */
CUfunction kernel_of(const void *function);
cudaError_t kernel_handle(cudaKernel_t *kernel, const void *stub);

/* -- errors.c: the enumerator's name, and what it says; "unrecognized error code" for others --------- */

const char *error_name(cudaError_t error);
const char *error_text(cudaError_t error);

#endif
