/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies and sets. They take their bytes over the bandwidth of the device; only cuMemcpy and cuMemcpyAsync
 * really copy, where both ends are host memory.
 */
#include <string.h>

#include "driver.h"

static CUresult transfer(uint64_t bytes, CUstream stream, CUgraphNodeType type, bool wait)
{
	return wait ? stream_run(stream, copy_duration_ns(bytes))
		    : stream_enqueue(stream, copy_duration_ns(bytes), type, NULL);
}

static CUresult copy(uint64_t destination, uint64_t source, size_t bytes, CUstream stream,
		     bool wait)
{
	if (!context_current())
		return CUDA_ERROR_INVALID_CONTEXT;
	if (bytes && (!destination || !source))
		return CUDA_ERROR_INVALID_VALUE;
	return !bytes && wait ? CUDA_SUCCESS
			      : transfer(bytes, stream, CU_GRAPH_NODE_TYPE_MEMCPY, wait);
}

/* From any address to any. */
static CUresult copy_unified(uint64_t destination, uint64_t source, size_t bytes, CUstream stream,
			     bool wait)
{
	void *to = (void *)(uintptr_t)destination;
	const void *from = (const void *)(uintptr_t)source;

	if (to && from && !arena_owns(to) && !arena_owns(from))
		memmove(to, from, bytes);
	return copy(destination, source, bytes, stream, wait);
}

/* Between places that an address does not report: arrays, rows, boxes. */
static CUresult copy_box(uint64_t width, uint64_t height, uint64_t depth, CUstream stream,
			 bool wait)
{
	return transfer(width * height * depth, stream, CU_GRAPH_NODE_TYPE_MEMCPY, wait);
}

static CUresult copy_batch(const size_t *sizes, size_t count, CUstream stream)
{
	uint64_t bytes = 0;

	if (!sizes || !count || !stream || stream == CU_STREAM_LEGACY)
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < count; i++)
		bytes += sizes[i];
	return transfer(bytes, stream, CU_GRAPH_NODE_TYPE_MEMCPY, false);
}

static CUresult copy_boxes(const CUDA_MEMCPY3D_BATCH_OP *boxes, size_t count, CUstream stream)
{
	uint64_t bytes = 0;

	if (!boxes || !count || !stream || stream == CU_STREAM_LEGACY)
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < count; i++)
		bytes += boxes[i].extent.width * boxes[i].extent.height * boxes[i].extent.depth;
	return transfer(bytes, stream, CU_GRAPH_NODE_TYPE_MEMCPY, false);
}

/* Sets do not wait for the device, not even those without "Async". */
static CUresult set(CUdeviceptr destination, uint64_t bytes, CUstream stream)
{
	if (!context_current())
		return CUDA_ERROR_INVALID_CONTEXT;
	if (bytes && !destination)
		return CUDA_ERROR_INVALID_VALUE;
	return transfer(bytes, stream, CU_GRAPH_NODE_TYPE_MEMSET, false);
}

static uint64_t address_of(const void *pointer)
{
	return (uintptr_t)pointer;
}
API_PTDS(cuMemcpy, (CUdeviceptr dst, CUdeviceptr src, size_t ByteCount),
	 copy_unified(dst, src, ByteCount, hStream, true))
API_PTSZ(cuMemcpyAsync, (CUdeviceptr dst, CUdeviceptr src, size_t ByteCount, CUstream hStream),
	 copy_unified(dst, src, ByteCount, hStream, false))
API_PTDS(cuMemcpyHtoD_v2, (CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount),
	 copy(dstDevice, address_of(srcHost), ByteCount, hStream, true))
API_PTSZ(cuMemcpyHtoDAsync_v2,
	 (CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount, CUstream hStream),
	 copy(dstDevice, address_of(srcHost), ByteCount, hStream, false))
API_PTDS(cuMemcpyDtoH_v2, (void *dstHost, CUdeviceptr srcDevice, size_t ByteCount),
	 copy(address_of(dstHost), srcDevice, ByteCount, hStream, true))
API_PTSZ(cuMemcpyDtoHAsync_v2,
	 (void *dstHost, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream),
	 copy(address_of(dstHost), srcDevice, ByteCount, hStream, false))
API_PTDS(cuMemcpyDtoD_v2, (CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount),
	 copy(dstDevice, srcDevice, ByteCount, hStream, true))
API_PTSZ(cuMemcpyDtoDAsync_v2,
	 (CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream),
	 copy(dstDevice, srcDevice, ByteCount, hStream, false))
API_PTDS(cuMemcpyPeer,
	 (CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice, CUcontext srcContext,
	  size_t ByteCount),
	 ((void)dstContext, (void)srcContext, copy(dstDevice, srcDevice, ByteCount, hStream, true)))
API_PTSZ(cuMemcpyPeerAsync,
	 (CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice, CUcontext srcContext,
	  size_t ByteCount, CUstream hStream),
	 ((void)dstContext, (void)srcContext,
	  copy(dstDevice, srcDevice, ByteCount, hStream, false)))
API_PTDS(cuMemcpyAtoA_v2,
	 (CUarray dstArray, size_t dstOffset, CUarray srcArray, size_t srcOffset, size_t ByteCount),
	 ((void)dstArray, (void)dstOffset, (void)srcArray, (void)srcOffset,
	  copy_box(ByteCount, 1, 1, hStream, true)))
API_PTDS(cuMemcpyDtoA_v2,
	 (CUarray dstArray, size_t dstOffset, CUdeviceptr srcDevice, size_t ByteCount),
	 ((void)dstArray, (void)dstOffset, (void)srcDevice,
	  copy_box(ByteCount, 1, 1, hStream, true)))
API_PTDS(cuMemcpyAtoD_v2,
	 (CUdeviceptr dstDevice, CUarray srcArray, size_t srcOffset, size_t ByteCount),
	 ((void)dstDevice, (void)srcArray, (void)srcOffset,
	  copy_box(ByteCount, 1, 1, hStream, true)))
API_PTDS(cuMemcpyHtoA_v2,
	 (CUarray dstArray, size_t dstOffset, const void *srcHost, size_t ByteCount),
	 ((void)dstArray, (void)dstOffset, (void)srcHost, copy_box(ByteCount, 1, 1, hStream, true)))
API_PTSZ(cuMemcpyHtoAAsync_v2,
	 (CUarray dstArray, size_t dstOffset, const void *srcHost, size_t ByteCount,
	  CUstream hStream),
	 ((void)dstArray, (void)dstOffset, (void)srcHost,
	  copy_box(ByteCount, 1, 1, hStream, false)))
API_PTDS(cuMemcpyAtoH_v2, (void *dstHost, CUarray srcArray, size_t srcOffset, size_t ByteCount),
	 ((void)dstHost, (void)srcArray, (void)srcOffset, copy_box(ByteCount, 1, 1, hStream, true)))
API_PTSZ(cuMemcpyAtoHAsync_v2,
	 (void *dstHost, CUarray srcArray, size_t srcOffset, size_t ByteCount, CUstream hStream),
	 ((void)dstHost, (void)srcArray, (void)srcOffset,
	  copy_box(ByteCount, 1, 1, hStream, false)))
API_PTDS(cuMemcpy2D_v2, (const CUDA_MEMCPY2D *pCopy),
	 pCopy ? copy_box(pCopy->WidthInBytes, pCopy->Height, 1, hStream, true)
	       : CUDA_ERROR_INVALID_VALUE)
API_PTSZ(cuMemcpy2DAsync_v2, (const CUDA_MEMCPY2D *pCopy, CUstream hStream),
	 pCopy ? copy_box(pCopy->WidthInBytes, pCopy->Height, 1, hStream, false)
	       : CUDA_ERROR_INVALID_VALUE)
API_PTDS(cuMemcpy2DUnaligned_v2, (const CUDA_MEMCPY2D *pCopy),
	 pCopy ? copy_box(pCopy->WidthInBytes, pCopy->Height, 1, hStream, true)
	       : CUDA_ERROR_INVALID_VALUE)
API_PTDS(cuMemcpy3D_v2, (const CUDA_MEMCPY3D *pCopy),
	 pCopy ? copy_box(pCopy->WidthInBytes, pCopy->Height, pCopy->Depth, hStream, true)
	       : CUDA_ERROR_INVALID_VALUE)
API_PTSZ(cuMemcpy3DAsync_v2, (const CUDA_MEMCPY3D *pCopy, CUstream hStream),
	 pCopy ? copy_box(pCopy->WidthInBytes, pCopy->Height, pCopy->Depth, hStream, false)
	       : CUDA_ERROR_INVALID_VALUE)
API_PTDS(cuMemcpy3DPeer, (const CUDA_MEMCPY3D_PEER *pCopy),
	 pCopy ? copy_box(pCopy->WidthInBytes, pCopy->Height, pCopy->Depth, hStream, true)
	       : CUDA_ERROR_INVALID_VALUE)
API_PTSZ(cuMemcpy3DPeerAsync, (const CUDA_MEMCPY3D_PEER *pCopy, CUstream hStream),
	 pCopy ? copy_box(pCopy->WidthInBytes, pCopy->Height, pCopy->Depth, hStream, false)
	       : CUDA_ERROR_INVALID_VALUE)
API_PTSZ(cuMemcpyBatchAsync,
	 (CUdeviceptr * dsts, CUdeviceptr *srcs, size_t *sizes, size_t count,
	  CUmemcpyAttributes *attrs, size_t *attrsIdxs, size_t numAttrs, size_t *failIdx,
	  CUstream hStream),
	 ((void)dsts, (void)srcs, (void)attrs, (void)attrsIdxs, (void)numAttrs, (void)failIdx,
	  copy_batch(sizes, count, hStream)))
API_PTSZ(cuMemcpy3DBatchAsync,
	 (size_t numOps, CUDA_MEMCPY3D_BATCH_OP *opList, size_t *failIdx, unsigned long long flags,
	  CUstream hStream),
	 ((void)failIdx, (void)flags, copy_boxes(opList, numOps, hStream)))
API_PTDS(cuMemsetD8_v2, (CUdeviceptr dstDevice, unsigned char uc, size_t N),
	 ((void)uc, set(dstDevice, N, hStream)))
API_PTSZ(cuMemsetD8Async, (CUdeviceptr dstDevice, unsigned char uc, size_t N, CUstream hStream),
	 ((void)uc, set(dstDevice, N, hStream)))
API_PTDS(cuMemsetD2D8_v2,
	 (CUdeviceptr dstDevice, size_t dstPitch, unsigned char uc, size_t Width, size_t Height),
	 ((void)dstPitch, (void)uc, set(dstDevice, Width *Height, hStream)))
API_PTSZ(cuMemsetD2D8Async,
	 (CUdeviceptr dstDevice, size_t dstPitch, unsigned char uc, size_t Width, size_t Height,
	  CUstream hStream),
	 ((void)dstPitch, (void)uc, set(dstDevice, Width *Height, hStream)))
API_PTDS(cuMemsetD16_v2, (CUdeviceptr dstDevice, unsigned short us, size_t N),
	 ((void)us, set(dstDevice, N * 2, hStream)))
API_PTSZ(cuMemsetD16Async, (CUdeviceptr dstDevice, unsigned short us, size_t N, CUstream hStream),
	 ((void)us, set(dstDevice, N * 2, hStream)))
API_PTDS(cuMemsetD2D16_v2,
	 (CUdeviceptr dstDevice, size_t dstPitch, unsigned short us, size_t Width, size_t Height),
	 ((void)dstPitch, (void)us, set(dstDevice, Width *Height * 2, hStream)))
API_PTSZ(cuMemsetD2D16Async,
	 (CUdeviceptr dstDevice, size_t dstPitch, unsigned short us, size_t Width, size_t Height,
	  CUstream hStream),
	 ((void)dstPitch, (void)us, set(dstDevice, Width *Height * 2, hStream)))
API_PTDS(cuMemsetD32_v2, (CUdeviceptr dstDevice, unsigned int ui, size_t N),
	 ((void)ui, set(dstDevice, N * 4, hStream)))
API_PTSZ(cuMemsetD32Async, (CUdeviceptr dstDevice, unsigned int ui, size_t N, CUstream hStream),
	 ((void)ui, set(dstDevice, N * 4, hStream)))
API_PTDS(cuMemsetD2D32_v2,
	 (CUdeviceptr dstDevice, size_t dstPitch, unsigned int ui, size_t Width, size_t Height),
	 ((void)dstPitch, (void)ui, set(dstDevice, Width *Height * 4, hStream)))
API_PTSZ(cuMemsetD2D32Async,
	 (CUdeviceptr dstDevice, size_t dstPitch, unsigned int ui, size_t Width, size_t Height,
	  CUstream hStream),
	 ((void)dstPitch, (void)ui, set(dstDevice, Width *Height * 4, hStream)))
