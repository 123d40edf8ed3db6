/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program of the driver API alone, as Triton's launcher: modules and libraries from memory, kernels by
 * name, no host stubs. Options: --launches=N --mallocs=N --copies=N --wait=1 --by-address=1 (functions from
 * cuGetProcAddress instead of the linker).
 */
#include <stdio.h>
#include <stdlib.h>

#include <cuda.h>

#include "truth.h"

#define COPY_BYTES 8192

static CUresult (*launch_kernel)(CUfunction, unsigned int, unsigned int, unsigned int, unsigned int,
				 unsigned int, unsigned int, unsigned int, CUstream, void **,
				 void **) = cuLaunchKernel;

static const char image[] = "an image";

static void launch(CUfunction function, const char *name, CUstream stream)
{
	truth_count("calls", "cuLaunchKernel", 1);
	truth_count("kernels", name, 1);
	CHECKED(launch_kernel(function, 7, 1, 1, 128, 1, 1, 1024, stream, NULL, NULL),
		"cuLaunchKernel");
}

int main(int argc, char **argv)
{
	static const char *const names[] = { "triton_poi_fused_add_0", "triton_red_fused_sum_1",
					     "_Z9flash_fwdPKfPfi" };
	static char host[COPY_BYTES];
	CUfunction functions[3];
	CUdeviceptr device, more;
	CUcontext context;
	CUmodule module;
	CUlibrary library;
	CUkernel kernel;
	CUstream stream;

	truth_wait(truth_option(argc, argv, "wait", 0));
	CALL(cuInit, 0);
	CALL(cuCtxCreate, &context, 0, 0);
	if (truth_option(argc, argv, "by-address", 0)) {
		CUdriverProcAddressQueryResult found;

		CALL(cuGetProcAddress, "cuLaunchKernel", (void **)&launch_kernel, CUDA_VERSION,
		     CU_GET_PROC_ADDRESS_DEFAULT, &found);
	}
	CALL(cuModuleLoadData, &module, image);
	CALL(cuModuleGetFunction, &functions[0], module, names[0]);
	CALL(cuModuleGetFunction, &functions[1], module, names[1]);
	CALL(cuLibraryLoadData, &library, image, NULL, NULL, 0, NULL, NULL, 0);
	CALL(cuLibraryGetKernel, &kernel, library, names[2]);
	CALL(cuKernelGetFunction, &functions[2], kernel);
	CALL(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
	CALL(cuMemAlloc, &device, COPY_BYTES);
	for (long i = 0; i < truth_option(argc, argv, "mallocs", 7); i++) {
		CALL(cuMemAlloc, &more, COPY_BYTES);
		CALL(cuMemFree, more);
	}
	for (long i = 0; i < truth_option(argc, argv, "copies", 11); i++) {
		CALL(cuMemcpyHtoDAsync, device, host, COPY_BYTES, stream);
		truth_count("bytes", "copied", COPY_BYTES);
	}
	for (long i = 0; i < truth_option(argc, argv, "launches", 23); i++)
		launch(functions[i % 3], names[i % 3], stream);
	CALL(cuStreamSynchronize, stream);
	CALL(cuMemFree, device);
	CALL(cuStreamDestroy, stream);
	CALL(cuLibraryUnload, library);
	CALL(cuModuleUnload, module);
	CALL(cuCtxDestroy, context);
	truth_print();
	return 0;
}
