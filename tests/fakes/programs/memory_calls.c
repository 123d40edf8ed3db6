/* SPDX-License-Identifier: Apache-2.0 */
/* Every way to allocate and to free, chosen at random. */
#include <stdlib.h>
#include <string.h>

#include "memory.h"

#define PITCH	    512
#define GRANULARITY (2ULL << 20)
#define TOO_MUCH    (1ULL << 50)
#define BYTES_MAX   (1u << 20)

static uint32_t draw(struct worker *worker, uint32_t below)
{
	worker->random ^= worker->random << 13;
	worker->random ^= worker->random >> 7;
	worker->random ^= worker->random << 17;
	return (uint32_t)(worker->random >> 33) % below;
}

static int allocate_device(struct worker *worker, struct item *item)
{
	size_t pitch, width = PITCH * (1 + draw(worker, 8)), height = 1 + draw(worker, 64);
	struct cudaPitchedPtr box;
	void **pointer = (void **)&item->address;
	int status;

	item->memory = DEVICE;
	switch (draw(worker, 5)) {
	case 0:
		return TRY(cudaMalloc, pointer, item->bytes);
	case 1:
		return TRY(cuMemAlloc, (CUdeviceptr *)&item->address, item->bytes);
	case 2:
		item->bytes = width * height;
		return TRY(cudaMallocPitch, pointer, &pitch, width, height);
	case 3:
		item->bytes = width * height;
		return TRY(cuMemAllocPitch, (CUdeviceptr *)&item->address, &pitch, width, height,
			   4);
	default:
		item->bytes = width * height * 3;
		status = TRY(cudaMalloc3D, &box, (struct cudaExtent){ width, height, 3 });
		item->address = (uintptr_t)box.ptr;
		return status;
	}
}

static int allocate_host(struct worker *worker, struct item *item)
{
	void **pointer = (void **)&item->address;

	item->memory = HOST;
	switch (draw(worker, 4)) {
	case 0:
		return TRY(cudaMallocHost, pointer, item->bytes);
	case 1:
		return TRY(cudaHostAlloc, pointer, item->bytes, cudaHostAllocPortable);
	case 2:
		return TRY(cuMemAllocHost, pointer, item->bytes);
	default:
		return TRY(cuMemHostAlloc, pointer, item->bytes, 0);
	}
}

static int allocate_from_pool(struct worker *worker, struct item *item)
{
	cudaMemPool_t pool;
	void **pointer = (void **)&item->address;

	item->memory = POOL;
	switch (draw(worker, 4)) {
	case 0:
		return TRY(cudaMallocAsync, pointer, item->bytes, cudaStreamPerThread);
	case 1:
		return TRY(cuMemAllocAsync, (CUdeviceptr *)&item->address, item->bytes, NULL);
	case 2:
		must(TRY(cudaDeviceGetDefaultMemPool, &pool, worker->device));
		return TRY(cudaMallocFromPoolAsync, pointer, item->bytes, pool,
			   cudaStreamPerThread);
	default:
		must(TRY(cudaDeviceGetDefaultMemPool, &pool, worker->device));
		return TRY(cuMemAllocFromPoolAsync, (CUdeviceptr *)&item->address, item->bytes,
			   pool, NULL);
	}
}

static int allocate_physical(struct worker *worker, struct item *item)
{
	CUmemAllocationProp properties = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = worker->device },
	};

	item->memory = PHYSICAL;
	item->handles = 1;
	item->bytes = GRANULARITY * (1 + draw(worker, 4));
	return TRY(cuMemCreate, (CUmemGenericAllocationHandle *)&item->address, item->bytes,
		   &properties, 0);
}

static int register_host(struct worker *worker, struct item *item)
{
	void *memory = malloc(item->bytes);
	int status = draw(worker, 2) ? TRY(cudaHostRegister, memory, item->bytes, 0)
				     : TRY(cuMemHostRegister, memory, item->bytes, 0);

	item->memory = REGISTERED;
	item->address = (uintptr_t)memory;
	if (status)
		free(memory);
	return status;
}

/* From a handle of memory of this thread: the fake does not ask for another process. */
static int import(struct worker *worker, struct item *item)
{
	cudaIpcMemHandle_t handle;
	CUipcMemHandle same;

	for (size_t i = 0; i < worker->count; i++) {
		if (worker->items[i].memory != DEVICE)
			continue;
		item->memory = IMPORTED;
		item->bytes = worker->items[i].bytes;
		must(TRY(cudaIpcGetMemHandle, &handle,
			 (void *)(uintptr_t)worker->items[i].address));
		if (draw(worker, 2))
			return TRY(cudaIpcOpenMemHandle, (void **)&item->address, handle,
				   cudaIpcMemLazyEnablePeerAccess);
		memcpy(&same, &handle, sizeof(same));
		return TRY(cuIpcOpenMemHandle, (CUdeviceptr *)&item->address, same,
			   CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
	}
	return -1; /* nothing to export: nothing was called */
}

static int allocate_any(struct worker *worker, struct item *item)
{
	switch (draw(worker, 9)) {
	case 0:
		item->memory = MANAGED;
		return draw(worker, 2) ? TRY(cudaMallocManaged, (void **)&item->address,
					     item->bytes, cudaMemAttachGlobal)
				       : TRY(cuMemAllocManaged, (CUdeviceptr *)&item->address,
					     item->bytes, CU_MEM_ATTACH_GLOBAL);
	case 1:
		return allocate_host(worker, item);
	case 2:
	case 3:
		return allocate_from_pool(worker, item);
	case 4:
		return allocate_physical(worker, item);
	case 5:
		return register_host(worker, item);
	case 6:
		return import(worker, item);
	case 7:
		item->memory = ADDRESS;
		item->bytes = GRANULARITY * (1 + draw(worker, 4));
		return TRY(cuMemAddressReserve, (CUdeviceptr *)&item->address, item->bytes, 0, 0,
			   0);
	default:
		return allocate_device(worker, item);
	}
}

static void allocate(struct worker *worker)
{
	struct item item = { .device = worker->device, .bytes = 1 + draw(worker, BYTES_MAX) };

	if (worker->count == ITEMS_MAX || allocate_any(worker, &item))
		return;
	worker->items[worker->count++] = item;
	came(&item);
}

/* More than there is, and what is not allocated. */
static void fail(struct worker *worker)
{
	uint64_t address = 0;

	switch (draw(worker, 4)) {
	case 0:
		TRY(cudaMalloc, (void **)&address, TOO_MUCH);
		break;
	case 1:
		TRY(cuMemAllocAsync, (CUdeviceptr *)&address, TOO_MUCH, NULL);
		break;
	case 2:
		TRY(cudaFree, (void *)0x020000000001);
		break;
	default:
		TRY(cuMemFree, 0x020000000003);
	}
}

static int free_linear(struct worker *worker, uint64_t address)
{
	switch (draw(worker, 4)) {
	case 0:
		return TRY(cuMemFree, address);
	case 1:
		return TRY(cudaFreeAsync, (void *)(uintptr_t)address, cudaStreamPerThread);
	case 2:
		return TRY(cuMemFreeAsync, address, NULL);
	default:
		return TRY(cudaFree, (void *)(uintptr_t)address);
	}
}

static int free_simple(struct worker *worker, const struct item *item)
{
	void *pointer = (void *)(uintptr_t)item->address;
	bool by_runtime = draw(worker, 2);
	int status;

	switch (item->memory) {
	case DEVICE:
	case POOL:
		return free_linear(worker, item->address);
	case MANAGED:
		return by_runtime ? TRY(cudaFree, pointer) : TRY(cuMemFree, item->address);
	case HOST:
		return by_runtime ? TRY(cudaFreeHost, pointer) : TRY(cuMemFreeHost, pointer);
	case REGISTERED:
		status = by_runtime ? TRY(cudaHostUnregister, pointer)
				    : TRY(cuMemHostUnregister, pointer);
		free(pointer);
		return status;
	case IMPORTED:
		return by_runtime ? TRY(cudaIpcCloseMemHandle, pointer)
				  : TRY(cuIpcCloseMemHandle, item->address);
	default:
		return TRY(cuMemAddressFree, item->address, item->bytes);
	}
}

/* -- Physical memory: handles and mappings come and go on their own ------------------------------------ */

static void map_at(struct worker *worker, struct item *item, uint64_t *mapping)
{
	CUmemAccessDesc access = {
		.location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = item->device },
		.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
	};
	struct item range = { .memory = ADDRESS, .device = item->device, .bytes = item->bytes };

	worker->device = item->device; /* the range counts where the memory does */
	must(TRY(cudaSetDevice, worker->device));
	must(TRY(cuMemAddressReserve, (CUdeviceptr *)mapping, item->bytes, 0, 0, 0));
	came(&range);
	must(TRY(cuMemMap, *mapping, item->bytes, 0, item->address, 0));
	must(TRY(cuMemSetAccess, *mapping, item->bytes, &access, 1));
}

static void unmap(struct item *item, uint64_t *mapping)
{
	struct item range = { .memory = ADDRESS, .device = item->device, .bytes = item->bytes };

	must(TRY(cuMemUnmap, *mapping, item->bytes));
	must(TRY(cuMemAddressFree, *mapping, item->bytes));
	went(&range);
	*mapping = 0;
}

static bool is_used(const struct item *item)
{
	for (int i = 0; i < MAPPINGS_MAX; i++)
		if (item->mappings[i])
			return true;
	return item->handles;
}

/* One step of its life; true when that was the last. */
static bool change_physical(struct worker *worker, struct item *item, bool to_the_end)
{
	uint64_t *mapping = &item->mappings[draw(worker, MAPPINGS_MAX)];
	CUmemGenericAllocationHandle same;

	if (*mapping && !to_the_end && !draw(worker, 3)) {
		must(TRY(cuMemRetainAllocationHandle, &same, (void *)(uintptr_t)*mapping));
		item->handles++;
	} else if (*mapping) {
		unmap(item, mapping);
	} else if (item->handles && !to_the_end && draw(worker, 2)) {
		map_at(worker, item, mapping);
	} else if (item->handles) {
		must(TRY(cuMemRelease, item->address));
		item->handles--;
	}
	return !is_used(item);
}

void let_go(struct worker *worker, size_t index)
{
	went(&worker->items[index]);
	worker->items[index] = worker->items[--worker->count];
}

void release(struct worker *worker, size_t index, bool to_the_end)
{
	struct item *item = &worker->items[index];

	if (item->memory != PHYSICAL) {
		if (!free_simple(worker, item))
			let_go(worker, index);
	} else {
		bool over = change_physical(worker, item, to_the_end);

		while (!over && to_the_end)
			over = change_physical(worker, item, true);
		if (over)
			let_go(worker, index);
	}
}

void operate(struct worker *worker)
{
	uint32_t kind = draw(worker, 100);

	if (kind < 3) {
		fail(worker);
	} else if (kind < 6) {
		worker->device = (int)draw(worker, (uint32_t)device_count);
		must(TRY(cudaSetDevice, worker->device));
	} else if (kind < 55 || !worker->count) {
		allocate(worker);
	} else {
		release(worker, draw(worker, (uint32_t)worker->count), false);
	}
}
