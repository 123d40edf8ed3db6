/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A fake of AMD's HIP runtime, on the host's memory: the functions that family hip has probes on, with the signatures of
 * hip_runtime_api.h of ROCm 6. hipMallocManaged and hipMemset call other exported functions, as a runtime may do.
 */
#include <stdlib.h>
#include <string.h>

#define EXPORTED	      __attribute__((visibility("default"), noipa))
#define hipSuccess	      0
#define hipErrorInvalidValue  1
#define hipErrorOutOfMemory   2
#define hipErrorInvalidDevice 101
#define DEVICES		      2
#define DEVICE_BYTES	      (1ull << 40)

typedef int hipError_t;
typedef void *hipStream_t, *hipEvent_t;
typedef struct {
	unsigned x, y, z;
} dim3;

EXPORTED hipError_t hipSetDevice(int device)
{
	return device >= 0 && device < DEVICES ? hipSuccess : hipErrorInvalidDevice;
}

EXPORTED hipError_t hipMalloc(void **pointer, size_t size)
{
	*pointer = size < DEVICE_BYTES ? malloc(size) : NULL;
	return *pointer ? hipSuccess : hipErrorOutOfMemory;
}

EXPORTED hipError_t hipMallocManaged(void **pointer, size_t size, unsigned flags)
{
	return flags ? hipMalloc(pointer, size) : hipErrorInvalidValue;
}

EXPORTED hipError_t hipMallocAsync(void **pointer, size_t size, hipStream_t stream)
{
	(void)stream;
	return hipMalloc(pointer, size);
}

EXPORTED hipError_t hipHostMalloc(void **pointer, size_t size, unsigned flags)
{
	(void)flags;
	*pointer = malloc(size);
	return hipSuccess;
}

EXPORTED hipError_t hipFree(void *pointer)
{
	free(pointer);
	return hipSuccess;
}

EXPORTED hipError_t hipFreeAsync(void *pointer, hipStream_t stream)
{
	(void)stream;
	return hipFree(pointer);
}

EXPORTED hipError_t hipHostFree(void *pointer)
{
	free(pointer);
	return hipSuccess;
}

EXPORTED hipError_t hipMemcpy(void *to, const void *from, size_t size, int kind)
{
	(void)kind;
	memmove(to, from, size);
	return hipSuccess;
}

EXPORTED hipError_t hipMemcpyAsync(void *to, const void *from, size_t size, int kind,
				   hipStream_t stream)
{
	(void)stream;
	return hipMemcpy(to, from, size, kind);
}

EXPORTED hipError_t hipMemsetAsync(void *to, int value, size_t size, hipStream_t stream)
{
	(void)stream;
	memset(to, value, size);
	return hipSuccess;
}

EXPORTED hipError_t hipMemset(void *to, int value, size_t size)
{
	return hipMemsetAsync(to, value, size, NULL);
}

EXPORTED hipError_t hipStreamCreate(hipStream_t *stream)
{
	*stream = malloc(1);
	return hipSuccess;
}

EXPORTED hipError_t hipStreamDestroy(hipStream_t stream)
{
	free(stream);
	return hipSuccess;
}

EXPORTED hipError_t hipStreamSynchronize(hipStream_t stream)
{
	(void)stream;
	return hipSuccess;
}

EXPORTED hipError_t hipDeviceSynchronize(void)
{
	return hipSuccess;
}

EXPORTED hipError_t hipEventSynchronize(hipEvent_t event)
{
	(void)event;
	return hipSuccess;
}

EXPORTED hipError_t hipEventRecord(hipEvent_t event, hipStream_t stream)
{
	(void)event;
	(void)stream;
	return hipSuccess;
}

EXPORTED hipError_t hipLaunchKernel(const void *function, dim3 grid, dim3 block, void **arguments,
				    size_t shared, hipStream_t stream)
{
	(void)arguments;
	(void)shared;
	(void)stream;
	return function && grid.x && block.x ? hipSuccess : hipErrorInvalidValue;
}

EXPORTED hipError_t hipGraphLaunch(void *graph, hipStream_t stream)
{
	(void)stream;
	return graph ? hipSuccess : hipErrorInvalidValue;
}
