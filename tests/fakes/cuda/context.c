/* SPDX-License-Identifier: Apache-2.0 */
/* Devices, and the contexts that threads work in. */
#include <stdio.h>
#include <string.h>

#include "driver.h"

#define CONTEXTS_MAX 64
#define STACK_MAX    16
#define CAPABILITY   9 /* compute capability 9.0 */

static struct CUctx_st primaries[DEVICES_MAX], contexts[CONTEXTS_MAX];
static _Thread_local CUcontext stack[STACK_MAX];
static _Thread_local unsigned int depth;

bool context_is_valid(CUcontext context)
{
	return IS_SLOT(primaries, context) || IS_SLOT(contexts, context);
}

CUcontext context_current(void)
{
	return depth && stack[depth - 1] && stack[depth - 1]->in_use ? stack[depth - 1] : NULL;
}

int context_device(void)
{
	CUcontext context = context_current();

	return context ? context->device : -1;
}

CUresult device_check(CUdevice device)
{
	if (!devices_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	return device >= 0 && device < devices_count() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

static CUresult push(CUcontext context)
{
	if (depth == STACK_MAX || !context_is_valid(context))
		return CUDA_ERROR_INVALID_CONTEXT;
	stack[depth++] = context;
	return CUDA_SUCCESS;
}

static CUresult pop(CUcontext *context)
{
	if (!depth)
		return CUDA_ERROR_INVALID_CONTEXT;
	depth--;
	if (context)
		*context = stack[depth];
	return CUDA_SUCCESS;
}

static CUresult set_current(CUcontext context)
{
	if (context && !context_is_valid(context))
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!depth)
		depth = 1;
	stack[depth - 1] = context;
	return CUDA_SUCCESS;
}

static CUresult create(CUcontext *context, unsigned int flags, CUdevice device)
{
	CUresult status = device_check(device);
	LOCKED();

	if (status != CUDA_SUCCESS)
		return status;
	if (!context)
		return CUDA_ERROR_INVALID_VALUE;
	*context = TAKE_SLOT(contexts);
	if (!*context)
		return CUDA_ERROR_OUT_OF_MEMORY;
	(*context)->device = device;
	(*context)->flags = flags;
	return push(*context);
}

/* With the lock held. */
static void end(CUcontext context, bool whole_device)
{
	memory_of_context_ends(context, whole_device);
	streams_of_context_end(context);
	context->in_use = false;
	context->references = 0;
}

static CUresult destroy(CUcontext context)
{
	LOCKED();

	if (!IS_SLOT(contexts, context))
		return CUDA_ERROR_INVALID_CONTEXT;
	end(context, false);
	if (depth && stack[depth - 1] == context)
		depth--;
	return CUDA_SUCCESS;
}

static CUresult retain_primary(CUcontext *context, CUdevice device)
{
	CUresult status = device_check(device);
	LOCKED();

	if (status != CUDA_SUCCESS)
		return status;
	if (!context)
		return CUDA_ERROR_INVALID_VALUE;
	*context = &primaries[device];
	(*context)->device = device;
	(*context)->in_use = true;
	(*context)->references++;
	return CUDA_SUCCESS;
}

static CUresult release_primary(CUdevice device)
{
	CUresult status = device_check(device);
	LOCKED();

	if (status != CUDA_SUCCESS)
		return status;
	if (!primaries[device].in_use)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!--primaries[device].references)
		end(&primaries[device], true);
	return CUDA_SUCCESS;
}

static CUresult reset_primary(CUdevice device)
{
	CUresult status = device_check(device);
	LOCKED();

	if (status == CUDA_SUCCESS && primaries[device].in_use)
		end(&primaries[device], true);
	return status;
}

static CUresult primary_state(CUdevice device, unsigned int *flags, int *active)
{
	CUresult status = device_check(device);

	if (status == CUDA_SUCCESS && flags && active) {
		*flags = primaries[device].flags;
		*active = primaries[device].in_use;
	}
	return status;
}

static CUresult enable_peer(CUcontext peer, bool enable)
{
	CUcontext context = context_current();
	unsigned int bit;
	LOCKED();

	if (!context || !context_is_valid(peer) || peer->device == context->device)
		return CUDA_ERROR_INVALID_CONTEXT;
	bit = 1u << peer->device;
	if (!!(context->peers & bit) == enable)
		return enable ? CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED
			      : CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
	context->peers ^= bit;
	return CUDA_SUCCESS;
}

static CUresult name_device(char *name, int bytes, CUdevice device)
{
	CUresult status = device_check(device);

	if (status == CUDA_SUCCESS)
		snprintf(name, (size_t)bytes, "Fake GPU %d", device);
	return status;
}

/* "fake GPU" and the device's number. */
static CUresult identify_device(CUuuid *uuid, CUdevice device)
{
	CUresult status = device_check(device);

	if (status == CUDA_SUCCESS) {
		memcpy(uuid->bytes, "fake GPU\0\0\0\0\0\0\0", sizeof(uuid->bytes));
		uuid->bytes[sizeof(uuid->bytes) - 1] = (char)device;
	}
	return status;
}

static CUresult describe_device(int *value, CUdevice_attribute attribute, CUdevice device)
{
	CUresult status = device_check(device);

	if (status != CUDA_SUCCESS || !value)
		return status ? status : CUDA_ERROR_INVALID_VALUE;
	switch (attribute) {
	case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
		*value = THREADS_PER_BLOCK_MAX;
		break;
	case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
		*value = CAPABILITY;
		break;
	case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
	case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY:
	case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
	case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
		*value = 1;
		break;
	case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
		*value = device + 1;
		break;
	default:
		*value = 0;
	}
	return CUDA_SUCCESS;
}

API(cuDeviceGet, (CUdevice * device, int ordinal),
    !device_check(ordinal) ? (*device = ordinal, CUDA_SUCCESS) : device_check(ordinal))
API(cuDeviceGetCount, (int *count),
    devices_ready() ? (*count = devices_count(), CUDA_SUCCESS) : CUDA_ERROR_NOT_INITIALIZED)
API(cuDeviceGetName, (char *name, int len, CUdevice dev), name_device(name, len, dev))
API(cuDeviceGetUuid, (CUuuid * uuid, CUdevice dev), identify_device(uuid, dev))
API(cuDeviceGetUuid_v2, (CUuuid * uuid, CUdevice dev), identify_device(uuid, dev))
API(cuDeviceTotalMem_v2, (size_t * bytes, CUdevice dev),
    device_check(dev) ? device_check(dev) : (*bytes = device_capacity(), CUDA_SUCCESS))
API(cuDeviceGetAttribute, (int *pi, CUdevice_attribute attrib, CUdevice dev),
    describe_device(pi, attrib, dev))
API(cuDeviceGetPCIBusId, (char *pciBusId, int len, CUdevice dev),
    device_check(dev) ? device_check(dev)
		      : (snprintf(pciBusId, (size_t)len, "0000:%02x:00.0", (unsigned int)dev + 1),
			 CUDA_SUCCESS))
API(cuDeviceCanAccessPeer, (int *canAccessPeer, CUdevice dev, CUdevice peerDev),
    device_check(dev) || device_check(peerDev) ? CUDA_ERROR_INVALID_DEVICE
					       : (*canAccessPeer = dev != peerDev, CUDA_SUCCESS))
API(cuDevicePrimaryCtxRetain, (CUcontext * pctx, CUdevice dev), retain_primary(pctx, dev))
API(cuDevicePrimaryCtxRelease_v2, (CUdevice dev), release_primary(dev))
API(cuDevicePrimaryCtxReset_v2, (CUdevice dev), reset_primary(dev))
API(cuDevicePrimaryCtxSetFlags_v2, (CUdevice dev, unsigned int flags),
    ((void)flags, device_check(dev)))
API(cuDevicePrimaryCtxGetState, (CUdevice dev, unsigned int *flags, int *active),
    primary_state(dev, flags, active))
API(cuCtxCreate_v2, (CUcontext * pctx, unsigned int flags, CUdevice dev), create(pctx, flags, dev))
API(cuCtxCreate_v3,
    (CUcontext * pctx, CUexecAffinityParam *paramsArray, int numParams, unsigned int flags,
     CUdevice dev),
    ((void)paramsArray, (void)numParams, create(pctx, flags, dev)))
API(cuCtxCreate_v4,
    (CUcontext * pctx, CUctxCreateParams *ctxCreateParams, unsigned int flags, CUdevice dev),
    ((void)ctxCreateParams, create(pctx, flags, dev)))
API(cuCtxDestroy_v2, (CUcontext ctx), destroy(ctx))
API(cuCtxPushCurrent_v2, (CUcontext ctx), push(ctx))
API(cuCtxPopCurrent_v2, (CUcontext * pctx), pop(pctx))
API(cuCtxSetCurrent, (CUcontext ctx), set_current(ctx))
API(cuCtxGetCurrent, (CUcontext * pctx), (*pctx = context_current(), CUDA_SUCCESS))
API(cuCtxGetDevice, (CUdevice * device),
    context_current() ? (*device = context_device(), CUDA_SUCCESS) : CUDA_ERROR_INVALID_CONTEXT)
API(cuCtxSynchronize, (void),
    context_current() ? device_wait(context_device()) : CUDA_ERROR_INVALID_CONTEXT)
API(cuCtxEnablePeerAccess, (CUcontext peerContext, unsigned int Flags),
    Flags ? CUDA_ERROR_INVALID_VALUE : enable_peer(peerContext, true))
API(cuCtxDisablePeerAccess, (CUcontext peerContext), enable_peer(peerContext, false))
