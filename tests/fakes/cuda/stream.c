/* SPDX-License-Identifier: Apache-2.0 */
/* Streams and events: when the work that was given to a device is done. */
#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "driver.h"

#define STREAMS_MAX 4096
#define EVENTS_MAX  65536
#define NS_PER_S    1000000000LL
#define NS_PER_MS   1e6f

struct CUstream_st {
	CUcontext context;
	CUgraph graph; /* what is captured */
	struct moment busy_until;
	int device;
	unsigned int flags;
	bool in_use, capturing, capture_invalid;
};

struct CUevent_st {
	CUcontext context;
	struct moment time; /* 0: never recorded */
	bool in_use;
};

static struct CUstream_st streams[STREAMS_MAX];
static struct CUevent_st events[EVENTS_MAX];
static struct CUstream_st legacy[DEVICES_MAX];
static struct moment device_busy_until[DEVICES_MAX]; /* the latest of all its streams */
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

static bool has_come(const struct moment *moment)
{
	int64_t ns = moment_ns(moment, false);

	return ns >= 0 && ns <= now_ns();
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

/* To when work that is given to the stream now could begin. With the lock held. */
static void raise_to_start(CUstream stream)
{
	moment_raise_ns(&stream->busy_until, now_ns());
	moment_raise(&stream->busy_until, is_legacy(stream) ? &device_busy_until[stream->device]
							    : &legacy[stream->device].busy_until);
}

/* With the lock held. */
static struct moment append(CUstream stream, int64_t duration_ns)
{
	struct moment start;

	raise_to_start(stream);
	start = stream->busy_until;
	moment_add_ns(&stream->busy_until, duration_ns);
	moment_raise(&device_busy_until[stream->device], &stream->busy_until);
	return start;
}

#ifndef FAKE_STANDALONE
struct pending {
	struct moment start, end;
};

static bool pending_times(void *pending, int64_t *start_ns, int64_t *end_ns)
{
	const struct pending *mine = pending;

	if (start_ns) {
		*start_ns = moment_ns(&mine->start, false);
		*end_ns = moment_ns(&mine->end, false);
		if (*start_ns < 0 || *end_ns < 0)
			return false;
	}
	free(pending);
	return true;
}
#endif

/*
 * What began at `start` and lasts until the stream is free. The fake CUPTI numbers streams from 7, as the
 * real one does: the first that a program makes is 13.
 */
static void report(CUstream stream, const struct moment *start, CUgraphNodeType type,
		   CUfunction function)
{
#ifndef FAKE_STANDALONE
	struct fake_work work = {
		.kind = type == CU_GRAPH_NODE_TYPE_MEMCPY   ? FAKE_WORK_COPY
			: type == CU_GRAPH_NODE_TYPE_MEMSET ? FAKE_WORK_SET
							    : FAKE_WORK_KERNEL,
		.start_ns = start->ns,
		.end_ns = stream->busy_until.ns,
		.device = (uint32_t)stream->device,
		.stream = is_legacy(stream) ? 7 : 13,
		.graph_node = type == CU_GRAPH_NODE_TYPE_GRAPH,
		.name = function ? function_name(function) : "graph",
	};

	if (!fake_cupti_hooks)
		return;
	if (stream->busy_until.count) { /* it waits for a collective, or is one */
		struct pending *pending = malloc(sizeof(*pending));

		if (!pending)
			abort();
		*pending = (struct pending){ *start, stream->busy_until };
		work.times = pending_times;
		work.pending = pending;
	}
	fake_cupti_hooks->work(&work);
#else
	(void)stream, (void)start, (void)type, (void)function;
#endif
}

/* The same for a kernel if it is a collective, whose end is its own affair; false: it is none. */
static bool append_collective(CUstream stream, CUfunction function)
{
	struct moment start;

	if (!moment_hooks())
		return false;
	raise_to_start(stream);
	start = stream->busy_until;
	if (!moment_hooks()->launch(&stream->busy_until))
		return false;
	moment_forget(&device_busy_until[stream->device], &start);
	moment_raise(&device_busy_until[stream->device], &stream->busy_until);
	report(stream, &start, CU_GRAPH_NODE_TYPE_KERNEL, function);
	return true;
}

static CUresult refused(void)
{
	return context_current() ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult stream_enqueue(CUstream handle, int64_t duration_ns, CUgraphNodeType type,
			CUfunction function)
{
	struct moment start;
	CUstream stream;
	LOCKED();

	stream = find(handle);
	if (!stream)
		return refused();
	if (stream->capture_invalid)
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	if (stream->capturing)
		return graph_append(stream->graph, duration_ns, type, function, NULL);
	if (type == CU_GRAPH_NODE_TYPE_KERNEL && append_collective(stream, function))
		return CUDA_SUCCESS;
	start = append(stream, duration_ns);
	if (duration_ns)
		report(stream, &start, type, function);
	return CUDA_SUCCESS;
}

static CUresult end_of_run(CUstream handle, int64_t duration_ns, struct moment *end)
{
	struct moment start;
	CUstream stream;
	LOCKED();

	stream = find(handle);
	if (!stream)
		return refused();
	start = append(stream, duration_ns);
	*end = stream->busy_until;
	if (duration_ns)
		report(stream, &start, CU_GRAPH_NODE_TYPE_MEMCPY,
		       NULL); /* all that is waited for */
	return CUDA_SUCCESS;
}

CUresult stream_run(CUstream handle, int64_t duration_ns)
{
	struct moment end = { 0 };
	CUresult status = end_of_run(handle, duration_ns, &end);

	wait_until(moment_ns(&end, true));
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
static CUresult end_of(CUstream handle, struct moment *end)
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
	*end = is_legacy(stream) ? device_busy_until[stream->device] : stream->busy_until;
	return CUDA_SUCCESS;
}

static CUresult synchronize(CUstream handle)
{
	struct moment end = { 0 };
	CUresult status = end_of(handle, &end);

	wait_until(moment_ns(&end, true));
	return status;
}

static CUresult query(CUstream handle)
{
	struct moment end = { 0 };
	CUresult status = end_of(handle, &end);

	return status || has_come(&end) ? status : CUDA_ERROR_NOT_READY;
}

static struct moment end_of_device(int device)
{
	LOCKED();

	return device_busy_until[device];
}

CUresult device_wait(int device)
{
	const struct moment end = end_of_device(device);

	wait_until(moment_ns(&end, true));
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
	append(stream, 0);
	handle->time = stream->busy_until;
	return CUDA_SUCCESS;
}

static CUresult wait_event(CUstream stream_handle, CUevent handle)
{
	CUstream stream;
	LOCKED();

	stream = find(stream_handle);
	if (!stream || !IS_SLOT(events, handle))
		return CUDA_ERROR_INVALID_HANDLE;
	moment_raise(&stream->busy_until, &handle->time);
	return CUDA_SUCCESS;
}

static CUresult time_of(CUevent handle, struct moment *time)
{
	LOCKED();

	if (!IS_SLOT(events, handle))
		return CUDA_ERROR_INVALID_HANDLE;
	*time = handle->time;
	return CUDA_SUCCESS;
}

static CUresult synchronize_event(CUevent handle)
{
	struct moment time = { 0 };
	CUresult status = time_of(handle, &time);

	wait_until(moment_ns(&time, true));
	return status;
}

static CUresult query_event(CUevent handle)
{
	struct moment time = { 0 };
	CUresult status = time_of(handle, &time);

	return status || has_come(&time) ? status : CUDA_ERROR_NOT_READY;
}

static CUresult elapsed(float *milliseconds, CUevent start, CUevent end)
{
	struct moment started = { 0 }, ended = { 0 };
	CUresult status = time_of(start, &started);
	int64_t start_ns, end_ns;

	if (status == CUDA_SUCCESS)
		status = time_of(end, &ended);
	if (status != CUDA_SUCCESS || !started.ns || !ended.ns)
		return CUDA_ERROR_INVALID_HANDLE;
	start_ns = moment_ns(&started, false);
	end_ns = moment_ns(&ended, false);
	if (start_ns < 0 || end_ns < 0)
		return CUDA_ERROR_NOT_READY;
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
