/* SPDX-License-Identifier: Apache-2.0 */
/* Devices, versions, errors. */
#include "runtime.h"

#include <string.h>

static cudaError_t count_devices(int *count)
{
	cudaError_t status = runtime_open();

	if (!count)
		return cudaErrorInvalidValue;
	return status ? status : of_driver(driver.cuDeviceGetCount(count));
}

static cudaError_t describe(struct cudaDeviceProp *properties, int device)
{
	cudaError_t status = runtime_open();

	if (!properties)
		return cudaErrorInvalidValue;
	if (status != cudaSuccess)
		return status;
	memset(properties, 0, sizeof(*properties));
	status = of_driver(
		driver.cuDeviceGetName(properties->name, sizeof(properties->name), device));
	if (status != cudaSuccess)
		return status;
	driver.cuDeviceGetUuid_v2((CUuuid *)&properties->uuid, device);
	driver.cuDeviceTotalMem_v2(&properties->totalGlobalMem, device);
	driver.cuDeviceGetAttribute(&properties->major,
				    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
	driver.cuDeviceGetAttribute(&properties->maxThreadsPerBlock,
				    CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, device);
	return cudaSuccess;
}

static cudaError_t get_device(int *device)
{
	cudaError_t status = runtime_open();

	if (!device)
		return cudaErrorInvalidValue;
	*device = runtime_device();
	return status;
}

static cudaError_t driver_version(int *version)
{
	if (!version)
		return cudaErrorInvalidValue;
	*version = 0; /* as the real one says when there is no driver */
	return runtime_open() ? cudaSuccess : of_driver(driver.cuDriverGetVersion(version));
}

static cudaError_t enable_peer(int device, bool enable)
{
	CUcontext peer;
	cudaError_t status = runtime_primary(device, &peer);

	if (status != cudaSuccess)
		return status;
	return of_driver(enable ? driver.cuCtxEnablePeerAccess(peer, 0)
				: driver.cuCtxDisablePeerAccess(peer));
}

/* As devices of the last ten years say; numbers fall as priority rises. */
static cudaError_t priorities(int *least, int *greatest)
{
	if (least)
		*least = 0;
	if (greatest)
		*greatest = -5;
	return runtime_open();
}

/* Of a thread. What it forbids is not forbidden here. */
static cudaError_t exchange_mode(enum cudaStreamCaptureMode *mode)
{
	static __thread enum cudaStreamCaptureMode current = cudaStreamCaptureModeGlobal;
	enum cudaStreamCaptureMode before = current;

	if (!mode)
		return cudaErrorInvalidValue;
	current = *mode;
	*mode = before;
	return cudaSuccess;
}

static cudaError_t entry_point(const char *symbol, void **function, unsigned int version,
			       enum cudaDriverEntryPointQueryResult *found)
{
	if (!driver.cuGetProcAddress_v2)
		return cudaErrorNotSupported; /* the built-in driver has no exported functions */
	return of_driver(driver.cuGetProcAddress_v2(symbol, function, (int)version, 0,
						    (CUdriverProcAddressQueryResult *)found));
}

API_ALONE(cudaGetDeviceCount, (int *count), count_devices(count))
API_ALONE(cudaGetDeviceProperties_v2, (struct cudaDeviceProp * prop, int device),
	  describe(prop, device))
API_ALONE(cudaSetDevice, (int device), runtime_use_device(device))
API_ALONE(cudaInitDevice, (int device, unsigned int deviceFlags, unsigned int flags),
	  ((void)deviceFlags, (void)flags, runtime_use_device(device)))
API_ALONE(cudaGetDevice, (int *device), get_device(device))
API_ALONE(cudaDeviceGetStreamPriorityRange, (int *leastPriority, int *greatestPriority),
	  priorities(leastPriority, greatestPriority))
API_ALONE(cudaThreadExchangeStreamCaptureMode, (enum cudaStreamCaptureMode * mode),
	  exchange_mode(mode))
API(cudaDeviceSynchronize, (void), of_driver(driver.cuCtxSynchronize()))
API(cudaDeviceReset, (void), runtime_reset_device())
API(cudaDeviceGetAttribute, (int *value, enum cudaDeviceAttr attr, int device),
    of_driver(driver.cuDeviceGetAttribute(value, (CUdevice_attribute)attr, device)))
API(cudaDeviceGetPCIBusId, (char *pciBusId, int len, int device),
    of_driver(driver.cuDeviceGetPCIBusId(pciBusId, len, device)))
API(cudaDeviceCanAccessPeer, (int *canAccessPeer, int device, int peerDevice),
    of_driver(driver.cuDeviceCanAccessPeer(canAccessPeer, device, peerDevice)))
API(cudaDeviceEnablePeerAccess, (int peerDevice, unsigned int flags),
    flags ? cudaErrorInvalidValue : enable_peer(peerDevice, true))
API(cudaDeviceDisablePeerAccess, (int peerDevice), enable_peer(peerDevice, false))
API(cudaGetDriverEntryPoint,
    (const char *symbol, void **funcPtr, unsigned long long flags,
     enum cudaDriverEntryPointQueryResult *driverStatus),
    ((void)flags, entry_point(symbol, funcPtr, CUDART_VERSION, driverStatus)))
API(cudaGetDriverEntryPointByVersion,
    (const char *symbol, void **funcPtr, unsigned int cudaVersion, unsigned long long flags,
     enum cudaDriverEntryPointQueryResult *driverStatus),
    ((void)flags, entry_point(symbol, funcPtr, cudaVersion, driverStatus)))
API_ALONE(cudaDriverGetVersion, (int *driverVersion), driver_version(driverVersion))
API_ALONE(cudaRuntimeGetVersion, (int *runtimeVersion),
	  runtimeVersion ? (*runtimeVersion = CUDART_VERSION, cudaSuccess) : cudaErrorInvalidValue)

CALL_ENTRY(cudaGetLastError, false);
LINKAGE cudaError_t cudaGetLastError(void)
{
	call_begin(&call_cudaGetLastError);
	return last_error(true);
}

CALL_ENTRY(cudaPeekAtLastError, false);
LINKAGE cudaError_t cudaPeekAtLastError(void)
{
	call_begin(&call_cudaPeekAtLastError);
	return last_error(false);
}

CALL_ENTRY(cudaGetErrorName, false);
LINKAGE const char *cudaGetErrorName(cudaError_t error)
{
	call_begin(&call_cudaGetErrorName);
	return error_name(error);
}

CALL_ENTRY(cudaGetErrorString, false);
LINKAGE const char *cudaGetErrorString(cudaError_t error)
{
	call_begin(&call_cudaGetErrorString);
	return error_text(error);
}
