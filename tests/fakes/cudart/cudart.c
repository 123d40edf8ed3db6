/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The exported functions of the stand-in libcudart.so.12. Each counts itself,
 * fails when FAKE_CUDART_FAIL says so (and then does nothing else), checks its
 * arguments as the real one does, and moves the simulated device. None calls
 * another through its exported name, except where the real library does too:
 * __cudaLaunchKernel jumps to cudaLaunchKernel.
 */
#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#include "calls.h"
#include "device.h"
#include "errors.h"

/* noipa: what a uprobe sits on must be called with its full ABI, and never be inlined or merged. */
#define EXPORTED __attribute__((visibility("default"), noipa))

#define DRIVER_VERSION	      12090
#define THREADS_PER_BLOCK_MAX 1024 /* of every device since compute capability 2.0 */
#define CONFIGURATIONS_MAX    64   /* <<<>>> within the arguments of <<<>>> */

/* Counts this call, and leaves the function when the call was told to fail. */
#define BEGIN(name)                                         \
	do {                                                \
		cudaError_t told = call_begin(CALL_##name); \
		if (told != cudaSuccess)                    \
			return call_end(told);              \
	} while (0)

struct configuration {
	dim3 grid, block;
	size_t shared_bytes;
	cudaStream_t stream;
};

static _Thread_local struct configuration configurations[CONFIGURATIONS_MAX];
static _Thread_local unsigned int configuration_count;

static void child_of_fork(void)
{
	calls_reset();
	device_reset_lock();
}

__attribute__((constructor)) static void library_loaded(void)
{
	calls_configure();
	device_configure();
	pthread_atfork(NULL, NULL, child_of_fork);
}

/* Runs at exit and at dlclose. */
__attribute__((destructor)) static void library_unloaded(void)
{
	calls_report();
}

static cudaError_t launch(const void *function, dim3 grid, dim3 block, cudaStream_t stream)
{
	uint64_t blocks = (uint64_t)grid.x * grid.y * grid.z;
	uint64_t threads = (uint64_t)block.x * block.y * block.z;

	if (!function)
		return cudaErrorInvalidDeviceFunction;
	if (!blocks || !threads || threads > THREADS_PER_BLOCK_MAX)
		return cudaErrorInvalidConfiguration;
	return device_enqueue(stream, device_kernel_ns(blocks));
}

EXPORTED cudaError_t cudaLaunchKernel(const void *func, dim3 gridDim, dim3 blockDim, void **args,
				      size_t sharedMem, cudaStream_t stream)
{
	(void)args;
	(void)sharedMem;
	BEGIN(cudaLaunchKernel);
	return call_end(launch(func, gridDim, blockDim, stream));
}

EXPORTED cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *func,
					 void **args)
{
	(void)args;
	BEGIN(cudaLaunchKernelExC);
	if (!config)
		return call_end(cudaErrorInvalidValue);
	return call_end(launch(func, config->gridDim, config->blockDim, config->stream));
}

EXPORTED cudaError_t cudaGraphLaunch(cudaGraphExec_t graphExec, cudaStream_t stream)
{
	BEGIN(cudaGraphLaunch);
	return call_end(device_graph_launch(graphExec, stream));
}

EXPORTED cudaError_t cudaMalloc(void **devPtr, size_t size)
{
	BEGIN(cudaMalloc);
	if (!devPtr)
		return call_end(cudaErrorInvalidValue);
	if (!size) {
		*devPtr = NULL;
		return cudaSuccess;
	}
	return call_end(device_allocate(devPtr, size));
}

/* Waits for the device before it frees, as the real one does. */
EXPORTED cudaError_t cudaFree(void *devPtr)
{
	BEGIN(cudaFree);
	if (!devPtr)
		return cudaSuccess;
	device_wait();
	return call_end(device_release(devPtr));
}

/* What is wrong with a copy's arguments; host to host is really copied. */
static cudaError_t check_copy(void *dst, const void *src, size_t count, enum cudaMemcpyKind kind)
{
	if ((unsigned int)kind > cudaMemcpyDefault)
		return cudaErrorInvalidMemcpyDirection;
	if (count && (!dst || !src))
		return cudaErrorInvalidValue;
	if (kind == cudaMemcpyHostToHost ||
	    (kind == cudaMemcpyDefault && !device_owns(dst) && !device_owns(src)))
		memmove(dst, src, count);
	return cudaSuccess;
}

EXPORTED cudaError_t cudaMemcpy(void *dst, const void *src, size_t count, enum cudaMemcpyKind kind)
{
	cudaError_t status;

	BEGIN(cudaMemcpy);
	status = check_copy(dst, src, count, kind);
	if (status == cudaSuccess && count)
		status = device_run(device_copy_ns(count));
	return call_end(status);
}

EXPORTED cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t count,
				     enum cudaMemcpyKind kind, cudaStream_t stream)
{
	cudaError_t status;

	BEGIN(cudaMemcpyAsync);
	status = check_copy(dst, src, count, kind);
	if (status == cudaSuccess)
		status = device_enqueue(stream, device_copy_ns(count));
	return call_end(status);
}

EXPORTED cudaError_t cudaStreamCreate(cudaStream_t *pStream)
{
	BEGIN(cudaStreamCreate);
	return call_end(pStream ? device_stream_create(pStream) : cudaErrorInvalidValue);
}

EXPORTED cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
	BEGIN(cudaStreamDestroy);
	return call_end(device_stream_destroy(stream));
}

EXPORTED cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
	BEGIN(cudaStreamSynchronize);
	return call_end(device_stream_wait(stream));
}

EXPORTED cudaError_t cudaDeviceSynchronize(void)
{
	BEGIN(cudaDeviceSynchronize);
	return call_end(device_wait());
}

EXPORTED cudaError_t cudaEventCreate(cudaEvent_t *event)
{
	BEGIN(cudaEventCreate);
	return call_end(event ? device_event_create(event) : cudaErrorInvalidValue);
}

EXPORTED cudaError_t cudaEventDestroy(cudaEvent_t event)
{
	BEGIN(cudaEventDestroy);
	return call_end(device_event_destroy(event));
}

EXPORTED cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
	BEGIN(cudaEventRecord);
	return call_end(device_event_record(event, stream));
}

EXPORTED cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
	BEGIN(cudaEventSynchronize);
	return call_end(device_event_wait(event));
}

EXPORTED cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
	BEGIN(cudaStreamBeginCapture);
	if ((unsigned int)mode > cudaStreamCaptureModeRelaxed)
		return call_end(cudaErrorInvalidValue);
	return call_end(device_capture_begin(stream));
}

EXPORTED cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *pGraph)
{
	BEGIN(cudaStreamEndCapture);
	return call_end(pGraph ? device_capture_end(stream, pGraph) : cudaErrorInvalidValue);
}

EXPORTED cudaError_t cudaGraphInstantiate(cudaGraphExec_t *pGraphExec, cudaGraph_t graph,
					  unsigned long long flags)
{
	(void)flags;
	BEGIN(cudaGraphInstantiate);
	return call_end(pGraphExec ? device_graph_instantiate(pGraphExec, graph)
				   : cudaErrorInvalidValue);
}

EXPORTED cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graphExec)
{
	BEGIN(cudaGraphExecDestroy);
	return call_end(device_executable_destroy(graphExec));
}

EXPORTED cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
	BEGIN(cudaGraphDestroy);
	return call_end(device_graph_destroy(graph));
}

EXPORTED cudaError_t cudaGetLastError(void)
{
	call_begin(CALL_cudaGetLastError);
	return call_last_error(true);
}

EXPORTED cudaError_t cudaPeekAtLastError(void)
{
	call_begin(CALL_cudaPeekAtLastError);
	return call_last_error(false);
}

EXPORTED const char *cudaGetErrorName(cudaError_t error)
{
	call_begin(CALL_cudaGetErrorName);
	return error_name(error);
}

EXPORTED const char *cudaGetErrorString(cudaError_t error)
{
	call_begin(CALL_cudaGetErrorString);
	return error_text(error);
}

EXPORTED cudaError_t cudaGetDeviceCount(int *count)
{
	BEGIN(cudaGetDeviceCount);
	if (!count)
		return call_end(cudaErrorInvalidValue);
	*count = 1;
	return cudaSuccess;
}

EXPORTED cudaError_t cudaSetDevice(int device)
{
	BEGIN(cudaSetDevice);
	return call_end(device == 0 ? cudaSuccess : cudaErrorInvalidDevice);
}

EXPORTED cudaError_t cudaGetDevice(int *device)
{
	BEGIN(cudaGetDevice);
	if (!device)
		return call_end(cudaErrorInvalidValue);
	*device = 0;
	return cudaSuccess;
}

EXPORTED cudaError_t cudaDriverGetVersion(int *driverVersion)
{
	BEGIN(cudaDriverGetVersion);
	if (!driverVersion)
		return call_end(cudaErrorInvalidValue);
	*driverVersion = DRIVER_VERSION;
	return cudaSuccess;
}

EXPORTED cudaError_t cudaRuntimeGetVersion(int *runtimeVersion)
{
	BEGIN(cudaRuntimeGetVersion);
	if (!runtimeVersion)
		return call_end(cudaErrorInvalidValue);
	*runtimeVersion = CUDART_VERSION;
	return cudaSuccess;
}

EXPORTED unsigned __cudaPushCallConfiguration(dim3 gridDim, dim3 blockDim, size_t sharedMem,
					      struct CUstream_st *stream)
{
	call_begin(CALL___cudaPushCallConfiguration);
	if (configuration_count == CONFIGURATIONS_MAX)
		return 1; /* the launch is then left out, as `push ? (void)0 : stub()` says */
	configurations[configuration_count++] =
		(struct configuration){ gridDim, blockDim, sharedMem, stream };
	return 0;
}

EXPORTED cudaError_t __cudaPopCallConfiguration(dim3 *gridDim, dim3 *blockDim, size_t *sharedMem,
						void *stream)
{
	struct configuration *top;

	BEGIN(__cudaPopCallConfiguration);
	if (!configuration_count)
		return call_end(cudaErrorMissingConfiguration);
	top = &configurations[--configuration_count];
	*gridDim = top->grid;
	*blockDim = top->block;
	*sharedMem = top->shared_bytes;
	*(cudaStream_t *)stream = top->stream;
	return cudaSuccess;
}

/* Kernels need no registration here: any host address can be launched. */
EXPORTED void **__cudaRegisterFatBinary(void *fatCubin)
{
	static void *module;

	call_begin(CALL___cudaRegisterFatBinary);
	(void)fatCubin;
	return &module;
}

EXPORTED void __cudaRegisterFatBinaryEnd(void **fatCubinHandle)
{
	call_begin(CALL___cudaRegisterFatBinaryEnd);
	(void)fatCubinHandle;
}

EXPORTED void __cudaUnregisterFatBinary(void **fatCubinHandle)
{
	call_begin(CALL___cudaUnregisterFatBinary);
	(void)fatCubinHandle;
}

EXPORTED void __cudaRegisterFunction(void **fatCubinHandle, const char *hostFun, char *deviceFun,
				     const char *deviceName, int thread_limit, uint3 *tid,
				     uint3 *bid, dim3 *bDim, dim3 *gDim, int *wSize)
{
	call_begin(CALL___cudaRegisterFunction);
	(void)fatCubinHandle;
	(void)hostFun;
	(void)deviceFun;
	(void)deviceName;
	(void)thread_limit;
	(void)tid;
	(void)bid;
	(void)bDim;
	(void)gDim;
	(void)wSize;
}

EXPORTED cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *entryFuncAddr)
{
	BEGIN(__cudaGetKernel);
	if (!kernel)
		return call_end(cudaErrorInvalidValue);
	*kernel = entryFuncAddr ? device_kernel(entryFuncAddr) : NULL;
	return call_end(*kernel ? cudaSuccess : cudaErrorInvalidDeviceFunction);
}

/* The kernel's handle arrives at cudaLaunchKernel in the place of its host stub, as in the real library. */
EXPORTED cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 gridDim, dim3 blockDim,
					void **args, size_t sharedMem, cudaStream_t stream)
{
	call_begin(CALL___cudaLaunchKernel);
	return cudaLaunchKernel(kernel, gridDim, blockDim, args, sharedMem, stream);
}
