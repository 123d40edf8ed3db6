/* SPDX-License-Identifier: Apache-2.0 */
/* Streams and events: when the work that was given to a device is done. */
#include <errno.h>
#include <time.h>

#include "driver.h"

#define STREAMS_MAX 4096
#define EVENTS_MAX  65536
#define NS_PER_S    1000000000LL
#define NS_PER_MS   1e6f

struct CUstream_st {
	CUcontext context;
	CUgraph graph; /* what is captured */
	int64_t busy_until_ns;
	int device;
	unsigned int flags;
	bool in_use, capturing, capture_invalid;
};

struct CUevent_st {
	CUcontext context;
	int64_t time_ns; /* 0: never recorded */
	bool in_use;
};

static struct CUstream_st streams[STREAMS_MAX];
static struct CUevent_st events[EVENTS_MAX];
static struct CUstream_st legacy[DEVICES_MAX];
static int64_t device_busy_until_ns[DEVICES_MAX]; /* the latest of all its streams */
static _Thread_local struct CUstream_st of_thread[DEVICES_MAX];

static int64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * NS_PER_S + now.tv_nsec;
}

static void wait_until(int64_t deadline_ns)
{
	struct timespec deadline = { .tv_sec = deadline_ns / NS_PER_S,
				     .tv_nsec = deadline_ns % NS_PER_S };

	if (deadline_ns <= now_ns())
		return;
	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &deadline, NULL) == EINTR)
		;
}

static int64_t later(int64_t a, int64_t b)
{
	return a > b ? a : b;
}

/* The stream behind a handle, NULL for a bad one. With the lock held. */
static CUstream find(CUstream handle)
{
	int device = context_device();
	CUstream stream;

	if (handle && handle != CU_STREAM_LEGACY && handle != CU_STREAM_PER_THREAD)
		return IS_SLOT(streams, handle) ? handle : NULL;
	if (device < 0) /* the thread has no context */
		return NULL;
	stream = handle == CU_STREAM_PER_THREAD ? &of_thread[device] : &legacy[device];
	stream->device = device;
	return stream;
}

static bool is_legacy(CUstream stream)
{
	return stream == &legacy[stream->device];
}

/* With the lock held. The result is when the work ends. */
static int64_t append(CUstream stream, int64_t duration_ns)
{
	int64_t *device_until_ns = &device_busy_until_ns[stream->device];
	int64_t start_ns = later(now_ns(), stream->busy_until_ns);

	start_ns = later(start_ns, is_legacy(stream) ? *device_until_ns
						     : legacy[stream->device].busy_until_ns);
	stream->busy_until_ns = start_ns + duration_ns;
	*device_until_ns = later(*device_until_ns, stream->busy_until_ns);
	return stream->busy_until_ns;
}

/* The stand-in CUPTI numbers streams from 7, as the real one does: the first that a program makes is 13. */
static void tell(CUstream stream, int64_t duration_ns, CUgraphNodeType type, CUfunction function)
{
#ifndef FAKE_STANDALONE
	struct fake_work work = {
		.kind = type == CU_GRAPH_NODE_TYPE_MEMCPY   ? FAKE_WORK_COPY
			: type == CU_GRAPH_NODE_TYPE_MEMSET ? FAKE_WORK_SET
							    : FAKE_WORK_KERNEL,
		.start_ns = stream->busy_until_ns - duration_ns,
		.end_ns = stream->busy_until_ns,
		.device = (uint32_t)stream->device,
		.stream = is_legacy(stream) ? 7 : 13,
		.graph_node = type == CU_GRAPH_NODE_TYPE_GRAPH,
		.name = function ? function_name(function) : "graph",
	};

	if (fake_cupti_hooks && duration_ns)
		fake_cupti_hooks->work(&work);
#else
	(void)stream, (void)duration_ns, (void)type, (void)function;
#endif
}

static CUresult refused(void)
{
	return context_current() ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult stream_enqueue(CUstream handle, int64_t duration_ns, CUgraphNodeType type,
			CUfunction function)
{
	CUstream stream;
	LOCKED();

	stream = find(handle);
	if (!stream)
		return refused();
	if (stream->capture_invalid)
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	if (stream->capturing)
		return graph_append(stream->graph, duration_ns, type, function, NULL);
	append(stream, duration_ns);
	tell(stream, duration_ns, type, function);
	return CUDA_SUCCESS;
}

static CUresult end_of_run(CUstream handle, int64_t duration_ns, int64_t *end_ns)
{
	CUstream stream;
	LOCKED();

	stream = find(handle);
	if (!stream)
		return refused();
	*end_ns = append(stream, duration_ns);
	tell(stream, duration_ns, CU_GRAPH_NODE_TYPE_MEMCPY, NULL); /* all that is waited for */
	return CUDA_SUCCESS;
}

CUresult stream_run(CUstream handle, int64_t duration_ns)
{
	int64_t end_ns = 0;
	CUresult status = end_of_run(handle, duration_ns, &end_ns);

	wait_until(end_ns);
	return status;
}

static CUresult create(CUstream *handle, unsigned int flags)
{
	LOCKED();

	if (!handle || flags > CU_STREAM_NON_BLOCKING)
		return CUDA_ERROR_INVALID_VALUE;
	if (!context_current())
		return CUDA_ERROR_INVALID_CONTEXT;
	*handle = TAKE_SLOT(streams);
	if (!*handle)
		return CUDA_ERROR_OUT_OF_MEMORY;
	(*handle)->context = context_current();
	(*handle)->device = context_device();
	(*handle)->flags = flags;
	return CUDA_SUCCESS;
}

/* As on a real device it returns at once, and the work that was queued is still done. */
static CUresult destroy(CUstream handle)
{
	LOCKED();

	if (!IS_SLOT(streams, handle))
		return CUDA_ERROR_INVALID_HANDLE;
	handle->in_use = false;
	return CUDA_SUCCESS;
}

/* When all that was queued is done. A capturing stream cannot be asked: the capture is lost. */
static CUresult end_of(CUstream handle, int64_t *end_ns)
{
	CUstream stream;
	LOCKED();

	stream = find(handle);
	if (!stream)
		return refused();
	if (stream->capturing) {
		stream->capture_invalid = true;
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	}
	*end_ns = is_legacy(stream) ? device_busy_until_ns[stream->device] : stream->busy_until_ns;
	return CUDA_SUCCESS;
}

static CUresult synchronize(CUstream handle)
{
	int64_t end_ns = 0;
	CUresult status = end_of(handle, &end_ns);

	wait_until(end_ns);
	return status;
}

static CUresult query(CUstream handle)
{
	int64_t end_ns = 0;
	CUresult status = end_of(handle, &end_ns);

	return status || end_ns <= now_ns() ? status : CUDA_ERROR_NOT_READY;
}

static int64_t end_of_device(int device)
{
	LOCKED();

	return device_busy_until_ns[device];
}

CUresult device_wait(int device)
{
	wait_until(end_of_device(device));
	return CUDA_SUCCESS;
}

void streams_of_context_end(CUcontext context)
{
	for (size_t i = 0; i < STREAMS_MAX; i++)
		if (streams[i].context == context)
			streams[i].in_use = false;
	for (size_t i = 0; i < EVENTS_MAX; i++)
		if (events[i].context == context)
			events[i].in_use = false;
}

static CUresult create_event(CUevent *handle)
{
	LOCKED();

	if (!handle)
		return CUDA_ERROR_INVALID_VALUE;
	if (!context_current())
		return CUDA_ERROR_INVALID_CONTEXT;
	*handle = TAKE_SLOT(events);
	if (!*handle)
		return CUDA_ERROR_OUT_OF_MEMORY;
	(*handle)->context = context_current();
	return CUDA_SUCCESS;
}

static CUresult destroy_event(CUevent handle)
{
	LOCKED();

	if (!IS_SLOT(events, handle))
		return CUDA_ERROR_INVALID_HANDLE;
	handle->in_use = false;
	return CUDA_SUCCESS;
}

static CUresult record(CUevent handle, CUstream stream_handle)
{
	CUstream stream;
	LOCKED();

	stream = find(stream_handle);
	if (!stream || !IS_SLOT(events, handle))
		return CUDA_ERROR_INVALID_HANDLE;
	if (stream->capturing)
		return graph_append(stream->graph, 0, CU_GRAPH_NODE_TYPE_EVENT_RECORD, NULL, NULL);
	handle->time_ns = append(stream, 0);
	return CUDA_SUCCESS;
}

static CUresult wait_event(CUstream stream_handle, CUevent handle)
{
	CUstream stream;
	LOCKED();

	stream = find(stream_handle);
	if (!stream || !IS_SLOT(events, handle))
		return CUDA_ERROR_INVALID_HANDLE;
	stream->busy_until_ns = later(stream->busy_until_ns, handle->time_ns);
	return CUDA_SUCCESS;
}

static CUresult time_of(CUevent handle, int64_t *time_ns)
{
	LOCKED();

	if (!IS_SLOT(events, handle))
		return CUDA_ERROR_INVALID_HANDLE;
	*time_ns = handle->time_ns;
	return CUDA_SUCCESS;
}

static CUresult synchronize_event(CUevent handle)
{
	int64_t time_ns = 0;
	CUresult status = time_of(handle, &time_ns);

	wait_until(time_ns);
	return status;
}

static CUresult query_event(CUevent handle)
{
	int64_t time_ns = 0;
	CUresult status = time_of(handle, &time_ns);

	return status || time_ns <= now_ns() ? status : CUDA_ERROR_NOT_READY;
}

static CUresult elapsed(float *milliseconds, CUevent start, CUevent end)
{
	int64_t start_ns = 0, end_ns = 0;
	CUresult status = time_of(start, &start_ns);

	if (status == CUDA_SUCCESS)
		status = time_of(end, &end_ns);
	if (status != CUDA_SUCCESS || !start_ns || !end_ns)
		return CUDA_ERROR_INVALID_HANDLE;
	*milliseconds = (float)(end_ns - start_ns) / NS_PER_MS;
	return end_ns <= now_ns() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

static CUresult begin_capture(CUstream handle, CUstreamCaptureMode mode)
{
	CUstream stream;
	LOCKED();

	if ((unsigned int)mode > CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_ERROR_INVALID_VALUE;
	stream = find(handle);
	if (!stream)
		return refused();
	if (is_legacy(stream))
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	if (stream->capturing)
		return CUDA_ERROR_ILLEGAL_STATE;
	stream->graph = graph_new();
	if (!stream->graph)
		return CUDA_ERROR_OUT_OF_MEMORY;
	stream->capturing = true;
	stream->capture_invalid = false;
	return CUDA_SUCCESS;
}

static CUresult end_capture(CUstream handle, CUgraph *graph)
{
	CUstream stream;
	LOCKED();

	if (!graph)
		return CUDA_ERROR_INVALID_VALUE;
	*graph = NULL;
	stream = find(handle);
	if (!stream)
		return refused();
	if (!stream->capturing)
		return CUDA_ERROR_ILLEGAL_STATE;
	stream->capturing = false;
	if (stream->capture_invalid) {
		stream->capture_invalid = false;
		graph_discard(stream->graph);
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	}
	*graph = stream->graph;
	return CUDA_SUCCESS;
}

static CUresult capture_status(CUstream handle, CUstreamCaptureStatus *status, CUgraph *graph)
{
	CUstream stream;
	LOCKED();

	stream = find(handle);
	if (!stream)
		return refused();
	if (!status)
		return CUDA_ERROR_INVALID_VALUE;
	*status = stream->capture_invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
		  : stream->capturing	  ? CU_STREAM_CAPTURE_STATUS_ACTIVE
					  : CU_STREAM_CAPTURE_STATUS_NONE;
	if (graph)
		*graph = stream->capturing ? stream->graph : NULL;
	return CUDA_SUCCESS;
}

static CUresult run_on_host(CUstream stream, CUhostFn function, void *argument)
{
	CUresult status = stream_enqueue(stream, 0, CU_GRAPH_NODE_TYPE_HOST, NULL);
	CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;

	if (status == CUDA_SUCCESS)
		status = capture_status(stream, &capture, NULL);
	if (status == CUDA_SUCCESS && capture == CU_STREAM_CAPTURE_STATUS_NONE)
		function(argument);
	return status;
}

API(cuStreamCreate, (CUstream * phStream, unsigned int Flags), create(phStream, Flags))
API(cuStreamCreateWithPriority, (CUstream * phStream, unsigned int flags, int priority),
    ((void)priority, create(phStream, flags)))
API(cuStreamDestroy_v2, (CUstream hStream), destroy(hStream))
API_PTSZ(cuStreamSynchronize, (CUstream hStream), synchronize(hStream))
API_PTSZ(cuStreamQuery, (CUstream hStream), query(hStream))
API_PTSZ(cuStreamWaitEvent, (CUstream hStream, CUevent hEvent, unsigned int Flags),
	 Flags > 1 ? CUDA_ERROR_INVALID_VALUE : wait_event(hStream, hEvent))
API_PTSZ(cuLaunchHostFunc, (CUstream hStream, CUhostFn fn, void *userData),
	 fn ? run_on_host(hStream, fn, userData) : CUDA_ERROR_INVALID_VALUE)
API(cuEventCreate, (CUevent * phEvent, unsigned int Flags), ((void)Flags, create_event(phEvent)))
API(cuEventDestroy_v2, (CUevent hEvent), destroy_event(hEvent))
API_PTSZ(cuEventRecord, (CUevent hEvent, CUstream hStream), record(hEvent, hStream))
API_PTSZ(cuEventRecordWithFlags, (CUevent hEvent, CUstream hStream, unsigned int flags),
	 flags > 1 ? CUDA_ERROR_INVALID_VALUE : record(hEvent, hStream))
API(cuEventQuery, (CUevent hEvent), query_event(hEvent))
API(cuEventSynchronize, (CUevent hEvent), synchronize_event(hEvent))
API(cuEventElapsedTime, (float *pMilliseconds, CUevent hStart, CUevent hEnd),
    elapsed(pMilliseconds, hStart, hEnd))
API(cuEventElapsedTime_v2, (float *pMilliseconds, CUevent hStart, CUevent hEnd),
    elapsed(pMilliseconds, hStart, hEnd))
API_PTSZ(cuStreamBeginCapture_v2, (CUstream hStream, CUstreamCaptureMode mode),
	 begin_capture(hStream, mode))
API_PTSZ(cuStreamEndCapture, (CUstream hStream, CUgraph *phGraph), end_capture(hStream, phGraph))
API_PTSZ(cuStreamIsCapturing, (CUstream hStream, CUstreamCaptureStatus *captureStatus),
	 capture_status(hStream, captureStatus, NULL))
