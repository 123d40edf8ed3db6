/* SPDX-License-Identifier: Apache-2.0 */
/* Copies to and from arrays, and between devices as boxes: what an address does not report. */
#include "runtime.h"

#include <stdint.h>

_Static_assert(sizeof(struct cudaMemcpy3DBatchOp) == sizeof(CUDA_MEMCPY3D_BATCH_OP),
	       "the same bytes");

static cudaError_t copy(const void *to, const void *from, size_t width, size_t height,
			enum cudaMemcpyKind kind, cudaStream_t stream, bool wait)
{
	CUDA_MEMCPY2D rows = { .WidthInBytes = width, .Height = height };

	if ((unsigned int)kind > cudaMemcpyDefault)
		return cudaErrorInvalidMemcpyDirection;
	if (!to || !from)
		return cudaErrorInvalidValue;
	return of_driver(wait ? driver.cuMemcpy2DUnaligned_v2(&rows)
			      : driver.cuMemcpy2DAsync_v2(&rows, stream));
}

static cudaError_t copy_peer(const struct cudaMemcpy3DPeerParms *box, cudaStream_t stream,
			     bool wait)
{
	CUDA_MEMCPY3D_PEER same;

	if (!box)
		return cudaErrorInvalidValue;
	same = (CUDA_MEMCPY3D_PEER){
		.WidthInBytes = box->extent.width,
		.Height = box->extent.height,
		.Depth = box->extent.depth,
	};
	return of_driver(wait ? driver.cuMemcpy3DPeer(&same)
			      : driver.cuMemcpy3DPeerAsync(&same, stream));
}

API_PTDS(cudaMemcpyToArray,
	 (cudaArray_t dst, size_t wOffset, size_t hOffset, const void *src, size_t count,
	  enum cudaMemcpyKind kind),
	 ((void)wOffset, (void)hOffset, copy(dst, src, count, 1, kind, stream, true)))
API_PTSZ(cudaMemcpyToArrayAsync,
	 (cudaArray_t dst, size_t wOffset, size_t hOffset, const void *src, size_t count,
	  enum cudaMemcpyKind kind, cudaStream_t stream),
	 ((void)wOffset, (void)hOffset, copy(dst, src, count, 1, kind, stream, false)))
API_PTDS(cudaMemcpyFromArray,
	 (void *dst, cudaArray_const_t src, size_t wOffset, size_t hOffset, size_t count,
	  enum cudaMemcpyKind kind),
	 ((void)wOffset, (void)hOffset, copy(dst, src, count, 1, kind, stream, true)))
API_PTSZ(cudaMemcpyFromArrayAsync,
	 (void *dst, cudaArray_const_t src, size_t wOffset, size_t hOffset, size_t count,
	  enum cudaMemcpyKind kind, cudaStream_t stream),
	 ((void)wOffset, (void)hOffset, copy(dst, src, count, 1, kind, stream, false)))
API_PTDS(cudaMemcpyArrayToArray,
	 (cudaArray_t dst, size_t wOffsetDst, size_t hOffsetDst, cudaArray_const_t src,
	  size_t wOffsetSrc, size_t hOffsetSrc, size_t count, enum cudaMemcpyKind kind),
	 ((void)wOffsetDst, (void)hOffsetDst, (void)wOffsetSrc, (void)hOffsetSrc,
	  copy(dst, src, count, 1, kind, stream, true)))
API_PTDS(cudaMemcpy2DToArray,
	 (cudaArray_t dst, size_t wOffset, size_t hOffset, const void *src, size_t spitch,
	  size_t width, size_t height, enum cudaMemcpyKind kind),
	 ((void)wOffset, (void)hOffset, (void)spitch,
	  copy(dst, src, width, height, kind, stream, true)))
API_PTSZ(cudaMemcpy2DToArrayAsync,
	 (cudaArray_t dst, size_t wOffset, size_t hOffset, const void *src, size_t spitch,
	  size_t width, size_t height, enum cudaMemcpyKind kind, cudaStream_t stream),
	 ((void)wOffset, (void)hOffset, (void)spitch,
	  copy(dst, src, width, height, kind, stream, false)))
API_PTDS(cudaMemcpy2DFromArray,
	 (void *dst, size_t dpitch, cudaArray_const_t src, size_t wOffset, size_t hOffset,
	  size_t width, size_t height, enum cudaMemcpyKind kind),
	 ((void)wOffset, (void)hOffset, (void)dpitch,
	  copy(dst, src, width, height, kind, stream, true)))
API_PTSZ(cudaMemcpy2DFromArrayAsync,
	 (void *dst, size_t dpitch, cudaArray_const_t src, size_t wOffset, size_t hOffset,
	  size_t width, size_t height, enum cudaMemcpyKind kind, cudaStream_t stream),
	 ((void)wOffset, (void)hOffset, (void)dpitch,
	  copy(dst, src, width, height, kind, stream, false)))
API_PTDS(cudaMemcpy2DArrayToArray,
	 (cudaArray_t dst, size_t wOffsetDst, size_t hOffsetDst, cudaArray_const_t src,
	  size_t wOffsetSrc, size_t hOffsetSrc, size_t width, size_t height,
	  enum cudaMemcpyKind kind),
	 ((void)wOffsetDst, (void)hOffsetDst, (void)wOffsetSrc, (void)hOffsetSrc,
	  copy(dst, src, width, height, kind, stream, true)))
API_PTDS(cudaMemcpy3DPeer, (const struct cudaMemcpy3DPeerParms *p), copy_peer(p, stream, true))
API_PTSZ(cudaMemcpy3DPeerAsync, (const struct cudaMemcpy3DPeerParms *p, cudaStream_t stream),
	 copy_peer(p, stream, false))
API_PTSZ(cudaMemcpy3DBatchAsync,
	 (size_t numOps, struct cudaMemcpy3DBatchOp *opList, size_t *failIdx,
	  unsigned long long flags, cudaStream_t stream),
	 of_driver(driver.cuMemcpy3DBatchAsync(numOps, (CUDA_MEMCPY3D_BATCH_OP *)opList, failIdx,
					       flags, stream)))
