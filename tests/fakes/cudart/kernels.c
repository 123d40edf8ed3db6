/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Host stubs and the kernels behind them. A registered stub is its registered name in its fat binary's
 * library; any other address is a kernel too, named like the function there, or else by the address: programs
 * here need not be nvcc's.
 */
#define _GNU_SOURCE
#include "runtime.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define STUBS_MAX	   65536 /* a power of two */
#define NAME_BYTES	   32
#define CONFIGURATIONS_MAX 64 /* <<<>>> within the arguments of <<<>>> */

struct image {
	const void *fatbin;
	CUlibrary library; /* NULL: not loaded yet */
};

struct stub {
	_Atomic(const void *) address;
	_Atomic(CUfunction) function; /* NULL: never launched */
	struct image *image;
	const char *name;
};

struct configuration {
	dim3 grid, block;
	size_t shared_bytes;
	cudaStream_t stream;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct stub stubs[STUBS_MAX]; /* open addressing; read without the lock */
static size_t stub_count;
static struct image images[4096];
static size_t image_count = 1; /* the first is of what nobody registered */
static _Thread_local struct configuration configurations[CONFIGURATIONS_MAX];
static _Thread_local unsigned int configuration_count;

static size_t place_of(const void *address)
{
	return (uintptr_t)address * 0x9E3779B97F4A7C15ULL >> 48 & (STUBS_MAX - 1);
}

/* Where the address is, or the free place where it belongs. */
static struct stub *find(const void *address)
{
	struct stub *stub = &stubs[place_of(address)];
	const void *there;

	while ((there = atomic_load_explicit(&stub->address, memory_order_acquire)) &&
	       there != address)
		stub = stub == &stubs[STUBS_MAX - 1] ? stubs : stub + 1;
	return stub;
}

/* With the lock held; NULL: the table is full. */
static struct stub *add(const void *address)
{
	struct stub *stub = find(address);

	if (stub->address)
		return stub;
	if (stub_count > STUBS_MAX / 2)
		return NULL;
	stub_count++;
	atomic_store_explicit(&stub->address, address, memory_order_release);
	return stub;
}

/* What a kernel is called whose stub nobody registered: on the host, as its launch is, and on the device. */
static const char *unregistered_name(const void *address, char room[NAME_BYTES])
{
	Dl_info found;

	if (dladdr(address, &found) && found.dli_saddr == address && found.dli_sname)
		return found.dli_sname;
	snprintf(room, NAME_BYTES, "stub_%p", address);
	return room;
}

/* With the lock held: loads the image and asks for the kernel, at the first launch, as the real one does. */
static CUfunction load(struct stub *stub)
{
	struct image *image = stub->image ? stub->image : &images[0];
	char room[NAME_BYTES];
	CUkernel kernel = NULL;

	if (!image->library &&
	    driver.cuLibraryLoadData(&image->library, image->fatbin ? image->fatbin : images, NULL,
				     NULL, 0, NULL, NULL, 0) != CUDA_SUCCESS)
		return NULL;
	if (driver.cuLibraryGetKernel(&kernel, image->library,
				      stub->name ? stub->name
						 : unregistered_name(stub->address, room)) !=
	    CUDA_SUCCESS)
		return NULL;
	atomic_store_explicit(&stub->function, (CUfunction)kernel, memory_order_release);
	stub = add(kernel); /* a handle is launched as a stub is */
	if (stub)
		atomic_store_explicit(&stub->function, (CUfunction)kernel, memory_order_release);
	return (CUfunction)kernel;
}

CUfunction kernel_of(const void *address)
{
	CUfunction function = atomic_load_explicit(&find(address)->function, memory_order_acquire);
	struct stub *stub;

	if (function)
		return function;
	pthread_mutex_lock(&lock);
	stub = add(address);
	if (stub)
		function = stub->function ? stub->function : load(stub);
	pthread_mutex_unlock(&lock);
	return function;
}

cudaError_t kernel_handle(cudaKernel_t *kernel, const void *stub)
{
	if (!kernel)
		return cudaErrorInvalidValue;
	*kernel = stub ? (cudaKernel_t)kernel_of(stub) : NULL;
	return *kernel ? cudaSuccess : cudaErrorInvalidDeviceFunction;
}

static cudaError_t name_kernel(const char **name, const void *function)
{
	if (!name || !function)
		return cudaErrorInvalidValue;
	return of_driver(driver.cuKernelGetName(name, (CUkernel)kernel_of(function)));
}

static cudaError_t library_kernel(cudaKernel_t *kernel, cudaLibrary_t library, const char *name)
{
	cudaError_t status = of_driver(driver.cuLibraryGetKernel(kernel, library, name));
	struct stub *stub;

	if (status != cudaSuccess)
		return status;
	pthread_mutex_lock(&lock);
	stub = add(*kernel);
	if (stub)
		stub->function = (CUfunction)*kernel;
	pthread_mutex_unlock(&lock);
	return stub ? cudaSuccess : cudaErrorMemoryAllocation;
}

static void register_stub(void **module, const void *address, const char *name)
{
	struct stub *stub;

	pthread_mutex_lock(&lock);
	stub = add(address);
	if (stub) {
		stub->image = (struct image *)module;
		stub->name = name;
	}
	pthread_mutex_unlock(&lock);
}

static unsigned int push(dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream)
{
	if (configuration_count == CONFIGURATIONS_MAX)
		return 1; /* the launch is then left out, as `push ? (void)0 : stub()` says */
	configurations[configuration_count++] =
		(struct configuration){ grid, block, shared_bytes, stream };
	return 0;
}

static cudaError_t pop(dim3 *grid, dim3 *block, size_t *shared_bytes, cudaStream_t *stream)
{
	struct configuration *top;

	if (!configuration_count)
		return cudaErrorMissingConfiguration;
	top = &configurations[--configuration_count];
	*grid = top->grid;
	*block = top->block;
	*shared_bytes = top->shared_bytes;
	*stream = top->stream;
	return cudaSuccess;
}

CALL_ENTRY(__cudaPushCallConfiguration, false);
LINKAGE unsigned __cudaPushCallConfiguration(dim3 gridDim, dim3 blockDim, size_t sharedMem,
					     struct CUstream_st *stream)
{
	call_begin(&call___cudaPushCallConfiguration);
	return push(gridDim, blockDim, sharedMem, stream);
}

API_ALONE(__cudaPopCallConfiguration,
	  (dim3 * gridDim, dim3 *blockDim, size_t *sharedMem, void *stream),
	  pop(gridDim, blockDim, sharedMem, stream))

CALL_ENTRY(__cudaRegisterFatBinary, false);
LINKAGE void **__cudaRegisterFatBinary(void *fatCubin)
{
	struct image *image = &images[0];

	call_begin(&call___cudaRegisterFatBinary);
	pthread_mutex_lock(&lock);
	if (image_count < sizeof(images) / sizeof(images[0])) {
		image = &images[image_count++];
		image->fatbin = fatCubin;
	}
	pthread_mutex_unlock(&lock);
	return (void **)image;
}

CALL_ENTRY(__cudaRegisterFatBinaryEnd, false);
LINKAGE void __cudaRegisterFatBinaryEnd(void **fatCubinHandle)
{
	call_begin(&call___cudaRegisterFatBinaryEnd);
	(void)fatCubinHandle;
}

/* What it registered stays known: a program that is ending launches nothing more. */
CALL_ENTRY(__cudaUnregisterFatBinary, false);
LINKAGE void __cudaUnregisterFatBinary(void **fatCubinHandle)
{
	call_begin(&call___cudaUnregisterFatBinary);
	(void)fatCubinHandle;
}

CALL_ENTRY(__cudaRegisterFunction, false);
LINKAGE void __cudaRegisterFunction(void **fatCubinHandle, const char *hostFun, char *deviceFun,
				    const char *deviceName, int thread_limit, uint3 *tid,
				    uint3 *bid, dim3 *bDim, dim3 *gDim, int *wSize)
{
	call_begin(&call___cudaRegisterFunction);
	(void)deviceFun;
	(void)thread_limit;
	(void)tid;
	(void)bid;
	(void)bDim;
	(void)gDim;
	(void)wSize;
	register_stub(fatCubinHandle, hostFun, deviceName);
}

CALL_ENTRY(__cudaRegisterVar, false);
LINKAGE void __cudaRegisterVar(void **fatCubinHandle, char *hostVar, char *deviceAddress,
			       const char *deviceName, int ext, size_t size, int constant,
			       int global)
{
	call_begin(&call___cudaRegisterVar);
	(void)fatCubinHandle;
	(void)hostVar;
	(void)deviceAddress;
	(void)deviceName;
	(void)ext;
	(void)size;
	(void)constant;
	(void)global;
}

CALL_ENTRY(__cudaInitModule, false);
LINKAGE char __cudaInitModule(void **fatCubinHandle)
{
	call_begin(&call___cudaInitModule);
	(void)fatCubinHandle;
	return 1;
}

API(__cudaGetKernel, (cudaKernel_t * kernel, const void *entryFuncAddr),
    kernel_handle(kernel, entryFuncAddr))
API(cudaGetKernel, (cudaKernel_t * kernelPtr, const void *entryFuncAddr),
    kernel_handle(kernelPtr, entryFuncAddr))
API(cudaFuncGetName, (const char **name, const void *func), name_kernel(name, func))
API(cudaLibraryLoadData,
    (cudaLibrary_t * library, const void *code, enum cudaJitOption *jitOptions,
     void **jitOptionsValues, unsigned int numJitOptions, enum cudaLibraryOption *libraryOptions,
     void **libraryOptionValues, unsigned int numLibraryOptions),
    ((void)jitOptions, (void)jitOptionsValues, (void)numJitOptions, (void)libraryOptions,
     (void)libraryOptionValues, (void)numLibraryOptions,
     of_driver(driver.cuLibraryLoadData(library, code, NULL, NULL, 0, NULL, NULL, 0))))
API(cudaLibraryUnload, (cudaLibrary_t library), of_driver(driver.cuLibraryUnload(library)))
API(cudaLibraryGetKernel, (cudaKernel_t * pKernel, cudaLibrary_t library, const char *name),
    library_kernel(pKernel, library, name))
