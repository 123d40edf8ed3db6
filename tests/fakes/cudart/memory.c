/* SPDX-License-Identifier: Apache-2.0 */
/* Allocation of every kind that the runtime has. */
#include "runtime.h"

#include <stdint.h>
#include <string.h>

_Static_assert(sizeof(cudaIpcMemHandle_t) == sizeof(CUipcMemHandle), "the same bytes");

#define PITCH_ELEMENT_BYTES 4

static CUdeviceptr address_of(const void *pointer)
{
	return (uintptr_t)pointer;
}

/* NULL for nothing, as the real one. */
static cudaError_t allocate(void **pointer, size_t bytes)
{
	if (!pointer)
		return cudaErrorInvalidValue;
	*pointer = NULL;
	return bytes ? of_driver(driver.cuMemAlloc_v2((CUdeviceptr *)pointer, bytes)) : cudaSuccess;
}

static cudaError_t allocate_pitched(void **pointer, size_t *pitch, size_t width, size_t height)
{
	if (!pointer || !pitch)
		return cudaErrorInvalidValue;
	return of_driver(driver.cuMemAllocPitch_v2((CUdeviceptr *)pointer, pitch, width, height,
						   PITCH_ELEMENT_BYTES));
}

static cudaError_t allocate_box(struct cudaPitchedPtr *given, struct cudaExtent extent)
{
	if (!given)
		return cudaErrorInvalidValue;
	given->xsize = extent.width;
	given->ysize = extent.height;
	return allocate_pitched(&given->ptr, &given->pitch, extent.width,
				extent.height * extent.depth);
}

static cudaError_t allocate_host(void **pointer, size_t bytes, unsigned int flags)
{
	if (!pointer)
		return cudaErrorInvalidValue;
	*pointer = NULL;
	return bytes ? of_driver(driver.cuMemHostAlloc(pointer, bytes, flags)) : cudaSuccess;
}

static CUarray_format format_of(const struct cudaChannelFormatDesc *channel)
{
	if (channel->f == cudaChannelFormatKindFloat)
		return channel->x == 16 ? CU_AD_FORMAT_HALF : CU_AD_FORMAT_FLOAT;
	return channel->x == 8	  ? CU_AD_FORMAT_UNSIGNED_INT8
	       : channel->x == 16 ? CU_AD_FORMAT_UNSIGNED_INT16
				  : CU_AD_FORMAT_UNSIGNED_INT32;
}

static cudaError_t allocate_array(cudaArray_t *array, const struct cudaChannelFormatDesc *channel,
				  struct cudaExtent extent)
{
	CUDA_ARRAY3D_DESCRIPTOR described = {
		.Width = extent.width,
		.Height = extent.height,
		.Depth = extent.depth,
	};

	if (!array || !channel)
		return cudaErrorInvalidValue;
	described.Format = format_of(channel);
	described.NumChannels = 1 + !!channel->y + !!channel->z + !!channel->w;
	return of_driver(driver.cuArray3DCreate_v2((CUarray *)array, &described));
}

static cudaError_t open_handle(void **pointer, const cudaIpcMemHandle_t *handle, unsigned int flags)
{
	CUipcMemHandle same;

	memcpy(&same, handle, sizeof(same));
	return of_driver(driver.cuIpcOpenMemHandle_v2((CUdeviceptr *)pointer, same, flags));
}

static cudaError_t make_pool(cudaMemPool_t *pool, const struct cudaMemPoolProps *properties)
{
	CUmemPoolProps same = { .allocType = CU_MEM_ALLOCATION_TYPE_PINNED };

	if (!properties)
		return cudaErrorInvalidValue;
	same.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	same.location.id = properties->location.id;
	return of_driver(driver.cuMemPoolCreate(pool, &same));
}

API(cudaMalloc, (void **devPtr, size_t size), allocate(devPtr, size))
API(cudaMallocManaged, (void **devPtr, size_t size, unsigned int flags),
    of_driver(driver.cuMemAllocManaged((CUdeviceptr *)devPtr, size, flags)))
API(cudaMallocPitch, (void **devPtr, size_t *pitch, size_t width, size_t height),
    allocate_pitched(devPtr, pitch, width, height))
API(cudaMalloc3D, (struct cudaPitchedPtr * pitchedDevPtr, struct cudaExtent extent),
    allocate_box(pitchedDevPtr, extent))
API(cudaFree, (void *devPtr),
    devPtr ? of_driver(driver.cuMemFree_v2(address_of(devPtr))) : cudaSuccess)
API(cudaMallocHost, (void **ptr, size_t size), allocate_host(ptr, size, 0))
API(cudaHostAlloc, (void **pHost, size_t size, unsigned int flags),
    allocate_host(pHost, size, flags))
API(cudaFreeHost, (void *ptr), ptr ? of_driver(driver.cuMemFreeHost(ptr)) : cudaSuccess)
API(cudaHostRegister, (void *ptr, size_t size, unsigned int flags),
    of_driver(driver.cuMemHostRegister_v2(ptr, size, flags)))
API(cudaHostUnregister, (void *ptr), of_driver(driver.cuMemHostUnregister(ptr)))
API(cudaHostGetDevicePointer, (void **pDevice, void *pHost, unsigned int flags),
    of_driver(driver.cuMemHostGetDevicePointer_v2((CUdeviceptr *)pDevice, pHost, flags)))
API(cudaMemGetInfo, (size_t * free, size_t *total), of_driver(driver.cuMemGetInfo_v2(free, total)))
API_PTSZ(cudaMallocAsync, (void **devPtr, size_t size, cudaStream_t stream),
	 of_driver(driver.cuMemAllocAsync((CUdeviceptr *)devPtr, size, stream)))
API_PTSZ(cudaMallocFromPoolAsync,
	 (void **ptr, size_t size, cudaMemPool_t memPool, cudaStream_t stream),
	 of_driver(driver.cuMemAllocFromPoolAsync((CUdeviceptr *)ptr, size, memPool, stream)))
API_PTSZ(cudaFreeAsync, (void *devPtr, cudaStream_t stream),
	 of_driver(driver.cuMemFreeAsync(address_of(devPtr), stream)))
API(cudaMemPoolCreate, (cudaMemPool_t * memPool, const struct cudaMemPoolProps *poolProps),
    make_pool(memPool, poolProps))
API(cudaMemPoolDestroy, (cudaMemPool_t memPool), of_driver(driver.cuMemPoolDestroy(memPool)))
API(cudaMemPoolTrimTo, (cudaMemPool_t memPool, size_t minBytesToKeep),
    of_driver(driver.cuMemPoolTrimTo(memPool, minBytesToKeep)))
API(cudaMemPoolSetAttribute, (cudaMemPool_t memPool, enum cudaMemPoolAttr attr, void *value),
    of_driver(driver.cuMemPoolSetAttribute(memPool, (CUmemPool_attribute)attr, value)))
API(cudaDeviceGetDefaultMemPool, (cudaMemPool_t * memPool, int device),
    of_driver(driver.cuDeviceGetDefaultMemPool(memPool, device)))
API(cudaDeviceGetMemPool, (cudaMemPool_t * memPool, int device),
    of_driver(driver.cuDeviceGetMemPool(memPool, device)))
API(cudaDeviceSetMemPool, (int device, cudaMemPool_t memPool),
    of_driver(driver.cuDeviceSetMemPool(device, memPool)))
API(cudaIpcGetMemHandle, (cudaIpcMemHandle_t * handle, void *devPtr),
    of_driver(driver.cuIpcGetMemHandle((CUipcMemHandle *)handle, address_of(devPtr))))
API(cudaIpcOpenMemHandle, (void **devPtr, cudaIpcMemHandle_t handle, unsigned int flags),
    open_handle(devPtr, &handle, flags))
API(cudaIpcCloseMemHandle, (void *devPtr),
    of_driver(driver.cuIpcCloseMemHandle(address_of(devPtr))))
API(cudaMallocArray,
    (cudaArray_t * array, const struct cudaChannelFormatDesc *desc, size_t width, size_t height,
     unsigned int flags),
    ((void)flags, allocate_array(array, desc, (struct cudaExtent){ width, height, 0 })))
API(cudaMalloc3DArray,
    (cudaArray_t * array, const struct cudaChannelFormatDesc *desc, struct cudaExtent extent,
     unsigned int flags),
    ((void)flags, allocate_array(array, desc, extent)))
API(cudaFreeArray, (cudaArray_t array),
    array ? of_driver(driver.cuArrayDestroy((CUarray)array)) : cudaSuccess)
