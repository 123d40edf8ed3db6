/* SPDX-License-Identifier: Apache-2.0 */
/* The way to the driver, and what each thread holds: its device, its last error. */
#include "runtime.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define DEVICES_MAX 8

/* Of the built-in driver: see tests/fakes/cuda/driver.h. */
void devices_configure(void);
void state_reset_lock(void);

#define DECLARATION(function, name) extern __typeof__(function) standalone_##function;
DRIVER_FUNCTIONS(DECLARATION)
#undef DECLARATION

struct driver driver = {
#define MEMBER(function, name) .function = standalone_##function,
	DRIVER_FUNCTIONS(MEMBER)
#undef MEMBER
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static cudaError_t opened;
static atomic_uint generation = 1; /* grows with each cudaDeviceReset */
static struct {
	CUcontext context;
	unsigned int generation;
} primaries[DEVICES_MAX];

static _Thread_local unsigned int thread_generation; /* of the context that is current */
static _Thread_local int thread_device;
static _Thread_local cudaError_t thread_error;

cudaError_t keep_error(cudaError_t status)
{
	if (__builtin_expect(status != cudaSuccess && status != cudaErrorNotReady, 0))
		thread_error = status;
	return status;
}

cudaError_t last_error(bool clear)
{
	cudaError_t status = thread_error;

	if (clear)
		thread_error = cudaSuccess;
	return status;
}

static bool bind(const char *name, void **function)
{
	CUdriverProcAddressQueryResult found;

	if (driver.cuGetProcAddress_v2(name, function, CUDART_VERSION, CU_GET_PROC_ADDRESS_DEFAULT,
				       &found) == CUDA_SUCCESS)
		return true;
	fprintf(stderr, "libcudart fake: the driver has no %s\n", name);
	return false;
}

static cudaError_t load_driver(const char *path)
{
	void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);

	if (!library) {
		fprintf(stderr, "libcudart fake: FAKE_CUDART_DRIVER: %s\n", dlerror());
		return cudaErrorInsufficientDriver;
	}
	*(void **)&driver.cuGetProcAddress_v2 = dlsym(library, "cuGetProcAddress_v2");
	if (!driver.cuGetProcAddress_v2)
		return cudaErrorInsufficientDriver;
#define BIND(function, name)                         \
	if (!bind(#name, (void **)&driver.function)) \
		return cudaErrorInsufficientDriver;
	DRIVER_FUNCTIONS(BIND)
#undef BIND
	return cudaSuccess;
}

static void open_driver(void)
{
	const char *path = getenv("FAKE_CUDART_DRIVER");

	if (path && *path)
		opened = load_driver(path);
	if (opened == cudaSuccess)
		opened = of_driver(driver.cuInit(0));
}

cudaError_t runtime_open(void)
{
	pthread_once(&once, open_driver);
	return opened;
}

cudaError_t runtime_primary(int device, CUcontext *context)
{
	cudaError_t status = cudaSuccess;

	if (device < 0 || device >= DEVICES_MAX)
		return cudaErrorInvalidDevice;
	pthread_mutex_lock(&lock);
	if (primaries[device].generation != generation) {
		status = of_driver(
			driver.cuDevicePrimaryCtxRetain(&primaries[device].context, device));
		if (status == cudaSuccess)
			primaries[device].generation = generation;
	}
	*context = primaries[device].context;
	pthread_mutex_unlock(&lock);
	return status;
}

cudaError_t runtime_use_device(int device)
{
	CUcontext context;
	cudaError_t status = runtime_open();

	if (status == cudaSuccess)
		status = runtime_primary(device, &context);
	if (status == cudaSuccess)
		status = of_driver(driver.cuCtxSetCurrent(context));
	if (status == cudaSuccess) {
		thread_device = device;
		thread_generation = generation;
	}
	return status;
}

/* A context of the driver API that is current on this thread is taken as it is. */
static cudaError_t begin_slowly(void)
{
	CUdevice device;
	cudaError_t status = runtime_open();

	if (status != cudaSuccess)
		return status;
	if (driver.cuCtxGetDevice(&device) == CUDA_SUCCESS) {
		thread_device = device;
		thread_generation = generation;
		return cudaSuccess;
	}
	return runtime_use_device(thread_device);
}

cudaError_t runtime_begin(void)
{
	return thread_generation == atomic_load_explicit(&generation, memory_order_relaxed)
		       ? cudaSuccess
		       : begin_slowly();
}

int runtime_device(void)
{
	return thread_device;
}

cudaError_t runtime_reset_device(void)
{
	cudaError_t status = of_driver(driver.cuDevicePrimaryCtxReset_v2(thread_device));

	atomic_fetch_add(&generation, 1);
	return status;
}

static void child_of_fork(void)
{
	calls_reset();
	state_reset_lock();
	pthread_mutex_init(&lock, NULL);
}

__attribute__((constructor)) static void library_loaded(void)
{
	calls_configure();
	devices_configure();
	pthread_atfork(NULL, NULL, child_of_fork);
}

/* Runs at exit and at dlclose. */
__attribute__((destructor)) static void library_unloaded(void)
{
	calls_report();
}
