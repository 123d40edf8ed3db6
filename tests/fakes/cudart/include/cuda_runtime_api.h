/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of the CUDA runtime API that the stand-in implements and that the
 * examples call. It has the real header's name, so that the examples compile
 * unchanged against a CUDA toolkit. Layouts, values and prototypes were taken
 * from CUDA 12.9 (PyPI: nvidia-cuda-runtime-cu12 12.9.79): driver_types.h,
 * vector_types.h and cuda_runtime_api.h.
 */
#ifndef FAKE_CUDA_RUNTIME_API_H
#define FAKE_CUDA_RUNTIME_API_H

#include <stddef.h>

#define CUDART_VERSION 12090
#define CUDARTAPI

#ifdef __cplusplus
extern "C" {
#define CUDART_STATIC_ASSERT static_assert
#else
#define CUDART_STATIC_ASSERT _Static_assert
#endif

/* driver_types.h, enum cudaError */
typedef enum cudaError {
	cudaSuccess = 0,
	cudaErrorInvalidValue = 1,
	cudaErrorMemoryAllocation = 2,
	cudaErrorInitializationError = 3,
	cudaErrorCudartUnloading = 4,
	cudaErrorInvalidConfiguration = 9,
	cudaErrorInvalidDevicePointer = 17,
	cudaErrorInvalidMemcpyDirection = 21,
	cudaErrorInsufficientDriver = 35,
	cudaErrorDevicesUnavailable = 46,
	cudaErrorMissingConfiguration = 52,
	cudaErrorInvalidDeviceFunction = 98,
	cudaErrorNoDevice = 100,
	cudaErrorInvalidDevice = 101,
	cudaErrorECCUncorrectable = 214,
	cudaErrorInvalidResourceHandle = 400,
	cudaErrorIllegalState = 401,
	cudaErrorNotReady = 600,
	cudaErrorIllegalAddress = 700,
	cudaErrorLaunchOutOfResources = 701,
	cudaErrorLaunchTimeout = 702,
	cudaErrorAssert = 710,
	cudaErrorHardwareStackError = 714,
	cudaErrorMisalignedAddress = 716,
	cudaErrorInvalidAddressSpace = 717,
	cudaErrorInvalidPc = 718,
	cudaErrorLaunchFailure = 719,
	cudaErrorNotSupported = 801,
	cudaErrorSystemDriverMismatch = 803,
	cudaErrorStreamCaptureUnsupported = 900,
	cudaErrorStreamCaptureInvalidated = 901,
	cudaErrorStreamCaptureUnmatched = 903,
	cudaErrorStreamCaptureImplicit = 906,
	cudaErrorUnknown = 999,
} cudaError_t;

/* driver_types.h, enum cudaMemcpyKind */
enum cudaMemcpyKind {
	cudaMemcpyHostToHost = 0,
	cudaMemcpyHostToDevice = 1,
	cudaMemcpyDeviceToHost = 2,
	cudaMemcpyDeviceToDevice = 3,
	cudaMemcpyDefault = 4,
};

/* driver_types.h, enum cudaStreamCaptureMode */
enum cudaStreamCaptureMode {
	cudaStreamCaptureModeGlobal = 0,
	cudaStreamCaptureModeThreadLocal = 1,
	cudaStreamCaptureModeRelaxed = 2,
};

/*
 * vector_types.h. The C++ constructors of the real dim3 leave it trivially
 * copyable, so both languages pass it by value in two registers (x86-64 psABI:
 * x and y in the first, z in the second).
 */
typedef struct uint3 {
	unsigned int x, y, z;
} uint3;

typedef struct dim3 {
	unsigned int x, y, z;
#if defined(__cplusplus)
	constexpr dim3(unsigned int vx = 1, unsigned int vy = 1, unsigned int vz = 1)
	    : x(vx), y(vy), z(vz)
	{
	}
#endif
} dim3;
CUDART_STATIC_ASSERT(sizeof(dim3) == 12, "vector_types.h: struct dim3");

/* driver_types.h: opaque handles */
typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;
typedef struct CUgraph_st *cudaGraph_t;
typedef struct CUgraphExec_st *cudaGraphExec_t;
typedef struct CUkern_st *cudaKernel_t;

#define cudaStreamLegacy    ((cudaStream_t)0x1)
#define cudaStreamPerThread ((cudaStream_t)0x2)

/* driver_types.h: the attributes are 72 bytes each and not interpreted here */
typedef struct cudaLaunchAttribute_st cudaLaunchAttribute;

/* driver_types.h, struct cudaLaunchConfig_st */
typedef struct cudaLaunchConfig_st {
	dim3 gridDim;		    /*  0 */
	dim3 blockDim;		    /* 12 */
	size_t dynamicSmemBytes;    /* 24 */
	cudaStream_t stream;	    /* 32 */
	cudaLaunchAttribute *attrs; /* 40 */
	unsigned int numAttrs;	    /* 48 */
} cudaLaunchConfig_t;
CUDART_STATIC_ASSERT(offsetof(cudaLaunchConfig_t, dynamicSmemBytes) == 24, "cudaLaunchConfig_st");
CUDART_STATIC_ASSERT(offsetof(cudaLaunchConfig_t, stream) == 32, "cudaLaunchConfig_st");
CUDART_STATIC_ASSERT(sizeof(cudaLaunchConfig_t) == 56, "cudaLaunchConfig_st");

extern cudaError_t CUDARTAPI cudaLaunchKernel(const void *func, dim3 gridDim, dim3 blockDim,
					      void **args, size_t sharedMem, cudaStream_t stream);
extern cudaError_t CUDARTAPI cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *func,
						 void **args);
extern cudaError_t CUDARTAPI cudaGraphLaunch(cudaGraphExec_t graphExec, cudaStream_t stream);

extern cudaError_t CUDARTAPI cudaMalloc(void **devPtr, size_t size);
extern cudaError_t CUDARTAPI cudaFree(void *devPtr);
extern cudaError_t CUDARTAPI cudaMemcpy(void *dst, const void *src, size_t count,
					enum cudaMemcpyKind kind);
extern cudaError_t CUDARTAPI cudaMemcpyAsync(void *dst, const void *src, size_t count,
					     enum cudaMemcpyKind kind, cudaStream_t stream);

extern cudaError_t CUDARTAPI cudaStreamCreate(cudaStream_t *pStream);
extern cudaError_t CUDARTAPI cudaStreamDestroy(cudaStream_t stream);
extern cudaError_t CUDARTAPI cudaStreamSynchronize(cudaStream_t stream);
extern cudaError_t CUDARTAPI cudaDeviceSynchronize(void);
extern cudaError_t CUDARTAPI cudaEventCreate(cudaEvent_t *event);
extern cudaError_t CUDARTAPI cudaEventDestroy(cudaEvent_t event);
extern cudaError_t CUDARTAPI cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
extern cudaError_t CUDARTAPI cudaEventSynchronize(cudaEvent_t event);

extern cudaError_t CUDARTAPI cudaStreamBeginCapture(cudaStream_t stream,
						    enum cudaStreamCaptureMode mode);
extern cudaError_t CUDARTAPI cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *pGraph);
extern cudaError_t CUDARTAPI cudaGraphInstantiate(cudaGraphExec_t *pGraphExec, cudaGraph_t graph,
						  unsigned long long flags);
extern cudaError_t CUDARTAPI cudaGraphExecDestroy(cudaGraphExec_t graphExec);
extern cudaError_t CUDARTAPI cudaGraphDestroy(cudaGraph_t graph);

extern cudaError_t CUDARTAPI cudaGetLastError(void);
extern cudaError_t CUDARTAPI cudaPeekAtLastError(void);
extern const char *CUDARTAPI cudaGetErrorName(cudaError_t error);
extern const char *CUDARTAPI cudaGetErrorString(cudaError_t error);
extern cudaError_t CUDARTAPI cudaGetDeviceCount(int *count);
extern cudaError_t CUDARTAPI cudaSetDevice(int device);
extern cudaError_t CUDARTAPI cudaGetDevice(int *device);
extern cudaError_t CUDARTAPI cudaDriverGetVersion(int *driverVersion);
extern cudaError_t CUDARTAPI cudaRuntimeGetVersion(int *runtimeVersion);

#ifdef __cplusplus
}
#endif

#endif
