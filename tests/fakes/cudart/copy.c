/* SPDX-License-Identifier: Apache-2.0 */
/* Copies and sets. */
#include "runtime.h"

#include <stdint.h>

static CUdeviceptr address_of(const void *pointer)
{
	return (uintptr_t)pointer;
}

static cudaError_t check(const void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
	if ((unsigned int)kind > cudaMemcpyDefault)
		return cudaErrorInvalidMemcpyDirection;
	return bytes && (!to || !from) ? cudaErrorInvalidValue : cudaSuccess;
}

static CUresult enqueue(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
			cudaStream_t stream)
{
	switch (kind) {
	case cudaMemcpyHostToDevice:
		return driver.cuMemcpyHtoDAsync_v2(address_of(to), from, bytes, stream);
	case cudaMemcpyDeviceToHost:
		return driver.cuMemcpyDtoHAsync_v2(to, address_of(from), bytes, stream);
	case cudaMemcpyDeviceToDevice:
		return driver.cuMemcpyDtoDAsync_v2(address_of(to), address_of(from), bytes, stream);
	default:
		return driver.cuMemcpyAsync(address_of(to), address_of(from), bytes, stream);
	}
}

static CUresult run(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
	switch (kind) {
	case cudaMemcpyHostToDevice:
		return driver.cuMemcpyHtoD_v2(address_of(to), from, bytes);
	case cudaMemcpyDeviceToHost:
		return driver.cuMemcpyDtoH_v2(to, address_of(from), bytes);
	case cudaMemcpyDeviceToDevice:
		return driver.cuMemcpyDtoD_v2(address_of(to), address_of(from), bytes);
	default:
		return driver.cuMemcpy(address_of(to), address_of(from), bytes);
	}
}

static cudaError_t copy_later(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
			      cudaStream_t stream)
{
	cudaError_t status = check(to, from, bytes, kind);

	return status ? status : of_driver(enqueue(to, from, bytes, kind, stream));
}

/* On another stream than the default one: queued, and waited for. */
static cudaError_t copy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
			cudaStream_t stream)
{
	cudaError_t status = check(to, from, bytes, kind);

	if (status != cudaSuccess)
		return status;
	if (!stream)
		return of_driver(run(to, from, bytes, kind));
	status = of_driver(enqueue(to, from, bytes, kind, stream));
	return status ? status : of_driver(driver.cuStreamSynchronize(stream));
}

static cudaError_t copy_rows(void *to, size_t to_pitch, const void *from, size_t from_pitch,
			     size_t width, size_t height, enum cudaMemcpyKind kind,
			     cudaStream_t stream, bool wait)
{
	CUDA_MEMCPY2D rows = {
		.srcMemoryType = CU_MEMORYTYPE_UNIFIED,
		.srcDevice = address_of(from),
		.srcPitch = from_pitch,
		.dstMemoryType = CU_MEMORYTYPE_UNIFIED,
		.dstDevice = address_of(to),
		.dstPitch = to_pitch,
		.WidthInBytes = width,
		.Height = height,
	};
	cudaError_t status = check(to, from, width, kind);

	if (status != cudaSuccess)
		return status;
	return of_driver(wait ? driver.cuMemcpy2DUnaligned_v2(&rows)
			      : driver.cuMemcpy2DAsync_v2(&rows, stream));
}

static cudaError_t copy_box(const struct cudaMemcpy3DParms *box, cudaStream_t stream, bool wait)
{
	CUDA_MEMCPY3D same;

	if (!box)
		return cudaErrorInvalidValue;
	same = (CUDA_MEMCPY3D){
		.srcMemoryType = CU_MEMORYTYPE_UNIFIED,
		.srcDevice = address_of(box->srcPtr.ptr),
		.srcPitch = box->srcPtr.pitch,
		.dstMemoryType = CU_MEMORYTYPE_UNIFIED,
		.dstDevice = address_of(box->dstPtr.ptr),
		.dstPitch = box->dstPtr.pitch,
		.WidthInBytes = box->extent.width,
		.Height = box->extent.height,
		.Depth = box->extent.depth,
	};
	return of_driver(wait ? driver.cuMemcpy3D_v2(&same)
			      : driver.cuMemcpy3DAsync_v2(&same, stream));
}

static cudaError_t copy_peer(void *to, int to_device, const void *from, int from_device,
			     size_t bytes, cudaStream_t stream, bool wait)
{
	CUcontext to_context, from_context;
	cudaError_t status = runtime_primary(to_device, &to_context);

	if (status == cudaSuccess)
		status = runtime_primary(from_device, &from_context);
	if (status != cudaSuccess)
		return status;
	return of_driver(wait ? driver.cuMemcpyPeer(address_of(to), to_context, address_of(from),
						    from_context, bytes)
			      : driver.cuMemcpyPeerAsync(address_of(to), to_context,
							 address_of(from), from_context, bytes,
							 stream));
}

static cudaError_t copy_batch(void **to, void **from, size_t *sizes, size_t count, size_t *failed,
			      cudaStream_t stream)
{
	return of_driver(driver.cuMemcpyBatchAsync((CUdeviceptr *)to, (CUdeviceptr *)from, sizes,
						   count, NULL, NULL, 0, failed, stream));
}

/* A variable's address in the program stands for the one on the device. */
static const char *inside(const void *symbol, size_t offset)
{
	return symbol ? (const char *)symbol + offset : NULL;
}

static cudaError_t set(void *to, int value, size_t bytes, cudaStream_t stream, bool wait)
{
	if (!wait || stream)
		return of_driver(driver.cuMemsetD8Async(address_of(to), (unsigned char)value, bytes,
							stream));
	return of_driver(driver.cuMemsetD8_v2(address_of(to), (unsigned char)value, bytes));
}

static cudaError_t set_rows(void *to, size_t pitch, int value, size_t width, size_t height,
			    cudaStream_t stream, bool wait)
{
	if (!wait || stream)
		return of_driver(driver.cuMemsetD2D8Async(
			address_of(to), pitch, (unsigned char)value, width, height, stream));
	return of_driver(
		driver.cuMemsetD2D8_v2(address_of(to), pitch, (unsigned char)value, width, height));
}

API_PTDS(cudaMemcpy, (void *dst, const void *src, size_t count, enum cudaMemcpyKind kind),
	 copy(dst, src, count, kind, stream))
API_PTSZ(cudaMemcpyAsync,
	 (void *dst, const void *src, size_t count, enum cudaMemcpyKind kind, cudaStream_t stream),
	 copy_later(dst, src, count, kind, stream))
API_PTDS(cudaMemcpy2D,
	 (void *dst, size_t dpitch, const void *src, size_t spitch, size_t width, size_t height,
	  enum cudaMemcpyKind kind),
	 copy_rows(dst, dpitch, src, spitch, width, height, kind, stream, true))
API_PTSZ(cudaMemcpy2DAsync,
	 (void *dst, size_t dpitch, const void *src, size_t spitch, size_t width, size_t height,
	  enum cudaMemcpyKind kind, cudaStream_t stream),
	 copy_rows(dst, dpitch, src, spitch, width, height, kind, stream, false))
API_PTDS(cudaMemcpy3D, (const struct cudaMemcpy3DParms *p), copy_box(p, stream, true))
API_PTSZ(cudaMemcpy3DAsync, (const struct cudaMemcpy3DParms *p, cudaStream_t stream),
	 copy_box(p, stream, false))
API(cudaMemcpyPeer, (void *dst, int dstDevice, const void *src, int srcDevice, size_t count),
    copy_peer(dst, dstDevice, src, srcDevice, count, NULL, true))
API(cudaMemcpyPeerAsync,
    (void *dst, int dstDevice, const void *src, int srcDevice, size_t count, cudaStream_t stream),
    copy_peer(dst, dstDevice, src, srcDevice, count, stream, false))
API_PTSZ(cudaMemcpyBatchAsync,
	 (void **dsts, void **srcs, size_t *sizes, size_t count, struct cudaMemcpyAttributes *attrs,
	  size_t *attrsIdxs, size_t numAttrs, size_t *failIdx, cudaStream_t stream),
	 ((void)attrs, (void)attrsIdxs, (void)numAttrs,
	  copy_batch(dsts, srcs, sizes, count, failIdx, stream)))
API_PTDS(cudaMemcpyToSymbol,
	 (const void *symbol, const void *src, size_t count, size_t offset,
	  enum cudaMemcpyKind kind),
	 copy((void *)inside(symbol, offset), src, count, kind, stream))
API_PTDS(cudaMemcpyFromSymbol,
	 (void *dst, const void *symbol, size_t count, size_t offset, enum cudaMemcpyKind kind),
	 copy(dst, inside(symbol, offset), count, kind, stream))
API_PTSZ(cudaMemcpyToSymbolAsync,
	 (const void *symbol, const void *src, size_t count, size_t offset,
	  enum cudaMemcpyKind kind, cudaStream_t stream),
	 copy_later((void *)inside(symbol, offset), src, count, kind, stream))
API_PTSZ(cudaMemcpyFromSymbolAsync,
	 (void *dst, const void *symbol, size_t count, size_t offset, enum cudaMemcpyKind kind,
	  cudaStream_t stream),
	 copy_later(dst, inside(symbol, offset), count, kind, stream))
API_PTDS(cudaMemset, (void *devPtr, int value, size_t count),
	 set(devPtr, value, count, stream, true))
API_PTSZ(cudaMemsetAsync, (void *devPtr, int value, size_t count, cudaStream_t stream),
	 set(devPtr, value, count, stream, false))
API_PTDS(cudaMemset2D, (void *devPtr, size_t pitch, int value, size_t width, size_t height),
	 set_rows(devPtr, pitch, value, width, height, stream, true))
API_PTSZ(cudaMemset2DAsync,
	 (void *devPtr, size_t pitch, int value, size_t width, size_t height, cudaStream_t stream),
	 set_rows(devPtr, pitch, value, width, height, stream, false))
API_PTDS(cudaMemset3D, (struct cudaPitchedPtr pitchedDevPtr, int value, struct cudaExtent extent),
	 set_rows(pitchedDevPtr.ptr, pitchedDevPtr.pitch, value, extent.width,
		  extent.height *extent.depth, stream, true))
API_PTSZ(cudaMemset3DAsync,
	 (struct cudaPitchedPtr pitchedDevPtr, int value, struct cudaExtent extent,
	  cudaStream_t stream),
	 set_rows(pitchedDevPtr.ptr, pitchedDevPtr.pitch, value, extent.width,
		  extent.height *extent.depth, stream, false))
