/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Modules, libraries and the kernels in them. An image is any address: every name that is asked for is a
 * kernel of it, the same handle each time.
 */
#include <stdlib.h>
#include <string.h>

#include "driver.h"

#define IMAGES_MAX     4096
#define FUNCTIONS_MAX  65536
#define VARIABLE_BYTES 4096

struct CUmod_st {
	bool in_use;
};

struct CUlib_st {
	bool in_use;
};

struct CUfunc_st {
	const void *image; /* module or library */
	char *name;
	bool in_use, is_kernel; /* CUkernel, of a library */
};

static struct CUmod_st modules[IMAGES_MAX];
static struct CUlib_st libraries[IMAGES_MAX];
static struct CUfunc_st functions[FUNCTIONS_MAX];
static size_t function_count;

bool function_is_valid(CUfunction function)
{
	return IS_SLOT(functions, function);
}

const char *function_name(CUfunction function)
{
	return function->name;
}

static CUresult load_module(CUmodule *module, const void *image)
{
	LOCKED();

	if (!module || !image)
		return CUDA_ERROR_INVALID_VALUE;
	if (!context_current())
		return CUDA_ERROR_INVALID_CONTEXT;
	*module = TAKE_SLOT(modules);
	return *module ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult load_library(CUlibrary *library, const void *image)
{
	LOCKED();

	if (!library || !image)
		return CUDA_ERROR_INVALID_VALUE;
	if (!devices_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	*library = TAKE_SLOT(libraries);
	return *library ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static void forget_functions(const void *image)
{
	for (size_t i = 0; i < function_count; i++)
		if (functions[i].image == image)
			functions[i].in_use = false;
}

static CUresult unload_module(CUmodule module)
{
	LOCKED();

	if (!IS_SLOT(modules, module))
		return CUDA_ERROR_INVALID_HANDLE;
	forget_functions(module);
	module->in_use = false;
	return CUDA_SUCCESS;
}

static CUresult unload_library(CUlibrary library)
{
	LOCKED();

	if (!IS_SLOT(libraries, library))
		return CUDA_ERROR_INVALID_HANDLE;
	forget_functions(library);
	library->in_use = false;
	return CUDA_SUCCESS;
}

/* Handles are not used again, so that an old one is distinguished from a new one. */
static CUfunction name_function(const void *image, const char *name, bool is_kernel)
{
	for (size_t i = 0; i < function_count; i++)
		if (functions[i].in_use && functions[i].image == image &&
		    functions[i].is_kernel == is_kernel && strcmp(functions[i].name, name) == 0)
			return &functions[i];
	if (function_count == FUNCTIONS_MAX)
		return NULL;
	functions[function_count] = (struct CUfunc_st){ image, strdup(name), true, is_kernel };
	return &functions[function_count++];
}

static CUresult get_function(CUfunction *function, CUmodule module, const char *name)
{
	LOCKED();

	if (!function || !name || !*name)
		return CUDA_ERROR_INVALID_VALUE;
	if (!IS_SLOT(modules, module))
		return CUDA_ERROR_INVALID_HANDLE;
	*function = name_function(module, name, false);
	return *function ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult get_kernel(CUkernel *kernel, CUlibrary library, const char *name)
{
	LOCKED();

	if (!kernel || !name || !*name)
		return CUDA_ERROR_INVALID_VALUE;
	if (!IS_SLOT(libraries, library))
		return CUDA_ERROR_INVALID_HANDLE;
	*kernel = (CUkernel)name_function(library, name, true);
	return *kernel ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult function_of_kernel(CUfunction *function, CUfunction kernel)
{
	LOCKED();

	if (!function || !IS_SLOT(functions, kernel) || !kernel->is_kernel)
		return CUDA_ERROR_INVALID_HANDLE;
	*function = name_function(kernel->image, kernel->name, false);
	return *function ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult get_name(const char **name, CUfunction function)
{
	LOCKED();

	if (!name || !IS_SLOT(functions, function))
		return CUDA_ERROR_INVALID_HANDLE;
	*name = function->name;
	return CUDA_SUCCESS;
}

/* A variable that nothing is behind: an address of its own, each time. */
static CUresult get_variable(CUdeviceptr *pointer, size_t *bytes)
{
	if (bytes)
		*bytes = VARIABLE_BYTES;
	return pointer ? memory_new(pointer, MEMORY_IMPORTED, VARIABLE_BYTES) : CUDA_SUCCESS;
}

/* Without the lock, which the stream takes once: handles are not used again, so none turns good. */
static CUresult check(CUfunction function, uint64_t blocks, uint64_t threads)
{
	if (!function_is_valid(function))
		return CUDA_ERROR_INVALID_HANDLE;
	if (!blocks || !threads || threads > THREADS_PER_BLOCK_MAX)
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

static CUresult launch(CUfunction function, uint64_t blocks, uint64_t threads, CUstream stream)
{
	CUresult status = check(function, blocks, threads);

	return status ? status
		      : stream_enqueue(stream, kernel_duration_ns(blocks),
				       CU_GRAPH_NODE_TYPE_KERNEL, function);
}

static CUresult launch_configured(CUfunction function, const CUlaunchConfig *config,
				  bool per_thread)
{
	if (!config)
		return CUDA_ERROR_INVALID_VALUE;
	return launch(function, (uint64_t)config->gridDimX * config->gridDimY * config->gridDimZ,
		      (uint64_t)config->blockDimX * config->blockDimY * config->blockDimZ,
		      per_thread && !config->hStream ? CU_STREAM_PER_THREAD : config->hStream);
}

API(cuModuleLoad, (CUmodule * module, const char *fname), load_module(module, fname))
API(cuModuleLoadData, (CUmodule * module, const void *image), load_module(module, image))
API(cuModuleLoadDataEx,
    (CUmodule * module, const void *image, unsigned int numOptions, CUjit_option *options,
     void **optionValues),
    ((void)numOptions, (void)options, (void)optionValues, load_module(module, image)))
API(cuModuleLoadFatBinary, (CUmodule * module, const void *fatCubin), load_module(module, fatCubin))
API(cuModuleUnload, (CUmodule hmod), unload_module(hmod))
API(cuModuleGetFunction, (CUfunction * hfunc, CUmodule hmod, const char *name),
    get_function(hfunc, hmod, name))
API(cuModuleGetGlobal_v2, (CUdeviceptr * dptr, size_t *bytes, CUmodule hmod, const char *name),
    ((void)hmod, name ? get_variable(dptr, bytes) : CUDA_ERROR_INVALID_VALUE))
API(cuLibraryLoadData,
    (CUlibrary * library, const void *code, CUjit_option *jitOptions, void **jitOptionsValues,
     unsigned int numJitOptions, CUlibraryOption *libraryOptions, void **libraryOptionValues,
     unsigned int numLibraryOptions),
    ((void)jitOptions, (void)jitOptionsValues, (void)numJitOptions, (void)libraryOptions,
     (void)libraryOptionValues, (void)numLibraryOptions, load_library(library, code)))
API(cuLibraryLoadFromFile,
    (CUlibrary * library, const char *fileName, CUjit_option *jitOptions, void **jitOptionsValues,
     unsigned int numJitOptions, CUlibraryOption *libraryOptions, void **libraryOptionValues,
     unsigned int numLibraryOptions),
    ((void)jitOptions, (void)jitOptionsValues, (void)numJitOptions, (void)libraryOptions,
     (void)libraryOptionValues, (void)numLibraryOptions, load_library(library, fileName)))
API(cuLibraryUnload, (CUlibrary library), unload_library(library))
API(cuLibraryGetKernel, (CUkernel * pKernel, CUlibrary library, const char *name),
    get_kernel(pKernel, library, name))
API(cuKernelGetFunction, (CUfunction * pFunc, CUkernel kernel),
    function_of_kernel(pFunc, (CUfunction)kernel))
API(cuKernelGetName, (const char **name, CUkernel hfunc), get_name(name, (CUfunction)hfunc))
API(cuFuncGetName, (const char **name, CUfunction hfunc), get_name(name, hfunc))
API_PTSZ(cuLaunchKernel,
	 (CUfunction f, unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ,
	  unsigned int blockDimX, unsigned int blockDimY, unsigned int blockDimZ,
	  unsigned int sharedMemBytes, CUstream hStream, void **kernelParams, void **extra),
	 ((void)sharedMemBytes, (void)kernelParams, (void)extra,
	  launch(f, (uint64_t)gridDimX *gridDimY *gridDimZ,
		 (uint64_t)blockDimX *blockDimY *blockDimZ, hStream)))
API_PTSZ(cuLaunchCooperativeKernel,
	 (CUfunction f, unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ,
	  unsigned int blockDimX, unsigned int blockDimY, unsigned int blockDimZ,
	  unsigned int sharedMemBytes, CUstream hStream, void **kernelParams),
	 ((void)sharedMemBytes, (void)kernelParams,
	  launch(f, (uint64_t)gridDimX *gridDimY *gridDimZ,
		 (uint64_t)blockDimX *blockDimY *blockDimZ, hStream)))
API(cuLaunchKernelEx,
    (const CUlaunchConfig *config, CUfunction f, void **kernelParams, void **extra),
    ((void)kernelParams, (void)extra, launch_configured(f, config, false)))
API(cuLaunchKernelEx_ptsz,
    (const CUlaunchConfig *config, CUfunction f, void **kernelParams, void **extra),
    ((void)kernelParams, (void)extra, launch_configured(f, config, true)))
