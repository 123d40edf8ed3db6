/* SPDX-License-Identifier: Apache-2.0 */
/* How a program gets in: settings, cuInit with the injected library, cuGetProcAddress. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "driver.h"

#define DRIVER_VERSION	    12090
#define NS_PER_US	    1000.0
#define SYMBOL_BYTES	    96
#define VERSION_OF_FIRST_V2 3020

static int64_t kernel_ns = 20000;
static double kernel_ns_per_block; /* 0: every kernel takes kernel_ns */
static double copy_bytes_per_ns = 20;
static uint64_t capacity_bytes = 16ULL << 30;
static int count = 1;
static bool ready;

/* A setting that is a number of at least `least`; `fallback` when it is not set. */
static double setting(const char *name, double fallback, double least)
{
	const char *text = getenv(name);
	char *end = NULL;
	double value;

	if (!text || !*text)
		return fallback;
	value = strtod(text, &end);
	if (*end == '\0' && value >= least && value <= 1e18)
		return value;
	fprintf(stderr, "CUDA fake: %s='%s' is not a number of at least %g\n", name, text, least);
	_exit(2);
}

void devices_configure(void)
{
	double devices = setting("FAKE_CUDART_DEVICES", count, 0);

	count = devices < DEVICES_MAX ? (int)devices : DEVICES_MAX;
	kernel_ns = (int64_t)(setting("FAKE_CUDART_KERNEL_US", (double)kernel_ns / NS_PER_US, 0) *
			      NS_PER_US);
	kernel_ns_per_block = setting("FAKE_CUDART_KERNEL_US_PER_BLOCK", 0, 0) * NS_PER_US;
	/* GB/s is bytes per ns. */
	copy_bytes_per_ns = setting("FAKE_CUDART_COPY_GB_PER_S", copy_bytes_per_ns, 1e-6);
	capacity_bytes = (uint64_t)setting("FAKE_CUDART_MEMORY_BYTES", (double)capacity_bytes, 0);
}

int devices_count(void)
{
	return count;
}

bool devices_ready(void)
{
	return ready;
}

uint64_t device_capacity(void)
{
	return capacity_bytes;
}

int64_t kernel_duration_ns(uint64_t blocks)
{
	return kernel_ns_per_block > 0 ? (int64_t)(kernel_ns_per_block * (double)blocks)
				       : kernel_ns;
}

int64_t copy_duration_ns(uint64_t bytes)
{
	return (int64_t)((double)bytes / copy_bytes_per_ns);
}

#ifdef FAKE_STANDALONE
static void inject(void)
{
}
#else
/* As the real driver: the first cuInit loads the library and lets it prepare itself. */
static void load_injected(void)
{
	const char *path = getenv("CUDA_INJECTION64_PATH");
	void *library;
	int (*initialize)(void);

	if (!path || !*path)
		return;
	library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!library) {
		fprintf(stderr, "CUDA fake: CUDA_INJECTION64_PATH: %s\n", dlerror());
		return;
	}
	*(void **)&initialize = dlsym(library, "InitializeInjection");
	if (initialize)
		initialize();
	else
		fprintf(stderr, "CUDA fake: %s has no InitializeInjection\n", path);
}

static void inject(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, load_injected);
}

static void child_of_fork(void)
{
	calls_reset();
	state_reset_lock();
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

/* Forms that came later than the first `_v2` of CUDA 3.2. The newest that the caller knows is given. */
static const struct form {
	const char *name;
	int since;
} forms[] = {
	{ "cuCtxCreate_v4", 12050 },
	{ "cuCtxCreate_v3", 11040 },
	{ "cuDevicePrimaryCtxRelease_v2", 11000 },
	{ "cuDevicePrimaryCtxReset_v2", 11000 },
	{ "cuDevicePrimaryCtxSetFlags_v2", 11000 },
	{ "cuDeviceGetUuid_v2", 11040 },
	{ "cuEventElapsedTime_v2", 12080 },
	{ "cuEventDestroy_v2", 4000 },
	{ "cuStreamDestroy_v2", 4000 },
	{ "cuCtxDestroy_v2", 4000 },
	{ "cuCtxPushCurrent_v2", 4000 },
	{ "cuCtxPopCurrent_v2", 4000 },
	{ "cuMemHostRegister_v2", 6050 },
	{ "cuIpcOpenMemHandle_v2", 11000 },
	{ "cuGraphAddKernelNode_v2", 12000 },
	{ "cuGraphExecKernelNodeSetParams_v2", 12000 },
	{ "cuGraphExecUpdate_v2", 12000 },
	{ "cuGraphInstantiate_v2", 11000 },
	{ "cuStreamBeginCapture_v2", 10010 },
	{ "cuGetProcAddress_v2", 12000 },
};

static int since(const char *name)
{
	for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++)
		if (strcmp(forms[i].name, name) == 0)
			return forms[i].since;
	return VERSION_OF_FIRST_V2;
}

/* From 12.0 on plain cuGraphInstantiate means the one with flags, as cuda.h's own define says. */
static const char *renamed(const char *symbol, int version)
{
	return strcmp(symbol, "cuGraphInstantiate") == 0 && version >= 12000
		       ? "cuGraphInstantiateWithFlags"
		       : symbol;
}

static void *find(const char *symbol, int version, bool per_thread)
{
	static const char *const generations[] = { "_v4", "_v3", "_v2", "" };
	static const char *const streams[] = { "_ptsz", "_ptds", "" };
	char name[SYMBOL_BYTES];
	void *found;

	for (size_t i = 0; i < sizeof(generations) / sizeof(generations[0]); i++) {
		snprintf(name, sizeof(name), "%s%s", symbol, generations[i]);
		if (*generations[i] && version < since(name))
			continue;
		for (size_t j = per_thread ? 0 : 2; j < sizeof(streams) / sizeof(streams[0]); j++) {
			snprintf(name, sizeof(name), "%s%s%s", symbol, generations[i], streams[j]);
			found = calls_find(name);
			if (found)
				return found;
		}
	}
	return NULL;
}

static CUresult proc_address(const char *symbol, void **function, int version, cuuint64_t flags,
			     CUdriverProcAddressQueryResult *found)
{
	if (!symbol || !function)
		return CUDA_ERROR_INVALID_VALUE;
	*function = find(renamed(symbol, version), version,
			 flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
	if (found)
		*found = *function ? CU_GET_PROC_ADDRESS_SUCCESS
				   : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
	return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

API(cuGetProcAddress, (const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags),
    proc_address(symbol, pfn, cudaVersion, flags, NULL))
API(cuGetProcAddress_v2,
    (const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags,
     CUdriverProcAddressQueryResult *symbolStatus),
    proc_address(symbol, pfn, cudaVersion, flags, symbolStatus))
API(cuGetExportTable, (const void **ppExportTable, const CUuuid *pExportTableId),
    ((void)ppExportTable, (void)pExportTableId, CUDA_ERROR_NOT_FOUND))
#endif

static CUresult initialize(unsigned int flags)
{
	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	inject();
	ready = true;
	return count ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

static const char *name_of(CUresult error)
{
	switch (error) {
#define NAME(code) \
	case code: \
		return #code;
		NAME(CUDA_SUCCESS)
		NAME(CUDA_ERROR_INVALID_VALUE)
		NAME(CUDA_ERROR_OUT_OF_MEMORY)
		NAME(CUDA_ERROR_NOT_INITIALIZED)
		NAME(CUDA_ERROR_NO_DEVICE)
		NAME(CUDA_ERROR_INVALID_DEVICE)
		NAME(CUDA_ERROR_INVALID_CONTEXT)
		NAME(CUDA_ERROR_INVALID_HANDLE)
		NAME(CUDA_ERROR_NOT_FOUND)
		NAME(CUDA_ERROR_NOT_READY)
#undef NAME
	default:
		return NULL;
	}
}

API(cuInit, (unsigned int Flags), initialize(Flags))
API(cuDriverGetVersion, (int *driverVersion),
    driverVersion ? (*driverVersion = DRIVER_VERSION, CUDA_SUCCESS) : CUDA_ERROR_INVALID_VALUE)
API(cuGetErrorName, (CUresult error, const char **pStr),
    (*pStr = name_of(error)) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE)
/* The real one has sentences: here a name is all there is to say. */
API(cuGetErrorString, (CUresult error, const char **pStr),
    (*pStr = name_of(error)) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE)
