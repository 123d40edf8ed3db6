/* SPDX-License-Identifier: Apache-2.0 */
/* Streams and events: the driver's, under the runtime's names. */
#include "runtime.h"

API(cudaStreamCreate, (cudaStream_t * pStream), of_driver(driver.cuStreamCreate(pStream, 0)))
API(cudaStreamCreateWithFlags, (cudaStream_t * pStream, unsigned int flags),
    of_driver(driver.cuStreamCreate(pStream, flags)))
API(cudaStreamCreateWithPriority, (cudaStream_t * pStream, unsigned int flags, int priority),
    of_driver(driver.cuStreamCreateWithPriority(pStream, flags, priority)))
API(cudaStreamDestroy, (cudaStream_t stream), of_driver(driver.cuStreamDestroy_v2(stream)))
API_PTSZ(cudaStreamSynchronize, (cudaStream_t stream),
	 of_driver(driver.cuStreamSynchronize(stream)))
API_PTSZ(cudaStreamQuery, (cudaStream_t stream), of_driver(driver.cuStreamQuery(stream)))
API_PTSZ(cudaStreamWaitEvent, (cudaStream_t stream, cudaEvent_t event, unsigned int flags),
	 of_driver(driver.cuStreamWaitEvent(stream, event, flags)))
API_PTSZ(cudaStreamBeginCapture, (cudaStream_t stream, enum cudaStreamCaptureMode mode),
	 of_driver(driver.cuStreamBeginCapture_v2(stream, (CUstreamCaptureMode)mode)))
API_PTSZ(cudaStreamEndCapture, (cudaStream_t stream, cudaGraph_t *pGraph),
	 of_driver(driver.cuStreamEndCapture(stream, pGraph)))
API_PTSZ(cudaStreamIsCapturing, (cudaStream_t stream, enum cudaStreamCaptureStatus *pCaptureStatus),
	 of_driver(driver.cuStreamIsCapturing(stream, (CUstreamCaptureStatus *)pCaptureStatus)))
API(cudaEventCreate, (cudaEvent_t * event), of_driver(driver.cuEventCreate(event, 0)))
API(cudaEventCreateWithFlags, (cudaEvent_t * event, unsigned int flags),
    of_driver(driver.cuEventCreate(event, flags)))
API(cudaEventDestroy, (cudaEvent_t event), of_driver(driver.cuEventDestroy_v2(event)))
API_PTSZ(cudaEventRecord, (cudaEvent_t event, cudaStream_t stream),
	 of_driver(driver.cuEventRecord(event, stream)))
API_PTSZ(cudaEventRecordWithFlags, (cudaEvent_t event, cudaStream_t stream, unsigned int flags),
	 of_driver(driver.cuEventRecordWithFlags(event, stream, flags)))
API(cudaEventQuery, (cudaEvent_t event), of_driver(driver.cuEventQuery(event)))
API(cudaEventSynchronize, (cudaEvent_t event), of_driver(driver.cuEventSynchronize(event)))
API(cudaEventElapsedTime, (float *ms, cudaEvent_t start, cudaEvent_t end),
    of_driver(driver.cuEventElapsedTime(ms, start, end)))
