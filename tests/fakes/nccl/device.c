/* SPDX-License-Identifier: Apache-2.0 */
/* The driver, opened and asked as the real library does it: dlopen, cuGetProcAddress. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "library.h"

#define NAME_BYTES  128
#define KERNELS_MAX 512
#define THREADS	    640
#define CHANNELS    8

#define DRIVER_FUNCTIONS(X)         \
	X(cuInit)                   \
	X(cuCtxGetDevice)           \
	X(cuCtxGetCurrent)          \
	X(cuCtxSetCurrent)          \
	X(cuDevicePrimaryCtxRetain) \
	X(cuLibraryLoadData)        \
	X(cuLibraryGetKernel)       \
	X(cuLaunchKernelEx)         \
	X(cuStreamIsCapturing)      \
	X(cuMemAlloc_v2)            \
	X(cuMemFree_v2)

static struct {
#define MEMBER(name) __typeof__(&name) name;
	DRIVER_FUNCTIONS(MEMBER)
#undef MEMBER
} driver;
static bool opened;
static const struct fake_collective_hooks hooks = { plan_launched, operation_end };
static struct kernel {
	uint32_t key;
	CUkernel handle;
} kernels[KERNELS_MAX];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void open_driver(void)
{
	CUresult (*get)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);
	const struct fake_collective_hooks **place;
	void *library = dlopen("libcuda.so.1", RTLD_NOW);

	if (!library)
		return;
	*(void **)&get = dlsym(library, "cuGetProcAddress_v2");
	place = dlsym(library, "fake_collective_hooks");
	if (!get || !place) {
		fprintf(stderr, "NCCL fake: libcuda.so.1 is not the fake one\n");
		exit(2);
	}
#define ASK(name)                                                              \
	if (get(#name, (void **)&driver.name, 12090, 0, NULL) != CUDA_SUCCESS) \
		return;
	DRIVER_FUNCTIONS(ASK)
#undef ASK
	*place = &hooks;
	opened = driver.cuInit(0) == CUDA_SUCCESS;
}

int device_open(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	CUcontext context;
	CUdevice device;

	pthread_once(&once, open_driver);
	if (!opened)
		return -1;
	if (driver.cuCtxGetDevice(&device) == CUDA_SUCCESS)
		return device;
	if (driver.cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS ||
	    driver.cuCtxSetCurrent(context) != CUDA_SUCCESS)
		return -1;
	return 0;
}

/* As nvcc names the kernels: "_Z39ncclDevKernel_AllReduce_Sum_f32_RING_LL24ncclDevKernelArgsStorage…". */
static void name_kernel(char name[NAME_BYTES], enum function function, ncclDataType_t type,
			ncclRedOp_t op)
{
	static const char *const functions[] = { "Broadcast", "Reduce", "AllGather",
						 "ReduceScatter", "AllReduce" };
	static const char *const types[] = { "u8",  "u8",  "u32", "u32",  "u64",    "u64",
					     "f16", "f32", "f64", "bf16", "f8e4m3", "f8e5m2" };
	static const char *const ops[] = { "Sum", "Prod", "MinMax", "MinMax", "PreMulSum" };
	char base[NAME_BYTES - 40];
	int length;

	if (function >= COUNTED_FUNCTIONS)
		length = snprintf(base, sizeof(base), "ncclDevKernel_SendRecv");
	else if (function == BROADCAST || function == ALL_GATHER)
		length = snprintf(base, sizeof(base), "ncclDevKernel_%s_RING_LL",
				  functions[function]);
	else
		length = snprintf(base, sizeof(base), "ncclDevKernel_%s_%s_%s_RING_LL",
				  functions[function], ops[op], types[type]);
	snprintf(name, NAME_BYTES, "_Z%d%s" KERNEL_ARGUMENT, length, base);
}

static CUkernel kernel_of(enum function function, ncclDataType_t type, ncclRedOp_t op)
{
	static CUlibrary image;
	bool plain =
		function >= COUNTED_FUNCTIONS || function == BROADCAST || function == ALL_GATHER;
	uint32_t key = 1 + (function >= COUNTED_FUNCTIONS ? SEND : function) * 256 +
		       (plain ? 0 : type * 8 + op);
	struct kernel *kernel = kernels;
	char name[NAME_BYTES];

	pthread_mutex_lock(&lock);
	while (kernel->key && kernel->key != key)
		kernel++;
	if (!kernel->key) {
		name_kernel(name, function, type, op);
		if (!image)
			driver.cuLibraryLoadData(&image, kernels, NULL, NULL, 0, NULL, NULL, 0);
		if (driver.cuLibraryGetKernel(&kernel->handle, image, name) == CUDA_SUCCESS)
			kernel->key = key;
	}
	pthread_mutex_unlock(&lock);
	return kernel->handle;
}

/* On a device that need not be the thread's own, as the real one does for each of its communicators. */
bool device_launch(int device, enum function function, ncclDataType_t type, ncclRedOp_t op,
		   CUstream stream)
{
	const CUlaunchConfig config = { .gridDimX = CHANNELS,
					.gridDimY = 1,
					.gridDimZ = 1,
					.blockDimX = THREADS,
					.blockDimY = 1,
					.blockDimZ = 1,
					.hStream = stream };
	CUkernel kernel = kernel_of(function, type, op);
	CUcontext own = NULL, of_device = NULL;
	CUresult status;

	if (!kernel || driver.cuCtxGetCurrent(&own) != CUDA_SUCCESS)
		return false;
	if (device_open() != device &&
	    (driver.cuDevicePrimaryCtxRetain(&of_device, device) != CUDA_SUCCESS ||
	     driver.cuCtxSetCurrent(of_device) != CUDA_SUCCESS))
		return false;
	status = driver.cuLaunchKernelEx(&config, (CUfunction)kernel, NULL, NULL);
	if (of_device)
		driver.cuCtxSetCurrent(own);
	return status == CUDA_SUCCESS;
}

bool device_is_capturing(CUstream stream)
{
	CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;

	return device_open() >= 0 && driver.cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS &&
	       status != CU_STREAM_CAPTURE_STATUS_NONE;
}

ncclResult_t device_allocate(void **pointer, size_t bytes)
{
	CUdeviceptr address = 0;

	if (!pointer)
		return ncclInvalidArgument;
	if (device_open() < 0 || driver.cuMemAlloc_v2(&address, bytes) != CUDA_SUCCESS)
		return ncclUnhandledCudaError;
	*pointer = (void *)(uintptr_t)address;
	return ncclSuccess;
}

ncclResult_t device_free(void *pointer)
{
	return device_open() >= 0 && driver.cuMemFree_v2((uintptr_t)pointer) == CUDA_SUCCESS
		       ? ncclSuccess
		       : ncclUnhandledCudaError;
}
