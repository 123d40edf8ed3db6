/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Every CUDA function that is observed, and which of its arguments are read. The
 * BPF programs, the in-process source, the probe targets and docs/reference/cuda-calls.md
 * all come from this table.
 *
 *   CALL(symbol, shape, kind, memory, object, other, bytes, stream, extra, detail)
 *
 * shape   enum cuda_shape without SHAPE_: what the slots alone cannot report
 * kind    enum cuda_kind without CUDA_
 * memory  enum cuda_memory without CUDA_MEMORY_
 * others  where the slot comes from: ARG(n) register argument n from 1, STACK(n)
 *         stack argument n from 0, OUT(n) what argument n points at when the call
 *         returns, IN(n) what it points at when the call begins, VALUE(n) the
 *         number n from 0 to 7, NONE
 *
 * LAUNCHES are what happens most and have programs of their own, PAIRS are probed
 * at entry and return, ENTRIES at the entry only: their return says nothing.
 *
 * Deliberately not observed: queries that are made at a high rate and move nothing
 * (cudaGetDevice, cudaGetLastError, cudaPeekAtLastError, cudaEventQuery,
 * cudaStreamQuery, cudaStreamIsCapturing, cudaPointerGetAttributes,
 * cudaFuncGetAttributes, cuCtxGetCurrent, cuCtxGetDevice, cuPointerGetAttribute …).
 *
 * Signatures: cuda_runtime_api.h, crt/host_runtime.h and cuda.h of CUDA 11 to 13.
 */
#ifndef OTELGPU_CUDA_CALLS_H
#define OTELGPU_CUDA_CALLS_H

/* A slot's source in one byte. */
#define SOURCE_NONE	0x00
#define SOURCE_ARGUMENT 0x10 /* | n: registers 1..6 */
#define SOURCE_STACK	0x20 /* | n: words above the return address, 0..7 */
#define SOURCE_CONSTANT 0x30 /* | n: the number itself, 0..7 */
#define SOURCE_OUT	0x40 /* | n: 8 bytes behind register argument n, after the call */
#define SOURCE_IN	0x80 /* | n: the same before the call */

#define ARG(n)	 (SOURCE_ARGUMENT | (n))
#define STACK(n) (SOURCE_STACK | (n))
#define VALUE(n) (SOURCE_CONSTANT | (n))
#define OUT(n)	 (SOURCE_OUT | (n))
#define IN(n)	 (SOURCE_IN | (n))
enum { NONE = SOURCE_NONE }; /* no macro: the columns are pasted to names */

/* A function and its form for per-thread default streams: of stream-ordered and of other functions. */
#define WITH_PTSZ(CALL, symbol, ...) CALL(symbol, __VA_ARGS__) CALL(symbol##_ptsz, __VA_ARGS__)
#define WITH_PTDS(CALL, symbol, ...) CALL(symbol, __VA_ARGS__) CALL(symbol##_ptds, __VA_ARGS__)

/* What the slots alone cannot report, and what a call does to the thread's device. */
enum cuda_shape {
	SHAPE_PLAIN = 0,		 /* the slots say it all */
	SHAPE_LAUNCH = 1,		 /* cudaLaunchKernel: two dim3 by value */
	SHAPE_LAUNCH_CONFIG = 2,	 /* cudaLaunchKernelExC: cudaLaunchConfig_t *, function */
	SHAPE_LAUNCH_DRIVER = 3,	 /* cuLaunchKernel: six numbers */
	SHAPE_LAUNCH_DRIVER_CONFIG = 4,	 /* cuLaunchKernelEx: CUlaunchConfig *, function */
	SHAPE_LAUNCH_DEVICES = 5,	 /* cudaLaunchParams[]: the first device's is reported */
	SHAPE_LAUNCH_DRIVER_DEVICES = 6, /* CUDA_LAUNCH_PARAMS[]: likewise */
	SHAPE_ELEMENTS_2 = 7,		 /* bytes: elements of 2 bytes */
	SHAPE_ELEMENTS_4 = 8,		 /* bytes: elements of 4 bytes */
	SHAPE_AREA = 9,			 /* bytes times what `extra` names, which is not reported */
	SHAPE_AREA_2 = 10,		 /* likewise, of elements of 2 bytes */
	SHAPE_AREA_4 = 11,		 /* likewise, of elements of 4 bytes */
	SHAPE_SET_3D = 12,		 /* cudaPitchedPtr, then cudaExtent on the stack */
	SHAPE_ALLOCATION_3D = 13,	 /* cudaPitchedPtr *, cudaExtent on the stack */
	SHAPE_COPY_3D = 14,		 /* cudaMemcpy3DParms * */
	SHAPE_COPY_3D_PEER = 15,	 /* cudaMemcpy3DPeerParms * */
	SHAPE_COPY_2D_DRIVER = 16,	 /* CUDA_MEMCPY2D * */
	SHAPE_COPY_3D_DRIVER = 17,	 /* CUDA_MEMCPY3D *, CUDA_MEMCPY3D_PEER * */
	SHAPE_COPY_BATCH = 18,		 /* destinations, sources, sizes, how many of them */
	SHAPE_ARRAY = 19,		 /* array *, cudaChannelFormatDesc *, width, height */
	SHAPE_ARRAY_3D = 20,		 /* the same with a cudaExtent on the stack */
	SHAPE_ARRAY_DRIVER = 21,	 /* array *, CUDA_ARRAY_DESCRIPTOR * */
	SHAPE_ARRAY_3D_DRIVER = 22,	 /* array *, CUDA_ARRAY3D_DESCRIPTOR * */
	SHAPE_PHYSICAL = 23,		 /* argument 3: CUmemAllocationProp *, says the device */
	SHAPE_DEVICE_SET = 24,		 /* object is the thread's device from then on */
	SHAPE_CONTEXT_SET = 25,		 /* object is its context */
	SHAPE_CONTEXT_CREATED = 26,	 /* object is a context of device `other`, and is pushed */
	SHAPE_CONTEXT_RETAINED = 27,	 /* the same, but not pushed */
	SHAPE_CONTEXT_PUSHED = 28,	 /* object is the context; the one before waits below */
	SHAPE_CONTEXT_POPPED = 29,	 /* the one below is back */
	SHAPE_CONTEXT_ENDED = 30,    /* object is gone; if it was current, the one below is back */
	SHAPE_GRAPH_BEGUN = 31,	     /* what the thread submits until it ends goes into a graph */
	SHAPE_GRAPH_ENDED = 32,	     /* object is that graph */
	SHAPE_GRAPH_ADDED = 33,	     /* object has a node more */
	SHAPE_GRAPH_COUNTED = 34,    /* object has as many nodes as `extra` says */
	SHAPE_GRAPH_EXECUTABLE = 35, /* other is made of object, with its nodes; or is a copy */
	SHAPE_GRAPH_LAUNCHED = 36,   /* object is the executable graph */
};

/*
 * Runtime API: libcudart, or linked into a program or library. What host stubs
 * call since CUDA 12.1, __cudaLaunchKernel, jumps to cudaLaunchKernel.
 */
/* clang-format off */
#define CUDA_RUNTIME_LAUNCHES(CALL) \
	WITH_PTSZ(CALL, cudaLaunchKernel, LAUNCH, LAUNCH, NONE, ARG(1), NONE, STACK(0), STACK(1), NONE, NONE) \
	WITH_PTSZ(CALL, cudaLaunchCooperativeKernel, LAUNCH, LAUNCH, NONE, ARG(1), NONE, STACK(0), STACK(1), NONE, NONE) \
	WITH_PTSZ(CALL, cudaLaunchKernelExC, LAUNCH_CONFIG, LAUNCH, NONE, ARG(2), NONE, NONE, NONE, NONE, NONE) \
	CALL(cudaLaunchCooperativeKernelMultiDevice, LAUNCH_DEVICES, LAUNCH, NONE, NONE, NONE, NONE, NONE, NONE, NONE)

#define CUDA_RUNTIME_GRAPHS(CALL) \
	WITH_PTSZ(CALL, cudaGraphLaunch, GRAPH_LAUNCHED, GRAPH_LAUNCH, NONE, ARG(1), NONE, NONE, ARG(2), NONE, NONE) \
	WITH_PTSZ(CALL, cudaStreamBeginCapture, GRAPH_BEGUN, GRAPH, NONE, NONE, NONE, NONE, ARG(1), NONE, ARG(2)) \
	WITH_PTSZ(CALL, cudaStreamBeginCaptureToGraph, GRAPH_BEGUN, GRAPH, NONE, ARG(2), NONE, NONE, ARG(1), NONE, ARG(6)) \
	WITH_PTSZ(CALL, cudaStreamBeginRecaptureToGraph, GRAPH_BEGUN, GRAPH, NONE, ARG(3), NONE, NONE, ARG(1), NONE, ARG(2)) \
	WITH_PTSZ(CALL, cudaStreamEndCapture, GRAPH_ENDED, GRAPH, NONE, OUT(2), NONE, NONE, ARG(1), NONE, NONE) \
	CALL(cudaGraphCreate, GRAPH_COUNTED, GRAPH, NONE, OUT(1), NONE, NONE, NONE, NONE, ARG(2)) \
	CALL(cudaGraphClone, GRAPH_EXECUTABLE, GRAPH, NONE, ARG(2), OUT(1), NONE, NONE, NONE, NONE) \
	CALL(cudaGraphInstantiate, GRAPH_EXECUTABLE, GRAPH, NONE, ARG(2), OUT(1), NONE, NONE, NONE, NONE) \
	CALL(cudaGraphInstantiateWithFlags, GRAPH_EXECUTABLE, GRAPH, NONE, ARG(2), OUT(1), NONE, NONE, NONE, ARG(3)) \
	WITH_PTSZ(CALL, cudaGraphInstantiateWithParams, GRAPH_EXECUTABLE, GRAPH, NONE, ARG(2), OUT(1), NONE, NONE, NONE, NONE) \
	WITH_PTSZ(CALL, cudaGraphUpload, PLAIN, GRAPH, NONE, NONE, ARG(1), NONE, ARG(2), NONE, NONE) \
	CALL(cudaGraphExecUpdate, PLAIN, GRAPH, NONE, ARG(2), ARG(1), NONE, NONE, NONE, NONE) \
	CALL(cudaGraphDestroy, PLAIN, GRAPH, NONE, ARG(1), NONE, NONE, NONE, NONE, NONE) \
	CALL(cudaGraphExecDestroy, PLAIN, GRAPH, NONE, NONE, ARG(1), NONE, NONE, NONE, NONE) \
	CALL(cudaGraphGetNodes, GRAPH_COUNTED, GRAPH, NONE, ARG(1), NONE, NONE, NONE, OUT(3), NONE) \
	CALL(cudaGraphAddKernelNode, GRAPH_ADDED, GRAPH, NONE, ARG(2), NONE, NONE, NONE, NONE, NONE) \
	CALL(cudaGraphAddMemcpyNode, GRAPH_ADDED, GRAPH, NONE, ARG(2), NONE, NONE, NONE, NONE, NONE) \
	CALL(cudaGraphAddMemcpyNode1D, GRAPH_ADDED, GRAPH, NONE, ARG(2), NONE, NONE, NONE, NONE, NONE) \
	CALL(cudaGraphAddMemcpyNodeToSymbol, GRAPH_ADDED, GRAPH, NONE, ARG(2), NONE, NONE, NONE, NONE, NONE) \
	CALL(cudaGraphAddMemcpyNodeFromSymbol, GRAPH_ADDED, GRAPH, NONE, ARG(2), NONE, NONE, NONE, NONE, NONE) \
	CALL(cudaGraphAddMemsetNode, GRAPH_ADDED, GRAPH, NONE, ARG(2), NONE, NONE, NONE, NONE, NONE) \
	CALL(cudaGraphAddHostNode, GRAPH_ADDED, GRAPH, NONE, ARG(2), NONE, NONE, NONE, NONE, NONE) \
	CALL(cudaGraphAddChildGraphNode, GRAPH_ADDED, GRAPH, NONE, ARG(2), NONE, NONE, NONE, NONE, NONE) \
	CALL(cudaGraphAddEmptyNode, GRAPH_ADDED, GRAPH, NONE, ARG(2), NONE, NONE, NONE, NONE, NONE) \
	CALL(cudaGraphAddEventRecordNode, GRAPH_ADDED, GRAPH, NONE, ARG(2), NONE, NONE, NONE, NONE, NONE) \
	CALL(cudaGraphAddEventWaitNode, GRAPH_ADDED, GRAPH, NONE, ARG(2), NONE, NONE, NONE, NONE, NONE) \
	CALL(cudaGraphAddExternalSemaphoresSignalNode, GRAPH_ADDED, GRAPH, NONE, ARG(2), NONE, NONE, NONE, NONE, NONE) \
	CALL(cudaGraphAddExternalSemaphoresWaitNode, GRAPH_ADDED, GRAPH, NONE, ARG(2), NONE, NONE, NONE, NONE, NONE) \
	CALL(cudaGraphAddMemAllocNode, GRAPH_ADDED, GRAPH, NONE, ARG(2), NONE, NONE, NONE, NONE, NONE) \
	CALL(cudaGraphAddMemFreeNode, GRAPH_ADDED, GRAPH, NONE, ARG(2), NONE, NONE, NONE, NONE, NONE) \
	CALL(cudaGraphAddNode, GRAPH_ADDED, GRAPH, NONE, ARG(2), NONE, NONE, NONE, NONE, NONE) \
	CALL(cudaGraphAddNode_v2, GRAPH_ADDED, GRAPH, NONE, ARG(2), NONE, NONE, NONE, NONE, NONE) \
	CALL(cudaGraphExecKernelNodeSetParams, PLAIN, GRAPH, NONE, NONE, ARG(1), NONE, NONE, NONE, NONE) \
	CALL(cudaGraphExecMemcpyNodeSetParams, PLAIN, GRAPH, NONE, NONE, ARG(1), NONE, NONE, NONE, NONE) \
	CALL(cudaGraphExecMemcpyNodeSetParams1D, PLAIN, GRAPH, NONE, NONE, ARG(1), NONE, NONE, NONE, NONE) \
	CALL(cudaGraphExecMemcpyNodeSetParamsToSymbol, PLAIN, GRAPH, NONE, NONE, ARG(1), NONE, NONE, NONE, NONE) \
	CALL(cudaGraphExecMemcpyNodeSetParamsFromSymbol, PLAIN, GRAPH, NONE, NONE, ARG(1), NONE, NONE, NONE, NONE) \
	CALL(cudaGraphExecMemsetNodeSetParams, PLAIN, GRAPH, NONE, NONE, ARG(1), NONE, NONE, NONE, NONE) \
	CALL(cudaGraphExecHostNodeSetParams, PLAIN, GRAPH, NONE, NONE, ARG(1), NONE, NONE, NONE, NONE) \
	CALL(cudaGraphExecChildGraphNodeSetParams, PLAIN, GRAPH, NONE, NONE, ARG(1), NONE, NONE, NONE, NONE) \
	CALL(cudaGraphExecNodeSetParams, PLAIN, GRAPH, NONE, NONE, ARG(1), NONE, NONE, NONE, NONE)

#define CUDA_RUNTIME_COPIES(CALL) \
	WITH_PTDS(CALL, cudaMemcpy, PLAIN, COPY, NONE, ARG(1), ARG(2), ARG(3), NONE, NONE, ARG(4)) \
	WITH_PTSZ(CALL, cudaMemcpyAsync, PLAIN, COPY, NONE, ARG(1), ARG(2), ARG(3), ARG(5), NONE, ARG(4)) \
	CALL(cudaMemcpyPeer, PLAIN, COPY, NONE, ARG(1), ARG(3), ARG(5), NONE, NONE, VALUE(3)) \
	CALL(cudaMemcpyPeerAsync, PLAIN, COPY, NONE, ARG(1), ARG(3), ARG(5), ARG(6), NONE, VALUE(3)) \
	WITH_PTDS(CALL, cudaMemcpy2D, AREA, COPY, NONE, ARG(1), ARG(3), ARG(5), NONE, ARG(6), STACK(0)) \
	WITH_PTSZ(CALL, cudaMemcpy2DAsync, AREA, COPY, NONE, ARG(1), ARG(3), ARG(5), STACK(1), ARG(6), STACK(0)) \
	WITH_PTDS(CALL, cudaMemcpy2DToArray, AREA, COPY, NONE, ARG(1), ARG(4), ARG(6), NONE, STACK(0), STACK(1)) \
	WITH_PTSZ(CALL, cudaMemcpy2DToArrayAsync, AREA, COPY, NONE, ARG(1), ARG(4), ARG(6), STACK(2), STACK(0), STACK(1)) \
	WITH_PTDS(CALL, cudaMemcpy2DFromArray, AREA, COPY, NONE, ARG(1), ARG(3), ARG(6), NONE, STACK(0), STACK(1)) \
	WITH_PTSZ(CALL, cudaMemcpy2DFromArrayAsync, AREA, COPY, NONE, ARG(1), ARG(3), ARG(6), STACK(2), STACK(0), STACK(1)) \
	WITH_PTDS(CALL, cudaMemcpy2DArrayToArray, AREA, COPY, NONE, ARG(1), ARG(4), STACK(0), NONE, STACK(1), STACK(2)) \
	WITH_PTDS(CALL, cudaMemcpyToArray, PLAIN, COPY, NONE, ARG(1), ARG(4), ARG(5), NONE, NONE, ARG(6)) \
	WITH_PTSZ(CALL, cudaMemcpyToArrayAsync, PLAIN, COPY, NONE, ARG(1), ARG(4), ARG(5), STACK(0), NONE, ARG(6)) \
	WITH_PTDS(CALL, cudaMemcpyFromArray, PLAIN, COPY, NONE, ARG(1), ARG(2), ARG(5), NONE, NONE, ARG(6)) \
	WITH_PTSZ(CALL, cudaMemcpyFromArrayAsync, PLAIN, COPY, NONE, ARG(1), ARG(2), ARG(5), STACK(0), NONE, ARG(6)) \
	WITH_PTDS(CALL, cudaMemcpyArrayToArray, PLAIN, COPY, NONE, ARG(1), ARG(4), STACK(0), NONE, NONE, STACK(1)) \
	WITH_PTDS(CALL, cudaMemcpyToSymbol, PLAIN, COPY, NONE, ARG(1), ARG(2), ARG(3), NONE, NONE, ARG(5)) \
	WITH_PTSZ(CALL, cudaMemcpyToSymbolAsync, PLAIN, COPY, NONE, ARG(1), ARG(2), ARG(3), ARG(6), NONE, ARG(5)) \
	WITH_PTDS(CALL, cudaMemcpyFromSymbol, PLAIN, COPY, NONE, ARG(1), ARG(2), ARG(3), NONE, NONE, ARG(5)) \
	WITH_PTSZ(CALL, cudaMemcpyFromSymbolAsync, PLAIN, COPY, NONE, ARG(1), ARG(2), ARG(3), ARG(6), NONE, ARG(5)) \
	WITH_PTDS(CALL, cudaMemcpy3D, COPY_3D, COPY, NONE, NONE, NONE, NONE, NONE, NONE, NONE) \
	WITH_PTSZ(CALL, cudaMemcpy3DAsync, COPY_3D, COPY, NONE, NONE, NONE, NONE, ARG(2), NONE, NONE) \
	WITH_PTDS(CALL, cudaMemcpy3DPeer, COPY_3D_PEER, COPY, NONE, NONE, NONE, NONE, NONE, NONE, VALUE(3)) \
	WITH_PTSZ(CALL, cudaMemcpy3DPeerAsync, COPY_3D_PEER, COPY, NONE, NONE, NONE, NONE, ARG(2), NONE, VALUE(3)) \
	WITH_PTSZ(CALL, cudaMemcpyBatchAsync, COPY_BATCH, COPY, NONE, IN(1), IN(2), NONE, NONE, ARG(4), VALUE(4)) \
	WITH_PTSZ(CALL, cudaMemcpy3DBatchAsync, PLAIN, COPY, NONE, NONE, NONE, NONE, NONE, ARG(1), VALUE(4)) \
	WITH_PTSZ(CALL, cudaMemcpyWithAttributesAsync, PLAIN, COPY, NONE, ARG(1), ARG(2), ARG(3), ARG(5), NONE, VALUE(4)) \
	WITH_PTSZ(CALL, cudaMemcpy3DWithAttributesAsync, PLAIN, COPY, NONE, NONE, NONE, NONE, ARG(3), NONE, VALUE(4)) \
	WITH_PTDS(CALL, cudaMemset, PLAIN, SET, NONE, ARG(1), ARG(2), ARG(3), NONE, NONE, NONE) \
	WITH_PTSZ(CALL, cudaMemsetAsync, PLAIN, SET, NONE, ARG(1), ARG(2), ARG(3), ARG(4), NONE, NONE) \
	WITH_PTDS(CALL, cudaMemset2D, AREA, SET, NONE, ARG(1), ARG(3), ARG(4), NONE, ARG(5), NONE) \
	WITH_PTSZ(CALL, cudaMemset2DAsync, AREA, SET, NONE, ARG(1), ARG(3), ARG(4), ARG(6), ARG(5), NONE) \
	WITH_PTDS(CALL, cudaMemset3D, SET_3D, SET, NONE, STACK(0), ARG(1), NONE, NONE, NONE, NONE) \
	WITH_PTSZ(CALL, cudaMemset3DAsync, SET_3D, SET, NONE, STACK(0), ARG(1), NONE, ARG(2), NONE, NONE)

#define CUDA_RUNTIME_MEMORY(CALL) \
	CALL(cudaMalloc, PLAIN, ALLOCATION, DEVICE, OUT(1), NONE, ARG(2), NONE, NONE, NONE) \
	CALL(cudaMallocManaged, PLAIN, ALLOCATION, MANAGED, OUT(1), NONE, ARG(2), NONE, NONE, ARG(3)) \
	CALL(cudaMallocPitch, AREA, ALLOCATION, DEVICE, OUT(1), NONE, OUT(2), NONE, ARG(4), NONE) \
	CALL(cudaMalloc3D, ALLOCATION_3D, ALLOCATION, DEVICE, OUT(1), NONE, NONE, NONE, NONE, NONE) \
	CALL(cudaMallocArray, ARRAY, ALLOCATION, DEVICE, OUT(1), NONE, NONE, NONE, NONE, ARG(5)) \
	CALL(cudaMalloc3DArray, ARRAY_3D, ALLOCATION, DEVICE, OUT(1), NONE, NONE, NONE, NONE, ARG(3)) \
	CALL(cudaMallocMipmappedArray, ARRAY_3D, ALLOCATION, DEVICE, OUT(1), NONE, NONE, NONE, NONE, ARG(4)) \
	CALL(cudaMallocHost, PLAIN, ALLOCATION, HOST, OUT(1), NONE, ARG(2), NONE, NONE, NONE) \
	CALL(cudaHostAlloc, PLAIN, ALLOCATION, HOST, OUT(1), NONE, ARG(2), NONE, NONE, ARG(3)) \
	WITH_PTSZ(CALL, cudaMallocAsync, PLAIN, ALLOCATION, POOL, OUT(1), NONE, ARG(2), ARG(3), NONE, NONE) \
	WITH_PTSZ(CALL, cudaMallocFromPoolAsync, PLAIN, ALLOCATION, POOL, OUT(1), NONE, ARG(2), ARG(4), ARG(3), NONE) \
	CALL(cudaHostRegister, PLAIN, ALLOCATION, REGISTERED, ARG(1), NONE, ARG(2), NONE, NONE, ARG(3)) \
	CALL(cudaIpcOpenMemHandle, PLAIN, ALLOCATION, IMPORTED, OUT(1), NONE, NONE, NONE, NONE, ARG(2)) \
	CALL(cudaMemPoolImportPointer, PLAIN, ALLOCATION, IMPORTED, OUT(1), NONE, NONE, NONE, ARG(2), NONE) \
	CALL(cudaExternalMemoryGetMappedBuffer, PLAIN, ALLOCATION, IMPORTED, OUT(1), NONE, NONE, NONE, NONE, NONE) \
	CALL(cudaFree, PLAIN, FREE, DEVICE, ARG(1), NONE, NONE, NONE, NONE, NONE) \
	CALL(cudaFreeHost, PLAIN, FREE, HOST, ARG(1), NONE, NONE, NONE, NONE, NONE) \
	WITH_PTSZ(CALL, cudaFreeAsync, PLAIN, FREE, POOL, ARG(1), NONE, NONE, ARG(2), NONE, NONE) \
	CALL(cudaFreeArray, PLAIN, FREE, DEVICE, ARG(1), NONE, NONE, NONE, NONE, NONE) \
	CALL(cudaFreeMipmappedArray, PLAIN, FREE, DEVICE, ARG(1), NONE, NONE, NONE, NONE, NONE) \
	CALL(cudaHostUnregister, PLAIN, FREE, REGISTERED, ARG(1), NONE, NONE, NONE, NONE, NONE) \
	CALL(cudaIpcCloseMemHandle, PLAIN, FREE, IMPORTED, ARG(1), NONE, NONE, NONE, NONE, NONE)

#define CUDA_RUNTIME_OTHERS(CALL) \
	WITH_PTSZ(CALL, cudaStreamSynchronize, PLAIN, SYNCHRONIZATION, NONE, ARG(1), NONE, NONE, NONE, NONE, NONE) \
	CALL(cudaEventSynchronize, PLAIN, SYNCHRONIZATION, NONE, ARG(1), NONE, NONE, NONE, NONE, NONE) \
	CALL(cudaDeviceSynchronize, PLAIN, SYNCHRONIZATION, NONE, NONE, NONE, NONE, NONE, NONE, NONE) \
	CALL(cudaThreadSynchronize, PLAIN, SYNCHRONIZATION, NONE, NONE, NONE, NONE, NONE, NONE, NONE) \
	CALL(cudaExecutionCtxSynchronize, PLAIN, SYNCHRONIZATION, NONE, NONE, NONE, NONE, NONE, NONE, NONE) \
	CALL(cudaStreamCreate, PLAIN, STREAM, NONE, OUT(1), NONE, NONE, NONE, NONE, NONE) \
	CALL(cudaStreamCreateWithFlags, PLAIN, STREAM, NONE, OUT(1), NONE, NONE, NONE, NONE, ARG(2)) \
	CALL(cudaStreamCreateWithPriority, PLAIN, STREAM, NONE, OUT(1), NONE, NONE, NONE, NONE, ARG(2)) \
	CALL(cudaExecutionCtxStreamCreate, PLAIN, STREAM, NONE, OUT(1), NONE, NONE, NONE, NONE, ARG(3)) \
	CALL(cudaStreamDestroy, PLAIN, STREAM, NONE, ARG(1), NONE, NONE, NONE, NONE, NONE) \
	CALL(cudaEventCreate, PLAIN, EVENT, NONE, OUT(1), NONE, NONE, NONE, NONE, NONE) \
	CALL(cudaEventCreateWithFlags, PLAIN, EVENT, NONE, OUT(1), NONE, NONE, NONE, NONE, ARG(2)) \
	CALL(cudaSetDevice, DEVICE_SET, DEVICE, NONE, ARG(1), NONE, NONE, NONE, NONE, NONE) \
	CALL(cudaInitDevice, PLAIN, DEVICE, NONE, ARG(1), NONE, NONE, NONE, NONE, NONE) \
	CALL(cudaDeviceEnablePeerAccess, PLAIN, DEVICE, NONE, NONE, ARG(1), NONE, NONE, NONE, ARG(2)) \
	CALL(cudaDeviceDisablePeerAccess, PLAIN, DEVICE, NONE, NONE, ARG(1), NONE, NONE, NONE, NONE) \
	CALL(cudaDeviceReset, PLAIN, MODULE, NONE, NONE, NONE, NONE, NONE, NONE, NONE) \
	CALL(cudaThreadExit, PLAIN, MODULE, NONE, NONE, NONE, NONE, NONE, NONE, NONE) \
	CALL(cudaLibraryLoadData, PLAIN, MODULE, NONE, OUT(1), ARG(2), NONE, NONE, NONE, NONE) \
	CALL(cudaLibraryLoadFromFile, PLAIN, MODULE, NONE, OUT(1), NONE, NONE, NONE, NONE, NONE) \
	CALL(cudaLibraryUnload, PLAIN, MODULE, NONE, ARG(1), NONE, NONE, NONE, NONE, NONE) \
	CALL(__cudaGetKernel, PLAIN, KERNEL, NONE, OUT(1), ARG(2), NONE, NONE, NONE, NONE) \
	CALL(cudaGetKernel, PLAIN, KERNEL, NONE, OUT(1), ARG(2), NONE, NONE, NONE, NONE) \
	CALL(cudaGetFuncBySymbol, PLAIN, KERNEL, NONE, OUT(1), ARG(2), NONE, NONE, NONE, NONE) \
	CALL(cudaLibraryGetKernel, PLAIN, NAME, NONE, OUT(1), ARG(2), NONE, NONE, ARG(3), NONE)

#define CUDA_RUNTIME_ENTRIES(CALL) \
	WITH_PTSZ(CALL, cudaEventRecord, PLAIN, EVENT, NONE, ARG(1), NONE, NONE, ARG(2), NONE, NONE) \
	WITH_PTSZ(CALL, cudaEventRecordWithFlags, PLAIN, EVENT, NONE, ARG(1), NONE, NONE, ARG(2), NONE, ARG(3)) \
	WITH_PTSZ(CALL, cudaStreamWaitEvent, PLAIN, EVENT, NONE, ARG(2), NONE, NONE, ARG(1), NONE, ARG(3)) \
	CALL(cudaEventDestroy, PLAIN, EVENT, NONE, ARG(1), NONE, NONE, NONE, NONE, NONE) \
	CALL(__cudaRegisterFunction, PLAIN, REGISTRATION, NONE, ARG(2), ARG(4), NONE, NONE, ARG(1), NONE)

/*
 * Driver API: libcuda. The forms of CUDA 3.1 and before, whose addresses have
 * 32 bits, are left out.
 */
#define CUDA_DRIVER_LAUNCHES(CALL) \
	WITH_PTSZ(CALL, cuLaunchKernel, LAUNCH_DRIVER, LAUNCH, NONE, ARG(1), NONE, STACK(1), STACK(2), NONE, NONE) \
	WITH_PTSZ(CALL, cuLaunchCooperativeKernel, LAUNCH_DRIVER, LAUNCH, NONE, ARG(1), NONE, STACK(1), STACK(2), NONE, NONE) \
	WITH_PTSZ(CALL, cuLaunchKernelEx, LAUNCH_DRIVER_CONFIG, LAUNCH, NONE, ARG(2), NONE, NONE, NONE, NONE, NONE) \
	CALL(cuLaunchCooperativeKernelMultiDevice, LAUNCH_DRIVER_DEVICES, LAUNCH, NONE, NONE, NONE, NONE, NONE, NONE, NONE)

#define CUDA_DRIVER_GRAPHS(CALL) \
	WITH_PTSZ(CALL, cuGraphLaunch, GRAPH_LAUNCHED, GRAPH_LAUNCH, NONE, ARG(1), NONE, NONE, ARG(2), NONE, NONE) \
	WITH_PTSZ(CALL, cuStreamBeginCapture, GRAPH_BEGUN, GRAPH, NONE, NONE, NONE, NONE, ARG(1), NONE, NONE) \
	WITH_PTSZ(CALL, cuStreamBeginCapture_v2, GRAPH_BEGUN, GRAPH, NONE, NONE, NONE, NONE, ARG(1), NONE, ARG(2)) \
	WITH_PTSZ(CALL, cuStreamBeginCaptureToGraph, GRAPH_BEGUN, GRAPH, NONE, ARG(2), NONE, NONE, ARG(1), NONE, ARG(6)) \
	WITH_PTSZ(CALL, cuStreamBeginRecaptureToGraph, GRAPH_BEGUN, GRAPH, NONE, ARG(3), NONE, NONE, ARG(1), NONE, ARG(2)) \
	WITH_PTSZ(CALL, cuStreamEndCapture, GRAPH_ENDED, GRAPH, NONE, OUT(2), NONE, NONE, ARG(1), NONE, NONE) \
	CALL(cuGraphCreate, GRAPH_COUNTED, GRAPH, NONE, OUT(1), NONE, NONE, NONE, NONE, ARG(2)) \
	CALL(cuGraphClone, GRAPH_EXECUTABLE, GRAPH, NONE, ARG(2), OUT(1), NONE, NONE, NONE, NONE) \
	CALL(cuGraphInstantiate, GRAPH_EXECUTABLE, GRAPH, NONE, ARG(2), OUT(1), NONE, NONE, NONE, NONE) \
	CALL(cuGraphInstantiate_v2, GRAPH_EXECUTABLE, GRAPH, NONE, ARG(2), OUT(1), NONE, NONE, NONE, NONE) \
	CALL(cuGraphInstantiateWithFlags, GRAPH_EXECUTABLE, GRAPH, NONE, ARG(2), OUT(1), NONE, NONE, NONE, ARG(3)) \
	WITH_PTSZ(CALL, cuGraphInstantiateWithParams, GRAPH_EXECUTABLE, GRAPH, NONE, ARG(2), OUT(1), NONE, NONE, NONE, NONE) \
	WITH_PTSZ(CALL, cuGraphUpload, PLAIN, GRAPH, NONE, NONE, ARG(1), NONE, ARG(2), NONE, NONE) \
	CALL(cuGraphExecUpdate, PLAIN, GRAPH, NONE, ARG(2), ARG(1), NONE, NONE, NONE, NONE) \
	CALL(cuGraphExecUpdate_v2, PLAIN, GRAPH, NONE, ARG(2), ARG(1), NONE, NONE, NONE, NONE) \
	CALL(cuGraphDestroy, PLAIN, GRAPH, NONE, ARG(1), NONE, NONE, NONE, NONE, NONE) \
	CALL(cuGraphExecDestroy, PLAIN, GRAPH, NONE, NONE, ARG(1), NONE, NONE, NONE, NONE) \
	CALL(cuGraphGetNodes, GRAPH_COUNTED, GRAPH, NONE, ARG(1), NONE, NONE, NONE, OUT(3), NONE) \
	CALL(cuGraphAddKernelNode, GRAPH_ADDED, GRAPH, NONE, ARG(2), NONE, NONE, NONE, NONE, NONE) \
	CALL(cuGraphAddKernelNode_v2, GRAPH_ADDED, GRAPH, NONE, ARG(2), NONE, NONE, NONE, NONE, NONE) \
	CALL(cuGraphAddMemcpyNode, GRAPH_ADDED, GRAPH, NONE, ARG(2), NONE, NONE, NONE, NONE, NONE) \
	CALL(cuGraphAddMemsetNode, GRAPH_ADDED, GRAPH, NONE, ARG(2), NONE, NONE, NONE, NONE, NONE) \
	CALL(cuGraphAddHostNode, GRAPH_ADDED, GRAPH, NONE, ARG(2), NONE, NONE, NONE, NONE, NONE) \
	CALL(cuGraphAddChildGraphNode, GRAPH_ADDED, GRAPH, NONE, ARG(2), NONE, NONE, NONE, NONE, NONE) \
	CALL(cuGraphAddEmptyNode, GRAPH_ADDED, GRAPH, NONE, ARG(2), NONE, NONE, NONE, NONE, NONE) \
	CALL(cuGraphAddEventRecordNode, GRAPH_ADDED, GRAPH, NONE, ARG(2), NONE, NONE, NONE, NONE, NONE) \
	CALL(cuGraphAddEventWaitNode, GRAPH_ADDED, GRAPH, NONE, ARG(2), NONE, NONE, NONE, NONE, NONE) \
	CALL(cuGraphAddExternalSemaphoresSignalNode, GRAPH_ADDED, GRAPH, NONE, ARG(2), NONE, NONE, NONE, NONE, NONE) \
	CALL(cuGraphAddExternalSemaphoresWaitNode, GRAPH_ADDED, GRAPH, NONE, ARG(2), NONE, NONE, NONE, NONE, NONE) \
	CALL(cuGraphAddBatchMemOpNode, GRAPH_ADDED, GRAPH, NONE, ARG(2), NONE, NONE, NONE, NONE, NONE) \
	CALL(cuGraphAddMemAllocNode, GRAPH_ADDED, GRAPH, NONE, ARG(2), NONE, NONE, NONE, NONE, NONE) \
	CALL(cuGraphAddMemFreeNode, GRAPH_ADDED, GRAPH, NONE, ARG(2), NONE, NONE, NONE, NONE, NONE) \
	CALL(cuGraphAddNode, GRAPH_ADDED, GRAPH, NONE, ARG(2), NONE, NONE, NONE, NONE, NONE) \
	CALL(cuGraphAddNode_v2, GRAPH_ADDED, GRAPH, NONE, ARG(2), NONE, NONE, NONE, NONE, NONE) \
	CALL(cuGraphAddNode_v3, GRAPH_ADDED, GRAPH, NONE, ARG(2), NONE, NONE, NONE, NONE, NONE) \
	CALL(cuGraphExecKernelNodeSetParams, PLAIN, GRAPH, NONE, NONE, ARG(1), NONE, NONE, NONE, NONE) \
	CALL(cuGraphExecKernelNodeSetParams_v2, PLAIN, GRAPH, NONE, NONE, ARG(1), NONE, NONE, NONE, NONE) \
	CALL(cuGraphExecMemcpyNodeSetParams, PLAIN, GRAPH, NONE, NONE, ARG(1), NONE, NONE, NONE, NONE) \
	CALL(cuGraphExecMemsetNodeSetParams, PLAIN, GRAPH, NONE, NONE, ARG(1), NONE, NONE, NONE, NONE) \
	CALL(cuGraphExecHostNodeSetParams, PLAIN, GRAPH, NONE, NONE, ARG(1), NONE, NONE, NONE, NONE) \
	CALL(cuGraphExecChildGraphNodeSetParams, PLAIN, GRAPH, NONE, NONE, ARG(1), NONE, NONE, NONE, NONE) \
	CALL(cuGraphExecNodeSetParams, PLAIN, GRAPH, NONE, NONE, ARG(1), NONE, NONE, NONE, NONE)

#define CUDA_DRIVER_COPIES(CALL) \
	WITH_PTDS(CALL, cuMemcpy, PLAIN, COPY, NONE, ARG(1), ARG(2), ARG(3), NONE, NONE, VALUE(4)) \
	WITH_PTSZ(CALL, cuMemcpyAsync, PLAIN, COPY, NONE, ARG(1), ARG(2), ARG(3), ARG(4), NONE, VALUE(4)) \
	WITH_PTDS(CALL, cuMemcpyPeer, PLAIN, COPY, NONE, ARG(1), ARG(3), ARG(5), NONE, NONE, VALUE(3)) \
	WITH_PTSZ(CALL, cuMemcpyPeerAsync, PLAIN, COPY, NONE, ARG(1), ARG(3), ARG(5), ARG(6), NONE, VALUE(3)) \
	WITH_PTDS(CALL, cuMemcpyHtoD_v2, PLAIN, COPY, NONE, ARG(1), ARG(2), ARG(3), NONE, NONE, VALUE(1)) \
	WITH_PTSZ(CALL, cuMemcpyHtoDAsync_v2, PLAIN, COPY, NONE, ARG(1), ARG(2), ARG(3), ARG(4), NONE, VALUE(1)) \
	WITH_PTDS(CALL, cuMemcpyDtoH_v2, PLAIN, COPY, NONE, ARG(1), ARG(2), ARG(3), NONE, NONE, VALUE(2)) \
	WITH_PTSZ(CALL, cuMemcpyDtoHAsync_v2, PLAIN, COPY, NONE, ARG(1), ARG(2), ARG(3), ARG(4), NONE, VALUE(2)) \
	WITH_PTDS(CALL, cuMemcpyDtoD_v2, PLAIN, COPY, NONE, ARG(1), ARG(2), ARG(3), NONE, NONE, VALUE(3)) \
	WITH_PTSZ(CALL, cuMemcpyDtoDAsync_v2, PLAIN, COPY, NONE, ARG(1), ARG(2), ARG(3), ARG(4), NONE, VALUE(3)) \
	WITH_PTDS(CALL, cuMemcpyHtoA_v2, PLAIN, COPY, NONE, ARG(1), ARG(3), ARG(4), NONE, NONE, VALUE(1)) \
	WITH_PTSZ(CALL, cuMemcpyHtoAAsync_v2, PLAIN, COPY, NONE, ARG(1), ARG(3), ARG(4), ARG(5), NONE, VALUE(1)) \
	WITH_PTDS(CALL, cuMemcpyAtoH_v2, PLAIN, COPY, NONE, ARG(1), ARG(2), ARG(4), NONE, NONE, VALUE(2)) \
	WITH_PTSZ(CALL, cuMemcpyAtoHAsync_v2, PLAIN, COPY, NONE, ARG(1), ARG(2), ARG(4), ARG(5), NONE, VALUE(2)) \
	WITH_PTDS(CALL, cuMemcpyDtoA_v2, PLAIN, COPY, NONE, ARG(1), ARG(3), ARG(4), NONE, NONE, VALUE(3)) \
	WITH_PTDS(CALL, cuMemcpyAtoD_v2, PLAIN, COPY, NONE, ARG(1), ARG(2), ARG(4), NONE, NONE, VALUE(3)) \
	WITH_PTDS(CALL, cuMemcpyAtoA_v2, PLAIN, COPY, NONE, ARG(1), ARG(3), ARG(5), NONE, NONE, VALUE(3)) \
	WITH_PTDS(CALL, cuMemcpy2D_v2, COPY_2D_DRIVER, COPY, NONE, NONE, NONE, NONE, NONE, NONE, NONE) \
	WITH_PTDS(CALL, cuMemcpy2DUnaligned_v2, COPY_2D_DRIVER, COPY, NONE, NONE, NONE, NONE, NONE, NONE, NONE) \
	WITH_PTSZ(CALL, cuMemcpy2DAsync_v2, COPY_2D_DRIVER, COPY, NONE, NONE, NONE, NONE, ARG(2), NONE, NONE) \
	WITH_PTDS(CALL, cuMemcpy3D_v2, COPY_3D_DRIVER, COPY, NONE, NONE, NONE, NONE, NONE, NONE, NONE) \
	WITH_PTSZ(CALL, cuMemcpy3DAsync_v2, COPY_3D_DRIVER, COPY, NONE, NONE, NONE, NONE, ARG(2), NONE, NONE) \
	WITH_PTDS(CALL, cuMemcpy3DPeer, COPY_3D_DRIVER, COPY, NONE, NONE, NONE, NONE, NONE, NONE, NONE) \
	WITH_PTSZ(CALL, cuMemcpy3DPeerAsync, COPY_3D_DRIVER, COPY, NONE, NONE, NONE, NONE, ARG(2), NONE, NONE) \
	WITH_PTSZ(CALL, cuMemcpyBatchAsync, COPY_BATCH, COPY, NONE, IN(1), IN(2), NONE, STACK(2), ARG(4), VALUE(4)) \
	WITH_PTSZ(CALL, cuMemcpyBatchAsync_v2, COPY_BATCH, COPY, NONE, IN(1), IN(2), NONE, STACK(1), ARG(4), VALUE(4)) \
	WITH_PTSZ(CALL, cuMemcpy3DBatchAsync, PLAIN, COPY, NONE, NONE, NONE, NONE, ARG(5), ARG(1), VALUE(4)) \
	WITH_PTSZ(CALL, cuMemcpy3DBatchAsync_v2, PLAIN, COPY, NONE, NONE, NONE, NONE, ARG(4), ARG(1), VALUE(4)) \
	WITH_PTSZ(CALL, cuMemcpyWithAttributesAsync, PLAIN, COPY, NONE, ARG(1), ARG(2), ARG(3), ARG(5), NONE, VALUE(4)) \
	WITH_PTSZ(CALL, cuMemcpy3DWithAttributesAsync, PLAIN, COPY, NONE, NONE, NONE, NONE, ARG(3), NONE, VALUE(4)) \
	WITH_PTDS(CALL, cuMemsetD8_v2, PLAIN, SET, NONE, ARG(1), ARG(2), ARG(3), NONE, NONE, NONE) \
	WITH_PTSZ(CALL, cuMemsetD8Async, PLAIN, SET, NONE, ARG(1), ARG(2), ARG(3), ARG(4), NONE, NONE) \
	WITH_PTDS(CALL, cuMemsetD16_v2, ELEMENTS_2, SET, NONE, ARG(1), ARG(2), ARG(3), NONE, NONE, NONE) \
	WITH_PTSZ(CALL, cuMemsetD16Async, ELEMENTS_2, SET, NONE, ARG(1), ARG(2), ARG(3), ARG(4), NONE, NONE) \
	WITH_PTDS(CALL, cuMemsetD32_v2, ELEMENTS_4, SET, NONE, ARG(1), ARG(2), ARG(3), NONE, NONE, NONE) \
	WITH_PTSZ(CALL, cuMemsetD32Async, ELEMENTS_4, SET, NONE, ARG(1), ARG(2), ARG(3), ARG(4), NONE, NONE) \
	WITH_PTDS(CALL, cuMemsetD2D8_v2, AREA, SET, NONE, ARG(1), ARG(3), ARG(4), NONE, ARG(5), NONE) \
	WITH_PTSZ(CALL, cuMemsetD2D8Async, AREA, SET, NONE, ARG(1), ARG(3), ARG(4), ARG(6), ARG(5), NONE) \
	WITH_PTDS(CALL, cuMemsetD2D16_v2, AREA_2, SET, NONE, ARG(1), ARG(3), ARG(4), NONE, ARG(5), NONE) \
	WITH_PTSZ(CALL, cuMemsetD2D16Async, AREA_2, SET, NONE, ARG(1), ARG(3), ARG(4), ARG(6), ARG(5), NONE) \
	WITH_PTDS(CALL, cuMemsetD2D32_v2, AREA_4, SET, NONE, ARG(1), ARG(3), ARG(4), NONE, ARG(5), NONE) \
	WITH_PTSZ(CALL, cuMemsetD2D32Async, AREA_4, SET, NONE, ARG(1), ARG(3), ARG(4), ARG(6), ARG(5), NONE)

#define CUDA_DRIVER_MEMORY(CALL) \
	CALL(cuMemAlloc_v2, PLAIN, ALLOCATION, DEVICE, OUT(1), NONE, ARG(2), NONE, NONE, NONE) \
	CALL(cuMemAllocManaged, PLAIN, ALLOCATION, MANAGED, OUT(1), NONE, ARG(2), NONE, NONE, ARG(3)) \
	CALL(cuMemAllocPitch_v2, AREA, ALLOCATION, DEVICE, OUT(1), NONE, OUT(2), NONE, ARG(4), NONE) \
	CALL(cuArrayCreate_v2, ARRAY_DRIVER, ALLOCATION, DEVICE, OUT(1), NONE, NONE, NONE, NONE, NONE) \
	CALL(cuArray3DCreate_v2, ARRAY_3D_DRIVER, ALLOCATION, DEVICE, OUT(1), NONE, NONE, NONE, NONE, NONE) \
	CALL(cuMipmappedArrayCreate, ARRAY_3D_DRIVER, ALLOCATION, DEVICE, OUT(1), NONE, NONE, NONE, NONE, NONE) \
	CALL(cuMemAllocHost_v2, PLAIN, ALLOCATION, HOST, OUT(1), NONE, ARG(2), NONE, NONE, NONE) \
	CALL(cuMemHostAlloc, PLAIN, ALLOCATION, HOST, OUT(1), NONE, ARG(2), NONE, NONE, ARG(3)) \
	WITH_PTSZ(CALL, cuMemAllocAsync, PLAIN, ALLOCATION, POOL, OUT(1), NONE, ARG(2), ARG(3), NONE, NONE) \
	WITH_PTSZ(CALL, cuMemAllocFromPoolAsync, PLAIN, ALLOCATION, POOL, OUT(1), NONE, ARG(2), ARG(4), ARG(3), NONE) \
	CALL(cuMemCreate, PHYSICAL, ALLOCATION, PHYSICAL, OUT(1), NONE, ARG(2), NONE, NONE, ARG(4)) \
	CALL(cuMemRetainAllocationHandle, PLAIN, ALLOCATION, PHYSICAL, OUT(1), ARG(2), NONE, NONE, NONE, NONE) \
	CALL(cuMemAddressReserve, PLAIN, ALLOCATION, ADDRESS, OUT(1), NONE, ARG(2), NONE, NONE, ARG(5)) \
	CALL(cuMemHostRegister, PLAIN, ALLOCATION, REGISTERED, ARG(1), NONE, ARG(2), NONE, NONE, ARG(3)) \
	CALL(cuMemHostRegister_v2, PLAIN, ALLOCATION, REGISTERED, ARG(1), NONE, ARG(2), NONE, NONE, ARG(3)) \
	CALL(cuIpcOpenMemHandle, PLAIN, ALLOCATION, IMPORTED, OUT(1), NONE, NONE, NONE, NONE, ARG(2)) \
	CALL(cuIpcOpenMemHandle_v2, PLAIN, ALLOCATION, IMPORTED, OUT(1), NONE, NONE, NONE, NONE, ARG(2)) \
	CALL(cuMemImportFromShareableHandle, PLAIN, ALLOCATION, IMPORTED, OUT(1), NONE, NONE, NONE, NONE, ARG(3)) \
	CALL(cuMemPoolImportPointer, PLAIN, ALLOCATION, IMPORTED, OUT(1), NONE, NONE, NONE, ARG(2), NONE) \
	CALL(cuExternalMemoryGetMappedBuffer, PLAIN, ALLOCATION, IMPORTED, OUT(1), NONE, NONE, NONE, NONE, NONE) \
	CALL(cuMemFree_v2, PLAIN, FREE, DEVICE, ARG(1), NONE, NONE, NONE, NONE, NONE) \
	CALL(cuArrayDestroy, PLAIN, FREE, DEVICE, ARG(1), NONE, NONE, NONE, NONE, NONE) \
	CALL(cuMipmappedArrayDestroy, PLAIN, FREE, DEVICE, ARG(1), NONE, NONE, NONE, NONE, NONE) \
	CALL(cuMemFreeHost, PLAIN, FREE, HOST, ARG(1), NONE, NONE, NONE, NONE, NONE) \
	WITH_PTSZ(CALL, cuMemFreeAsync, PLAIN, FREE, POOL, ARG(1), NONE, NONE, ARG(2), NONE, NONE) \
	CALL(cuMemRelease, PLAIN, FREE, PHYSICAL, ARG(1), NONE, NONE, NONE, NONE, NONE) \
	CALL(cuMemAddressFree, PLAIN, FREE, ADDRESS, ARG(1), NONE, ARG(2), NONE, NONE, NONE) \
	CALL(cuMemHostUnregister, PLAIN, FREE, REGISTERED, ARG(1), NONE, NONE, NONE, NONE, NONE) \
	CALL(cuIpcCloseMemHandle, PLAIN, FREE, IMPORTED, ARG(1), NONE, NONE, NONE, NONE, NONE) \
	CALL(cuMemMap, PLAIN, MAPPING, PHYSICAL, ARG(1), ARG(4), ARG(2), NONE, ARG(3), NONE) \
	CALL(cuMemUnmap, PLAIN, MAPPING, PHYSICAL, ARG(1), NONE, ARG(2), NONE, NONE, NONE)

#define CUDA_DRIVER_OTHERS(CALL) \
	WITH_PTSZ(CALL, cuStreamSynchronize, PLAIN, SYNCHRONIZATION, NONE, ARG(1), NONE, NONE, NONE, NONE, NONE) \
	CALL(cuEventSynchronize, PLAIN, SYNCHRONIZATION, NONE, ARG(1), NONE, NONE, NONE, NONE, NONE) \
	CALL(cuCtxSynchronize, PLAIN, SYNCHRONIZATION, NONE, NONE, NONE, NONE, NONE, NONE, NONE) \
	CALL(cuCtxSynchronize_v2, PLAIN, SYNCHRONIZATION, NONE, NONE, NONE, NONE, NONE, NONE, NONE) \
	CALL(cuStreamCreate, PLAIN, STREAM, NONE, OUT(1), NONE, NONE, NONE, NONE, ARG(2)) \
	CALL(cuStreamCreateWithPriority, PLAIN, STREAM, NONE, OUT(1), NONE, NONE, NONE, NONE, ARG(2)) \
	CALL(cuGreenCtxStreamCreate, PLAIN, STREAM, NONE, OUT(1), NONE, NONE, NONE, NONE, ARG(3)) \
	CALL(cuStreamDestroy, PLAIN, STREAM, NONE, ARG(1), NONE, NONE, NONE, NONE, NONE) \
	CALL(cuStreamDestroy_v2, PLAIN, STREAM, NONE, ARG(1), NONE, NONE, NONE, NONE, NONE) \
	CALL(cuEventCreate, PLAIN, EVENT, NONE, OUT(1), NONE, NONE, NONE, NONE, ARG(2)) \
	CALL(cuCtxCreate, CONTEXT_CREATED, MODULE, NONE, OUT(1), ARG(3), NONE, NONE, NONE, ARG(2)) \
	CALL(cuCtxCreate_v2, CONTEXT_CREATED, MODULE, NONE, OUT(1), ARG(3), NONE, NONE, NONE, ARG(2)) \
	CALL(cuCtxCreate_v3, CONTEXT_CREATED, MODULE, NONE, OUT(1), ARG(5), NONE, NONE, NONE, ARG(4)) \
	CALL(cuCtxCreate_v4, CONTEXT_CREATED, MODULE, NONE, OUT(1), ARG(4), NONE, NONE, NONE, ARG(3)) \
	CALL(cuCtxDestroy, CONTEXT_ENDED, MODULE, NONE, ARG(1), NONE, NONE, NONE, NONE, NONE) \
	CALL(cuCtxDestroy_v2, CONTEXT_ENDED, MODULE, NONE, ARG(1), NONE, NONE, NONE, NONE, NONE) \
	CALL(cuDevicePrimaryCtxRetain, CONTEXT_RETAINED, MODULE, NONE, OUT(1), ARG(2), NONE, NONE, NONE, NONE) \
	CALL(cuDevicePrimaryCtxRelease, PLAIN, MODULE, NONE, NONE, ARG(1), NONE, NONE, NONE, NONE) \
	CALL(cuDevicePrimaryCtxRelease_v2, PLAIN, MODULE, NONE, NONE, ARG(1), NONE, NONE, NONE, NONE) \
	CALL(cuDevicePrimaryCtxReset, PLAIN, MODULE, NONE, NONE, ARG(1), NONE, NONE, NONE, NONE) \
	CALL(cuDevicePrimaryCtxReset_v2, PLAIN, MODULE, NONE, NONE, ARG(1), NONE, NONE, NONE, NONE) \
	CALL(cuCtxSetCurrent, CONTEXT_SET, DEVICE, NONE, ARG(1), NONE, NONE, NONE, NONE, NONE) \
	CALL(cuCtxPushCurrent, CONTEXT_PUSHED, DEVICE, NONE, ARG(1), NONE, NONE, NONE, NONE, NONE) \
	CALL(cuCtxPushCurrent_v2, CONTEXT_PUSHED, DEVICE, NONE, ARG(1), NONE, NONE, NONE, NONE, NONE) \
	CALL(cuCtxPopCurrent, CONTEXT_POPPED, DEVICE, NONE, OUT(1), NONE, NONE, NONE, NONE, NONE) \
	CALL(cuCtxPopCurrent_v2, CONTEXT_POPPED, DEVICE, NONE, OUT(1), NONE, NONE, NONE, NONE, NONE) \
	CALL(cuCtxEnablePeerAccess, PLAIN, DEVICE, NONE, NONE, ARG(1), NONE, NONE, NONE, ARG(2)) \
	CALL(cuCtxDisablePeerAccess, PLAIN, DEVICE, NONE, NONE, ARG(1), NONE, NONE, NONE, NONE) \
	CALL(cuModuleLoad, PLAIN, MODULE, NONE, OUT(1), NONE, NONE, NONE, NONE, NONE) \
	CALL(cuModuleLoadData, PLAIN, MODULE, NONE, OUT(1), ARG(2), NONE, NONE, NONE, NONE) \
	CALL(cuModuleLoadDataEx, PLAIN, MODULE, NONE, OUT(1), ARG(2), NONE, NONE, NONE, NONE) \
	CALL(cuModuleLoadFatBinary, PLAIN, MODULE, NONE, OUT(1), ARG(2), NONE, NONE, NONE, NONE) \
	CALL(cuModuleUnload, PLAIN, MODULE, NONE, ARG(1), NONE, NONE, NONE, NONE, NONE) \
	CALL(cuLibraryLoadData, PLAIN, MODULE, NONE, OUT(1), ARG(2), NONE, NONE, NONE, NONE) \
	CALL(cuLibraryLoadFromFile, PLAIN, MODULE, NONE, OUT(1), NONE, NONE, NONE, NONE, NONE) \
	CALL(cuLibraryUnload, PLAIN, MODULE, NONE, ARG(1), NONE, NONE, NONE, NONE, NONE) \
	CALL(cuModuleGetFunction, PLAIN, NAME, NONE, OUT(1), ARG(2), NONE, NONE, ARG(3), NONE) \
	CALL(cuLibraryGetKernel, PLAIN, NAME, NONE, OUT(1), ARG(2), NONE, NONE, ARG(3), NONE) \
	CALL(cuKernelGetFunction, PLAIN, KERNEL, NONE, OUT(1), ARG(2), NONE, NONE, NONE, NONE) \
	CALL(cuLaunch, PLAIN, LAUNCH, NONE, ARG(1), NONE, NONE, NONE, NONE, NONE) \
	CALL(cuLaunchGrid, PLAIN, LAUNCH, NONE, ARG(1), NONE, NONE, NONE, NONE, NONE) \
	CALL(cuLaunchGridAsync, PLAIN, LAUNCH, NONE, ARG(1), NONE, NONE, ARG(4), NONE, NONE)

#define CUDA_DRIVER_ENTRIES(CALL) \
	WITH_PTSZ(CALL, cuEventRecord, PLAIN, EVENT, NONE, ARG(1), NONE, NONE, ARG(2), NONE, NONE) \
	WITH_PTSZ(CALL, cuEventRecordWithFlags, PLAIN, EVENT, NONE, ARG(1), NONE, NONE, ARG(2), NONE, ARG(3)) \
	WITH_PTSZ(CALL, cuStreamWaitEvent, PLAIN, EVENT, NONE, ARG(2), NONE, NONE, ARG(1), NONE, ARG(3)) \
	CALL(cuEventDestroy, PLAIN, EVENT, NONE, ARG(1), NONE, NONE, NONE, NONE, NONE) \
	CALL(cuEventDestroy_v2, PLAIN, EVENT, NONE, ARG(1), NONE, NONE, NONE, NONE, NONE)
/* clang-format on */

#define CUDA_RUNTIME_PAIRS(CALL)  \
	CUDA_RUNTIME_GRAPHS(CALL) \
	CUDA_RUNTIME_COPIES(CALL) \
	CUDA_RUNTIME_MEMORY(CALL) \
	CUDA_RUNTIME_OTHERS(CALL)

#define CUDA_DRIVER_PAIRS(CALL)  \
	CUDA_DRIVER_GRAPHS(CALL) \
	CUDA_DRIVER_COPIES(CALL) \
	CUDA_DRIVER_MEMORY(CALL) \
	CUDA_DRIVER_OTHERS(CALL)

#define CUDA_RUNTIME_CALLS(CALL)    \
	CUDA_RUNTIME_LAUNCHES(CALL) \
	CUDA_RUNTIME_PAIRS(CALL)    \
	CUDA_RUNTIME_ENTRIES(CALL)

#define CUDA_DRIVER_CALLS(CALL)    \
	CUDA_DRIVER_LAUNCHES(CALL) \
	CUDA_DRIVER_PAIRS(CALL)    \
	CUDA_DRIVER_ENTRIES(CALL)

#define CUDA_CALLS(CALL)         \
	CUDA_RUNTIME_CALLS(CALL) \
	CUDA_DRIVER_CALLS(CALL)

#endif
