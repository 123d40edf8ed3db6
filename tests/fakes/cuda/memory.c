/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that is one address: device, pitched, managed, pinned, registered, imported; and arrays. */
#include <string.h>
#include <unistd.h>

#include "driver.h"

#define PITCH_ALIGN 512ULL
#define IPC_MAGIC   0x66616b65637564ULL

struct ipc {
	uint64_t magic, address, bytes;
};
_Static_assert(sizeof(struct ipc) <= CU_IPC_HANDLE_SIZE, "what an IPC handle holds");

CUresult memory_new(CUdeviceptr *pointer, enum memory memory, uint64_t bytes)
{
	struct allocation *taken;
	LOCKED();

	if (!pointer || !bytes)
		return CUDA_ERROR_INVALID_VALUE;
	*pointer = 0;
	if (!context_current())
		return CUDA_ERROR_INVALID_CONTEXT;
	taken = arena_take(memory, bytes, 0, context_device());
	if (!taken)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*pointer = taken->address;
	return CUDA_SUCCESS;
}

CUresult memory_end(CUdeviceptr pointer, unsigned int memories)
{
	struct allocation *found;
	LOCKED();

	found = arena_find(pointer, memories);
	if (!found)
		return CUDA_ERROR_INVALID_VALUE;
	arena_give_back(found);
	return CUDA_SUCCESS;
}

struct ending {
	CUcontext context;
	bool whole_device;
};

/*
 * A context owns what was allocated in it, pinned host memory included. Memory of pools belongs to the
 * device: only a reset of the device takes it. Physical memory (cuMemCreate) belongs to its handles.
 */
static bool ends_with(const struct allocation *one, const void *argument)
{
	const struct ending *ending = argument;

	if (one->memory == MEMORY_POOL)
		return ending->whole_device && one->device == ending->context->device;
	return one->memory != MEMORY_PHYSICAL && one->context == ending->context;
}

void memory_of_context_ends(CUcontext context, bool whole_device)
{
	arena_give_back_where(ends_with, &(struct ending){ context, whole_device });
}

static CUresult new_pitched(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height,
			    unsigned int element)
{
	if (!pitch || !width || !height || (element != 4 && element != 8 && element != 16))
		return CUDA_ERROR_INVALID_VALUE;
	if (width > device_capacity() || height > device_capacity())
		return CUDA_ERROR_OUT_OF_MEMORY;
	*pitch = (width + PITCH_ALIGN - 1) / PITCH_ALIGN * PITCH_ALIGN;
	return memory_new(pointer, MEMORY_DEVICE, *pitch * height);
}

static CUresult new_host(void **pointer, size_t bytes)
{
	CUdeviceptr address = 0;
	CUresult status =
		pointer ? memory_new(&address, MEMORY_HOST, bytes) : CUDA_ERROR_INVALID_VALUE;

	if (pointer)
		*pointer = (void *)(uintptr_t)address;
	return status;
}

static CUresult free_device(CUdeviceptr pointer)
{
	if (!context_current())
		return CUDA_ERROR_INVALID_CONTEXT;
	device_wait(context_device());
	return memory_end(pointer, MEMORY_DEVICE | MEMORY_MANAGED | MEMORY_POOL);
}

static CUresult register_host(void *pointer, size_t bytes)
{
	uint64_t address = (uintptr_t)pointer;
	LOCKED();

	if (!pointer || !bytes)
		return CUDA_ERROR_INVALID_VALUE;
	if (!context_current())
		return CUDA_ERROR_INVALID_CONTEXT;
	if (arena_find(address, MEMORY_REGISTERED))
		return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
	return arena_take(MEMORY_REGISTERED, bytes, address, context_device())
		       ? CUDA_SUCCESS
		       : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult unregister_host(const void *pointer)
{
	return memory_end((uintptr_t)pointer, MEMORY_REGISTERED) == CUDA_SUCCESS
		       ? CUDA_SUCCESS
		       : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}

static CUresult memory_info(size_t *unused, size_t *total)
{
	LOCKED();

	if (!unused || !total)
		return CUDA_ERROR_INVALID_VALUE;
	if (!context_current())
		return CUDA_ERROR_INVALID_CONTEXT;
	*total = device_capacity();
	*unused = *total - arena_used_bytes(context_device());
	return CUDA_SUCCESS;
}

static CUresult address_range(CUdeviceptr *base, size_t *bytes, CUdeviceptr pointer)
{
	const struct allocation *found;
	LOCKED();

	found = arena_find(pointer, MEMORY_DEVICE | MEMORY_MANAGED | MEMORY_POOL);
	if (!found)
		return CUDA_ERROR_NOT_FOUND;
	if (base)
		*base = found->address;
	if (bytes)
		*bytes = found->bytes;
	return CUDA_SUCCESS;
}

static CUresult ipc_handle(CUipcMemHandle *handle, CUdeviceptr pointer)
{
	const struct allocation *found;
	struct ipc ipc = { .magic = IPC_MAGIC, .address = pointer };
	LOCKED();

	found = arena_find(pointer, MEMORY_DEVICE);
	if (!handle || !found)
		return CUDA_ERROR_INVALID_VALUE;
	ipc.bytes = found->bytes;
	memset(handle, 0, sizeof(*handle));
	memcpy(handle, &ipc, sizeof(ipc));
	return CUDA_SUCCESS;
}

/* A real driver refuses a handle of the same process; here a test needs no second one. */
static CUresult ipc_open(CUdeviceptr *pointer, CUipcMemHandle handle)
{
	struct ipc ipc;

	memcpy(&ipc, &handle, sizeof(ipc));
	if (ipc.magic != IPC_MAGIC)
		return CUDA_ERROR_INVALID_VALUE;
	return memory_new(pointer, MEMORY_IMPORTED, ipc.bytes);
}

static uint64_t texel_bytes(CUarray_format format, unsigned int channels)
{
	switch (format) {
	case CU_AD_FORMAT_UNSIGNED_INT16:
	case CU_AD_FORMAT_SIGNED_INT16:
	case CU_AD_FORMAT_HALF:
		return 2ULL * channels;
	case CU_AD_FORMAT_UNSIGNED_INT32:
	case CU_AD_FORMAT_SIGNED_INT32:
	case CU_AD_FORMAT_FLOAT:
		return 4ULL * channels;
	default:
		return channels;
	}
}

static CUresult new_array(CUarray *array, CUarray_format format, unsigned int channels,
			  size_t width, size_t height, size_t depth)
{
	uint64_t rows = (height ? height : 1) * (depth ? depth : 1);
	CUdeviceptr address = 0;
	CUresult status;

	if (!array || !width || channels < 1 || channels > 4)
		return CUDA_ERROR_INVALID_VALUE;
	status = memory_new(&address, MEMORY_ARRAY, width * rows * texel_bytes(format, channels));
	*array = (CUarray)(uintptr_t)address;
	return status;
}

API(cuMemAlloc_v2, (CUdeviceptr * dptr, size_t bytesize), memory_new(dptr, MEMORY_DEVICE, bytesize))
API(cuMemAllocPitch_v2,
    (CUdeviceptr * dptr, size_t *pPitch, size_t WidthInBytes, size_t Height,
     unsigned int ElementSizeBytes),
    new_pitched(dptr, pPitch, WidthInBytes, Height, ElementSizeBytes))
API(cuMemAllocManaged, (CUdeviceptr * dptr, size_t bytesize, unsigned int flags),
    flags == CU_MEM_ATTACH_GLOBAL || flags == CU_MEM_ATTACH_HOST
	    ? memory_new(dptr, MEMORY_MANAGED, bytesize)
	    : CUDA_ERROR_INVALID_VALUE)
API(cuMemFree_v2, (CUdeviceptr dptr), free_device(dptr))
API(cuMemAllocHost_v2, (void **pp, size_t bytesize), new_host(pp, bytesize))
API(cuMemHostAlloc, (void **pp, size_t bytesize, unsigned int Flags),
    Flags <= 0x7 ? new_host(pp, bytesize) : CUDA_ERROR_INVALID_VALUE)
API(cuMemFreeHost, (void *p), memory_end((uintptr_t)p, MEMORY_HOST))
API(cuMemHostRegister_v2, (void *p, size_t bytesize, unsigned int Flags),
    Flags <= 0xf ? register_host(p, bytesize) : CUDA_ERROR_INVALID_VALUE)
API(cuMemHostUnregister, (void *p), unregister_host(p))
API(cuMemHostGetDevicePointer_v2, (CUdeviceptr * pdptr, void *p, unsigned int Flags),
    pdptr && !Flags ? (*pdptr = (uintptr_t)p, CUDA_SUCCESS) : CUDA_ERROR_INVALID_VALUE)
API(cuMemGetInfo_v2, (size_t * free, size_t *total), memory_info(free, total))
API(cuMemGetAddressRange_v2, (CUdeviceptr * pbase, size_t *psize, CUdeviceptr dptr),
    address_range(pbase, psize, dptr))
API(cuIpcGetMemHandle, (CUipcMemHandle * pHandle, CUdeviceptr dptr), ipc_handle(pHandle, dptr))
API(cuIpcOpenMemHandle_v2, (CUdeviceptr * pdptr, CUipcMemHandle handle, unsigned int Flags),
    Flags == CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS ? ipc_open(pdptr, handle)
						: CUDA_ERROR_INVALID_VALUE)
API(cuIpcCloseMemHandle, (CUdeviceptr dptr), memory_end(dptr, MEMORY_IMPORTED))
API(cuArrayCreate_v2, (CUarray * pHandle, const CUDA_ARRAY_DESCRIPTOR *pAllocateArray),
    !pAllocateArray ? CUDA_ERROR_INVALID_VALUE
		    : new_array(pHandle, pAllocateArray->Format, pAllocateArray->NumChannels,
				pAllocateArray->Width, pAllocateArray->Height, 1))
API(cuArray3DCreate_v2, (CUarray * pHandle, const CUDA_ARRAY3D_DESCRIPTOR *pAllocateArray),
    !pAllocateArray
	    ? CUDA_ERROR_INVALID_VALUE
	    : new_array(pHandle, pAllocateArray->Format, pAllocateArray->NumChannels,
			pAllocateArray->Width, pAllocateArray->Height, pAllocateArray->Depth))
API(cuArrayDestroy, (CUarray hArray), memory_end((uintptr_t)hArray, MEMORY_ARRAY))
