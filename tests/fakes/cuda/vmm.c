/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Virtual memory management: physical memory by handle, address ranges, and what is mapped where. Memory
 * is given back when its last handle is released and its last mapping is gone, in whichever order.
 */
#include "driver.h"

#define GRANULARITY (2ULL << 20)

static bool is_granular(uint64_t number)
{
	return number && number % GRANULARITY == 0;
}

static void give_back_if_unused(struct allocation *physical)
{
	if (!physical->handles && !physical->maps)
		arena_give_back(physical);
}

static CUresult create(CUmemGenericAllocationHandle *handle, size_t bytes,
		       const CUmemAllocationProp *properties)
{
	struct allocation *taken;
	LOCKED();

	if (!handle || !is_granular(bytes) || !properties ||
	    properties->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
	    properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		return CUDA_ERROR_INVALID_VALUE;
	if (device_check(properties->location.id) != CUDA_SUCCESS)
		return CUDA_ERROR_INVALID_DEVICE;
	taken = arena_take(MEMORY_PHYSICAL, bytes, 0, properties->location.id);
	if (!taken)
		return CUDA_ERROR_OUT_OF_MEMORY;
	taken->handles = 1;
	*handle = taken->address;
	return CUDA_SUCCESS;
}

static CUresult release(CUmemGenericAllocationHandle handle)
{
	struct allocation *physical;
	LOCKED();

	physical = arena_find(handle, MEMORY_PHYSICAL);
	if (!physical || !physical->handles)
		return CUDA_ERROR_INVALID_VALUE;
	physical->handles--;
	give_back_if_unused(physical);
	return CUDA_SUCCESS;
}

static CUresult retain(CUmemGenericAllocationHandle *handle, const void *address)
{
	const struct allocation *mapping;
	struct allocation *physical;
	LOCKED();

	mapping = arena_find_around((uintptr_t)address, MEMORY_MAPPING);
	if (!handle || !mapping)
		return CUDA_ERROR_INVALID_VALUE;
	physical = arena_find(mapping->physical, MEMORY_PHYSICAL);
	physical->handles++;
	*handle = physical->address;
	return CUDA_SUCCESS;
}

static CUresult reserve(CUdeviceptr *pointer, size_t bytes)
{
	const struct allocation *taken;
	LOCKED();

	if (!pointer || !is_granular(bytes))
		return CUDA_ERROR_INVALID_VALUE;
	taken = arena_take(MEMORY_ADDRESS, bytes, 0, context_device());
	if (!taken)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*pointer = taken->address;
	return CUDA_SUCCESS;
}

static const struct allocation *mapping_within(uint64_t address, uint64_t bytes)
{
	for (uint64_t at = address; at - address < bytes; at += GRANULARITY) {
		const struct allocation *mapping = arena_find_around(at, MEMORY_MAPPING);

		if (mapping)
			return mapping;
	}
	return NULL;
}

static CUresult free_range(CUdeviceptr pointer, size_t bytes)
{
	struct allocation *range;
	LOCKED();

	range = arena_find(pointer, MEMORY_ADDRESS);
	if (!range || range->bytes != bytes || mapping_within(pointer, bytes))
		return CUDA_ERROR_INVALID_VALUE;
	arena_give_back(range);
	return CUDA_SUCCESS;
}

static CUresult map(CUdeviceptr pointer, size_t bytes, size_t offset,
		    CUmemGenericAllocationHandle handle)
{
	const struct allocation *range;
	struct allocation *physical, *mapping;
	LOCKED();

	range = arena_find_around(pointer, MEMORY_ADDRESS);
	physical = arena_find(handle, MEMORY_PHYSICAL);
	if (!range || !physical || !is_granular(bytes) || offset % GRANULARITY ||
	    pointer % GRANULARITY || bytes > range->bytes - (pointer - range->address) ||
	    offset > physical->bytes || bytes > physical->bytes - offset ||
	    mapping_within(pointer, bytes))
		return CUDA_ERROR_INVALID_VALUE;
	mapping = arena_take(MEMORY_MAPPING, bytes, pointer, physical->device);
	if (!mapping)
		return CUDA_ERROR_OUT_OF_MEMORY;
	mapping->physical = handle;
	physical->maps++;
	return CUDA_SUCCESS;
}

/* A range must be unmapped as it was mapped; it may hold several mappings, side by side. */
static CUresult unmap(CUdeviceptr pointer, size_t bytes)
{
	LOCKED();

	if (!is_granular(bytes))
		return CUDA_ERROR_INVALID_VALUE;
	for (uint64_t at = pointer; at < pointer + bytes;) {
		const struct allocation *mapping = arena_find(at, MEMORY_MAPPING);

		if (!mapping || mapping->bytes > pointer + bytes - at)
			return CUDA_ERROR_INVALID_VALUE;
		at += mapping->bytes;
	}
	for (uint64_t at = pointer; at < pointer + bytes;) {
		struct allocation *mapping = arena_find(at, MEMORY_MAPPING);
		struct allocation *physical = arena_find(mapping->physical, MEMORY_PHYSICAL);

		at += mapping->bytes;
		arena_give_back(mapping);
		physical->maps--;
		give_back_if_unused(physical);
	}
	return CUDA_SUCCESS;
}

static CUresult set_access(CUdeviceptr pointer, size_t bytes, const CUmemAccessDesc *access,
			   size_t count)
{
	LOCKED();

	return access && count && is_granular(bytes) && mapping_within(pointer, bytes)
		       ? CUDA_SUCCESS
		       : CUDA_ERROR_INVALID_VALUE;
}

API(cuMemCreate,
    (CUmemGenericAllocationHandle * handle, size_t size, const CUmemAllocationProp *prop,
     unsigned long long flags),
    flags ? CUDA_ERROR_INVALID_VALUE : create(handle, size, prop))
API(cuMemRelease, (CUmemGenericAllocationHandle handle), release(handle))
API(cuMemRetainAllocationHandle, (CUmemGenericAllocationHandle * handle, void *addr),
    retain(handle, addr))
API(cuMemAddressReserve,
    (CUdeviceptr * ptr, size_t size, size_t alignment, CUdeviceptr addr, unsigned long long flags),
    ((void)alignment, (void)addr, flags ? CUDA_ERROR_INVALID_VALUE : reserve(ptr, size)))
API(cuMemAddressFree, (CUdeviceptr ptr, size_t size), free_range(ptr, size))
API(cuMemMap,
    (CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
     unsigned long long flags),
    flags ? CUDA_ERROR_INVALID_VALUE : map(ptr, size, offset, handle))
API(cuMemUnmap, (CUdeviceptr ptr, size_t size), unmap(ptr, size))
API(cuMemSetAccess, (CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count),
    set_access(ptr, size, desc, count))
API(cuMemGetAllocationGranularity,
    (size_t * granularity, const CUmemAllocationProp *prop,
     CUmemAllocationGranularity_flags option),
    ((void)option,
     granularity &&prop ? (*granularity = GRANULARITY, CUDA_SUCCESS) : CUDA_ERROR_INVALID_VALUE))
