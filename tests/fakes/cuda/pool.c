/* SPDX-License-Identifier: Apache-2.0 */
/* Stream-ordered memory: pools, and what is allocated from them. */
#include "driver.h"

#define POOLS_MAX 256

struct CUmemPoolHandle_st {
	int device;
	bool in_use;
};

static struct CUmemPoolHandle_st defaults[DEVICES_MAX], pools[POOLS_MAX];
static CUmemoryPool current[DEVICES_MAX]; /* NULL: the default one */

static CUmemoryPool default_pool(int device)
{
	defaults[device] = (struct CUmemPoolHandle_st){ device, true };
	return &defaults[device];
}

static bool is_pool(CUmemoryPool pool)
{
	return IS_SLOT(defaults, pool) || IS_SLOT(pools, pool);
}

static CUmemoryPool pool_of(int device)
{
	return current[device] && is_pool(current[device]) ? current[device] : default_pool(device);
}

static CUresult take(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream)
{
	CUresult status = stream_enqueue(stream, 0, CU_GRAPH_NODE_TYPE_MEM_ALLOC, NULL);
	struct allocation *taken;
	LOCKED();

	if (status != CUDA_SUCCESS)
		return status;
	if (!pointer || !bytes)
		return CUDA_ERROR_INVALID_VALUE;
	*pointer = 0;
	if (!pool)
		pool = pool_of(context_device());
	if (!is_pool(pool))
		return CUDA_ERROR_INVALID_VALUE;
	taken = arena_take(MEMORY_POOL, bytes, 0, pool->device);
	if (!taken)
		return CUDA_ERROR_OUT_OF_MEMORY;
	taken->pool = pool;
	*pointer = taken->address;
	return CUDA_SUCCESS;
}

static CUresult give_back(CUdeviceptr pointer, CUstream stream)
{
	CUresult status = stream_enqueue(stream, 0, CU_GRAPH_NODE_TYPE_MEM_FREE, NULL);

	return status ? status : memory_end(pointer, MEMORY_POOL | MEMORY_DEVICE);
}

static CUresult new_pool(CUmemoryPool *pool, const CUmemPoolProps *properties)
{
	LOCKED();

	if (!pool || !properties || properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
	    device_check(properties->location.id) != CUDA_SUCCESS)
		return CUDA_ERROR_INVALID_VALUE;
	*pool = TAKE_SLOT(pools);
	if (!*pool)
		return CUDA_ERROR_OUT_OF_MEMORY;
	(*pool)->device = properties->location.id;
	return CUDA_SUCCESS;
}

/* What is allocated from it stays until it is freed; the handle is no longer good. */
static CUresult end_pool(CUmemoryPool pool)
{
	LOCKED();

	if (!IS_SLOT(pools, pool))
		return CUDA_ERROR_INVALID_VALUE;
	if (current[pool->device] == pool)
		current[pool->device] = NULL;
	pool->in_use = false;
	return CUDA_SUCCESS;
}

static CUresult check_pool(CUmemoryPool pool)
{
	LOCKED();

	return is_pool(pool) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult get_pool(CUmemoryPool *pool, CUdevice device, bool of_default)
{
	LOCKED();

	if (!pool || device_check(device) != CUDA_SUCCESS)
		return CUDA_ERROR_INVALID_VALUE;
	*pool = of_default ? default_pool(device) : pool_of(device);
	return CUDA_SUCCESS;
}

static CUresult set_pool(CUdevice device, CUmemoryPool pool)
{
	LOCKED();

	if (device_check(device) != CUDA_SUCCESS || !is_pool(pool) || pool->device != device)
		return CUDA_ERROR_INVALID_VALUE;
	current[device] = pool;
	return CUDA_SUCCESS;
}

API_PTSZ(cuMemAllocAsync, (CUdeviceptr * dptr, size_t bytesize, CUstream hStream),
	 take(dptr, bytesize, NULL, hStream))
API_PTSZ(cuMemAllocFromPoolAsync,
	 (CUdeviceptr * dptr, size_t bytesize, CUmemoryPool pool, CUstream hStream),
	 pool ? take(dptr, bytesize, pool, hStream) : CUDA_ERROR_INVALID_VALUE)
API_PTSZ(cuMemFreeAsync, (CUdeviceptr dptr, CUstream hStream), give_back(dptr, hStream))
API(cuMemPoolCreate, (CUmemoryPool * pool, const CUmemPoolProps *poolProps),
    new_pool(pool, poolProps))
API(cuMemPoolDestroy, (CUmemoryPool pool), end_pool(pool))
API(cuMemPoolTrimTo, (CUmemoryPool pool, size_t minBytesToKeep),
    ((void)minBytesToKeep, check_pool(pool)))
API(cuMemPoolSetAttribute, (CUmemoryPool pool, CUmemPool_attribute attr, void *value),
    ((void)attr, value ? check_pool(pool) : CUDA_ERROR_INVALID_VALUE))
API(cuDeviceGetDefaultMemPool, (CUmemoryPool * pool_out, CUdevice dev),
    get_pool(pool_out, dev, true))
API(cuDeviceGetMemPool, (CUmemoryPool * pool, CUdevice dev), get_pool(pool, dev, false))
API(cuDeviceSetMemPool, (CUdevice dev, CUmemoryPool pool), set_pool(dev, pool))
