/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls functions of both APIs with arguments that distinguish them, compiled against CUDA's own headers, and
 * prints what a record of each must hold: one JSON object a line. The libraries behind it do nothing but write
 * 0xABC00 + n through the pointers that are results (tests/kernel/test_cuda_table.py makes them).
 */
#include <stdio.h>

#include <cuda.h>
#include <cuda_runtime_api.h>

#define P(number) ((void *)(size_t)(number))
#define OUT(n)	  (0xABC00 + (n))
#define TEXT(x)	  #x
#define NAMED(x)  TEXT(x) /* cuda.h renames functions to their newest form */
#define DO(function, expected, ...)                            \
	do {                                                   \
		function(__VA_ARGS__);                         \
		printf("{\"api\": \"%s\", ", NAMED(function)); \
		printf expected;                               \
		printf("}\n");                                 \
	} while (0)
#define COPY(to, from, bytes, stream, direction)                                               \
	("\"object\": %d, \"other\": %d, \"bytes\": %d, \"stream\": %d, \"detail\": %d", (to), \
	 (from), (bytes), (stream), (direction))
#define GAVE(n, bytes) ("\"object\": %d, \"bytes\": %d", OUT(n), (bytes))
#define LAUNCHED(function, gx, gy, gz, bx, by, bz, shared, stream)                          \
	("\"object\": %d, \"grid\": [%d, %d, %d], \"block\": [%d, %d, %d], \"bytes\": %d, " \
	 "\"stream\": %d",                                                                  \
	 (function), (gx), (gy), (gz), (bx), (by), (bz), (shared), (stream))

static void launches(void)
{
	dim3 grid = { 2, 3, 5 }, block = { 7, 11, 13 };
	cudaLaunchConfig_t config = {
		.gridDim = grid, .blockDim = block, .dynamicSmemBytes = 17, .stream = P(19)
	};
	CUlaunchConfig driver = { 2, 3, 5, 7, 11, 13, 17, P(19), NULL, 0 };
	CUDA_LAUNCH_PARAMS devices[2] = { { P(23), 2, 3, 5, 7, 11, 13, 17, P(19), NULL } };

	DO(cudaLaunchKernel, LAUNCHED(23, 2, 3, 5, 7, 11, 13, 17, 19), P(23), grid, block, NULL, 17,
	   P(19));
	DO(cudaLaunchCooperativeKernel, LAUNCHED(23, 2, 3, 5, 7, 11, 13, 17, 19), P(23), grid,
	   block, NULL, 17, P(19));
	DO(cudaLaunchKernelExC, LAUNCHED(23, 2, 3, 5, 7, 11, 13, 17, 19), &config, P(23), NULL);
	DO(cuLaunchKernel, LAUNCHED(23, 2, 3, 5, 7, 11, 13, 17, 19), P(23), 2, 3, 5, 7, 11, 13, 17,
	   P(19), NULL, NULL);
	DO(cuLaunchKernelEx, LAUNCHED(23, 2, 3, 5, 7, 11, 13, 17, 19), &driver, P(23), NULL, NULL);
	DO(cuLaunchCooperativeKernelMultiDevice, LAUNCHED(23, 2, 3, 5, 7, 11, 13, 17, 19), devices,
	   2, 0);
}

static void runtime_copies(void)
{
	struct cudaMemcpy3DParms parms = { .srcPtr = { P(31), 64, 8, 8 },
					   .dstPtr = { P(37), 64, 8, 8 },
					   .extent = { 2, 3, 5 },
					   .kind = cudaMemcpyDeviceToHost };
	struct cudaMemcpy3DPeerParms peers = { .srcPtr = { P(31), 64, 8, 8 },
					       .dstArray = P(37),
					       .extent = { 2, 3, 5 } };
	struct cudaPitchedPtr pitched = { P(37), 64, 8, 8 };
	struct cudaExtent extent = { 2, 3, 5 };
	void *to[2] = { P(37), P(38) }, *from[2] = { P(31), P(32) };
	size_t sizes[10] = { 1, 2, 4, 8, 16, 32, 64, 128, 256, 512 }, at[1] = { 0 }, failed;
	struct cudaMemcpyAttributes attributes = { 0 };

	DO(cudaMemcpy, COPY(37, 31, 41, 0, 2), P(37), P(31), 41, cudaMemcpyDeviceToHost);
	DO(cudaMemcpyAsync, COPY(37, 31, 41, 43, 1), P(37), P(31), 41, cudaMemcpyHostToDevice,
	   P(43));
	DO(cudaMemcpyPeerAsync, COPY(37, 31, 41, 43, 3), P(37), 1, P(31), 0, 41, P(43));
	DO(cudaMemcpy2DAsync, COPY(37, 31, 6, 43, 1), P(37), 64, P(31), 32, 2, 3,
	   cudaMemcpyHostToDevice, P(43));
	DO(cudaMemcpy2DToArray, COPY(37, 31, 6, 0, 1), P(37), 1, 1, P(31), 32, 2, 3,
	   cudaMemcpyHostToDevice);
	DO(cudaMemcpy2DFromArrayAsync, COPY(37, 31, 6, 43, 2), P(37), 64, P(31), 1, 1, 2, 3,
	   cudaMemcpyDeviceToHost, P(43));
	DO(cudaMemcpy2DArrayToArray, COPY(37, 31, 6, 0, 3), P(37), 1, 1, P(31), 1, 1, 2, 3,
	   cudaMemcpyDeviceToDevice);
	DO(cudaMemcpyToSymbolAsync, COPY(37, 31, 41, 43, 1), P(37), P(31), 41, 8,
	   cudaMemcpyHostToDevice, P(43));
	DO(cudaMemcpyFromSymbol, COPY(37, 31, 41, 0, 2), P(37), P(31), 41, 8,
	   cudaMemcpyDeviceToHost);
	DO(cudaMemcpy3DAsync, COPY(37, 31, 30, 43, 2), &parms, P(43));
	DO(cudaMemcpy3DPeerAsync, COPY(37, 31, 30, 43, 3), &peers, P(43));
	DO(cudaMemcpyBatchAsync, COPY(37, 31, 1023, 0, 4), to, from, sizes, 10, &attributes, at, 1,
	   &failed, P(43));
	DO(cudaMemsetAsync, COPY(37, 7, 41, 43, 0), P(37), 7, 41, P(43));
	DO(cudaMemset2DAsync, COPY(37, 7, 6, 43, 0), P(37), 64, 7, 2, 3, P(43));
	DO(cudaMemset3DAsync, COPY(37, 7, 30, 43, 0), pitched, 7, extent, P(43));
}

static void driver_copies(void)
{
	CUDA_MEMCPY2D flat = { .srcMemoryType = CU_MEMORYTYPE_HOST,
			       .srcHost = P(31),
			       .dstMemoryType = CU_MEMORYTYPE_DEVICE,
			       .dstDevice = 37,
			       .WidthInBytes = 2,
			       .Height = 3 };
	CUDA_MEMCPY3D deep = { .srcMemoryType = CU_MEMORYTYPE_ARRAY,
			       .srcArray = P(31),
			       .dstMemoryType = CU_MEMORYTYPE_HOST,
			       .dstHost = P(37),
			       .WidthInBytes = 2,
			       .Height = 3,
			       .Depth = 5 };

	DO(cuMemcpyHtoDAsync, COPY(37, 31, 41, 43, 1), 37, P(31), 41, P(43));
	DO(cuMemcpyDtoH, COPY(37, 31, 41, 0, 2), P(37), 31, 41);
	DO(cuMemcpyDtoDAsync, COPY(37, 31, 41, 43, 3), 37, 31, 41, P(43));
	DO(cuMemcpyAsync, COPY(37, 31, 41, 43, 4), 37, 31, 41, P(43));
	DO(cuMemcpyHtoA, COPY(37, 31, 41, 0, 1), P(37), 8, P(31), 41);
	DO(cuMemcpyAtoHAsync, COPY(37, 31, 41, 43, 2), P(37), P(31), 8, 41, P(43));
	DO(cuMemcpyAtoA, COPY(37, 31, 41, 0, 3), P(37), 8, P(31), 8, 41);
	DO(cuMemcpyPeerAsync, COPY(37, 31, 41, 43, 3), 37, P(1), 31, P(2), 41, P(43));
	DO(cuMemcpy2DAsync, COPY(37, 31, 6, 43, 1), &flat, P(43));
	DO(cuMemcpy3DAsync, COPY(37, 31, 30, 43, 2), &deep, P(43));
	DO(cuMemsetD8, COPY(37, 7, 41, 0, 0), 37, 7, 41);
	DO(cuMemsetD16Async, COPY(37, 7, 82, 43, 0), 37, 7, 41, P(43));
	DO(cuMemsetD32, COPY(37, 7, 164, 0, 0), 37, 7, 41);
	DO(cuMemsetD2D8Async, COPY(37, 7, 6, 43, 0), 37, 64, 7, 2, 3, P(43));
	DO(cuMemsetD2D16, COPY(37, 7, 12, 0, 0), 37, 64, 7, 2, 3);
	DO(cuMemsetD2D32Async, COPY(37, 7, 24, 43, 0), 37, 64, 7, 2, 3, P(43));
}

static void allocations(void)
{
	struct cudaChannelFormatDesc format = { 32, 32, 0, 0, cudaChannelFormatKindFloat };
	struct cudaExtent extent = { 2, 3, 5 };
	CUDA_ARRAY_DESCRIPTOR flat = { 2, 3, CU_AD_FORMAT_HALF, 4 };
	CUDA_ARRAY3D_DESCRIPTOR deep = { 2, 0, 0, CU_AD_FORMAT_FLOAT, 1, 0 };
	CUmemAllocationProp where = { .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE,
						    .id = 3 } };
	struct cudaPitchedPtr pitched = { 0 };
	CUipcMemHandle driver_handle = { { 0 } };
	cudaIpcMemHandle_t handle = { { 0 } };
	CUdeviceptr address;
	CUmemGenericAllocationHandle memory;
	void *pointer;
	size_t pitch;

	DO(cudaMalloc, GAVE(1, 41), &pointer, 41);
	DO(cudaMallocManaged, GAVE(1, 41), &pointer, 41, 1);
	DO(cudaMallocPitch, GAVE(1, OUT(2) * 3), &pointer, &pitch, 2, 3);
	pitched.pitch = 64;
	DO(cudaMalloc3D, GAVE(1, 64 * 15), &pitched, extent);
	DO(cudaMallocArray, GAVE(1, 48), (cudaArray_t *)&pointer, &format, 2, 3, 0);
	DO(cudaMalloc3DArray, GAVE(1, 240), (cudaArray_t *)&pointer, &format, extent, 0);
	DO(cudaHostAlloc, GAVE(1, 41), &pointer, 41, 1);
	DO(cudaMallocFromPoolAsync,
	   ("\"object\": %d, \"bytes\": 41, \"extra\": 47, \"stream\": 43", OUT(1)), &pointer, 41,
	   P(47), P(43));
	DO(cudaHostRegister, ("\"object\": 37, \"bytes\": 41, \"detail\": 3"), P(37), 41, 3);
	DO(cudaIpcOpenMemHandle, ("\"object\": %d, \"detail\": 1", OUT(1)), &pointer, handle, 1);
	DO(cuMemAlloc, GAVE(1, 41), &address, 41);
	DO(cuMemAllocPitch, GAVE(1, OUT(2) * 3), &address, &pitch, 2, 3, 4);
	DO(cuArrayCreate, GAVE(1, 48), (CUarray *)&pointer, &flat);
	DO(cuArray3DCreate, GAVE(1, 8), (CUarray *)&pointer, &deep);
	DO(cuMemAllocAsync, GAVE(1, 41), &address, 41, P(43));
	DO(cuMemCreate, ("\"object\": %d, \"bytes\": 41, \"device\": 3", OUT(1)), &memory, 41,
	   &where, 0);
	DO(cuMemAddressReserve, GAVE(1, 41), &address, 41, 0, 0, 0);
	DO(cuMemMap, ("\"object\": 37, \"other\": 31, \"bytes\": 41, \"extra\": 8"), 37, 41, 8, 31,
	   0);
	DO(cuMemUnmap, ("\"object\": 37, \"other\": 0, \"bytes\": 41"), 37, 41);
	DO(cuIpcOpenMemHandle, ("\"object\": %d, \"detail\": 1", OUT(1)), &address, driver_handle,
	   1);
	DO(cudaFreeAsync, ("\"object\": 37, \"stream\": 43"), P(37), P(43));
	DO(cuMemRelease, ("\"object\": 31"), 31);
}

static void graphs(void)
{
	cudaGraph_t graph;
	cudaGraphExec_t executable;
	cudaGraphNode_t node;

	DO(cudaStreamBeginCapture, ("\"stream\": 43, \"detail\": 1"), P(43),
	   cudaStreamCaptureModeThreadLocal);
	cudaMemsetAsync(P(37), 7, 41, P(43));
	cudaMemsetAsync(P(37), 7, 41, P(43));
	cudaMemsetAsync(P(37), 7, 41, P(43));
	DO(cudaStreamEndCapture, ("\"object\": %d, \"stream\": 43, \"extra\": 3", OUT(2)), P(43),
	   &graph);
	DO(cudaGraphAddEmptyNode, ("\"object\": %d, \"extra\": 4", OUT(2)), &node, graph, NULL, 0);
	DO(cudaGraphInstantiate, ("\"object\": %d, \"other\": %d, \"extra\": 4", OUT(2), OUT(1)),
	   &executable, graph, 0);
	DO(cudaGraphLaunch, ("\"object\": %d, \"stream\": 43, \"extra\": 4", OUT(1)), executable,
	   P(43));
	DO(cudaGraphExecDestroy, ("\"other\": %d", OUT(1)), executable);
}

static void others(void)
{
	CUcontext context;
	CUmodule module;
	cudaStream_t stream;

	DO(cudaSetDevice, ("\"object\": 5"), 5);
	DO(cudaDeviceSynchronize, ("\"object\": 0, \"device\": 5"));
	DO(cudaStreamCreateWithPriority, ("\"object\": %d, \"detail\": 1", OUT(1)), &stream, 1, -1);
	DO(cudaEventRecord, ("\"object\": 53, \"stream\": 43, \"returned\": 0"), P(53), P(43));
	DO(cudaStreamWaitEvent, ("\"object\": 53, \"stream\": 43, \"returned\": 0"), P(43), P(53),
	   0);
	DO(cudaEventSynchronize, ("\"object\": 53"), P(53));
	DO(cudaDeviceEnablePeerAccess, ("\"other\": 2"), 2, 0);
	DO(cuDevicePrimaryCtxRetain, ("\"object\": %d, \"other\": 6", OUT(1)), &context, 6);
	DO(cuCtxSetCurrent, ("\"object\": %d", OUT(1)), context);
	DO(cuCtxSynchronize, ("\"device\": 6"));
	DO(cuCtxPushCurrent, ("\"object\": 59"), P(59));
	DO(cuStreamSynchronize, ("\"object\": 43, \"device\": -1"), P(43));
	DO(cuCtxPopCurrent, ("\"object\": %d", OUT(1)), &context);
	DO(cuEventSynchronize, ("\"object\": 53, \"device\": 6"), P(53));
	DO(cuModuleLoadData, ("\"object\": %d, \"other\": 61", OUT(1)), &module, P(61));
	DO(cuModuleUnload, ("\"object\": 61"), P(61));
}

int main(void)
{
	fprintf(stderr, "ready\n");
	getchar();
	launches();
	runtime_copies();
	driver_copies();
	allocations();
	graphs();
	others();
	return 0;
}
