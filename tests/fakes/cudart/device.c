/* SPDX-License-Identifier: Apache-2.0 */
#include "device.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define STREAMS_MAX    4096
#define EVENTS_MAX     65536
#define GRAPHS_MAX     4096
#define KERNELS_MAX    4096
#define MEMORY_BUCKETS 4096
#define MEMORY_ALIGN   512 /* what cudaMalloc keeps to in practice */
#define NS_PER_S       1000000000LL
#define NS_PER_US      1000.0

/*
 * Device addresses are numbers between these two, given once each and never
 * mapped on x86-64 or arm64 Linux (programs lie below 1 TiB or above 80 TiB,
 * libraries and stacks near 128 TiB), so that a program that follows one
 * stops with SIGSEGV, as with a real one.
 */
#define ADDRESS_FIRST 0x020000000000ULL
#define ADDRESS_LAST  0x400000000000ULL

struct CUstream_st {
	int64_t busy_until_ns;
	int64_t captured_ns; /* duration of the work captured so far */
	bool in_use, capturing, capture_invalid;
};

struct CUevent_st {
	int64_t time_ns; /* 0: never recorded */
	bool in_use;
};

struct CUgraph_st {
	int64_t duration_ns;
	bool in_use;
};

struct CUgraphExec_st {
	int64_t duration_ns;
	bool in_use;
};

struct CUkern_st {
	const void *stub;
};

struct allocation {
	struct allocation *next;
	uint64_t address, bytes;
};

static int64_t kernel_ns = 20000;
static double kernel_ns_per_block; /* 0: every kernel takes kernel_ns */
static double copy_bytes_per_ns = 20;
static uint64_t capacity_bytes = 16ULL << 30;

/* Everything below is guarded by it, and nothing waits while holding it. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct CUstream_st streams[STREAMS_MAX];
static struct CUevent_st events[EVENTS_MAX];
static struct CUgraph_st graphs[GRAPHS_MAX];
static struct CUgraphExec_st executables[GRAPHS_MAX];
static struct CUkern_st kernels[KERNELS_MAX];
static struct allocation *memory[MEMORY_BUCKETS];
static struct CUstream_st legacy_stream = { .in_use = true };
static int64_t device_busy_until_ns; /* the latest of all streams */
static uint64_t next_address = ADDRESS_FIRST, allocated_bytes;
static _Thread_local struct CUstream_st thread_stream = { .in_use = true };

/*
 * Takes a free slot of `pool`, or gives NULL. Slots are reused in turn, so
 * that a handle that was just destroyed is not given out again at once.
 */
#define TAKE_SLOT(pool)                                                                   \
	({                                                                                \
		static size_t next_slot;                                                  \
		__typeof__(&(pool)[0]) slot = NULL;                                       \
		for (size_t tried = 0; tried < sizeof(pool) / sizeof((pool)[0]) && !slot; \
		     tried++) {                                                           \
			if (!(pool)[next_slot].in_use)                                    \
				slot = &(pool)[next_slot];                                \
			next_slot = (next_slot + 1) % (sizeof(pool) / sizeof((pool)[0])); \
		}                                                                         \
		if (slot)                                                                 \
			*slot = (__typeof__(*slot)){ .in_use = true };                    \
		slot;                                                                     \
	})

/* A handle is good when it is the address of a slot in use; a bad one is never followed. */
#define IS_SLOT(pool, handle)                                      \
	((uintptr_t)(handle) >= (uintptr_t)(pool) &&               \
	 (uintptr_t)(handle) < (uintptr_t)(pool) + sizeof(pool) && \
	 ((uintptr_t)(handle) - (uintptr_t)(pool)) % sizeof((pool)[0]) == 0 && (handle)->in_use)

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

/* A setting that is a number of at least `least`; `fallback` when it is not set. */
static double setting(const char *name, double fallback, double least)
{
	const char *text = getenv(name);
	char *end = NULL;
	double value;

	if (!text || !*text)
		return fallback;
	value = strtod(text, &end);
	if (*end == '\0' && value >= least && value <= 1e18)
		return value;
	fprintf(stderr, "libcudart stand-in: %s='%s' is not a number of at least %g\n", name, text,
		least);
	_exit(2);
}

void device_configure(void)
{
	kernel_ns = (int64_t)(setting("FAKE_CUDART_KERNEL_US", (double)kernel_ns / NS_PER_US, 0) *
			      NS_PER_US);
	kernel_ns_per_block = setting("FAKE_CUDART_KERNEL_US_PER_BLOCK", 0, 0) * NS_PER_US;
	/* GB/s is bytes per ns. */
	copy_bytes_per_ns = setting("FAKE_CUDART_COPY_GB_PER_S", copy_bytes_per_ns, 1e-6);
	capacity_bytes = (uint64_t)setting("FAKE_CUDART_MEMORY_BYTES", (double)capacity_bytes, 0);
}

void device_reset_lock(void)
{
	pthread_mutex_init(&lock, NULL);
}

int64_t device_kernel_ns(uint64_t blocks)
{
	return kernel_ns_per_block > 0 ? (int64_t)(kernel_ns_per_block * (double)blocks)
				       : kernel_ns;
}

int64_t device_copy_ns(uint64_t bytes)
{
	return (int64_t)((double)bytes / copy_bytes_per_ns);
}

/* The stream behind a handle, NULL for a bad one. With the lock held. */
static struct CUstream_st *find_stream(cudaStream_t handle)
{
	if (handle == NULL || handle == cudaStreamLegacy)
		return &legacy_stream;
	if (handle == cudaStreamPerThread)
		return &thread_stream;
	return IS_SLOT(streams, handle) ? handle : NULL;
}

/* With the lock held. The result is when the work ends. */
static int64_t append(struct CUstream_st *stream, int64_t duration_ns)
{
	int64_t start_ns = later(now_ns(), stream->busy_until_ns);

	start_ns = later(start_ns, stream == &legacy_stream ? device_busy_until_ns
							    : legacy_stream.busy_until_ns);
	stream->busy_until_ns = start_ns + duration_ns;
	device_busy_until_ns = later(device_busy_until_ns, stream->busy_until_ns);
	return stream->busy_until_ns;
}

cudaError_t device_enqueue(cudaStream_t handle, int64_t duration_ns)
{
	cudaError_t status = cudaSuccess;
	struct CUstream_st *stream;

	pthread_mutex_lock(&lock);
	stream = find_stream(handle);
	if (!stream)
		status = cudaErrorInvalidResourceHandle;
	else if (stream->capture_invalid)
		status = cudaErrorStreamCaptureInvalidated;
	else if (stream->capturing)
		stream->captured_ns += duration_ns;
	else
		append(stream, duration_ns);
	pthread_mutex_unlock(&lock);
	return status;
}

cudaError_t device_run(int64_t duration_ns)
{
	int64_t end_ns;

	pthread_mutex_lock(&lock);
	end_ns = append(&legacy_stream, duration_ns);
	pthread_mutex_unlock(&lock);
	wait_until(end_ns);
	return cudaSuccess;
}

cudaError_t device_stream_create(cudaStream_t *handle)
{
	pthread_mutex_lock(&lock);
	*handle = TAKE_SLOT(streams);
	pthread_mutex_unlock(&lock);
	return *handle ? cudaSuccess : cudaErrorMemoryAllocation;
}

/* As on a real device it returns at once, and the work that was queued is still done. */
cudaError_t device_stream_destroy(cudaStream_t handle)
{
	cudaError_t status = cudaErrorInvalidResourceHandle;

	pthread_mutex_lock(&lock);
	if (IS_SLOT(streams, handle)) {
		handle->in_use = false;
		status = cudaSuccess;
	}
	pthread_mutex_unlock(&lock);
	return status;
}

cudaError_t device_stream_wait(cudaStream_t handle)
{
	cudaError_t status = cudaSuccess;
	struct CUstream_st *stream;
	int64_t end_ns = 0;

	pthread_mutex_lock(&lock);
	stream = find_stream(handle);
	if (!stream) {
		status = cudaErrorInvalidResourceHandle;
	} else if (stream->capturing) {
		stream->capture_invalid = true;
		status = cudaErrorStreamCaptureUnsupported;
	} else {
		end_ns = stream == &legacy_stream ? device_busy_until_ns : stream->busy_until_ns;
	}
	pthread_mutex_unlock(&lock);
	wait_until(end_ns);
	return status;
}

cudaError_t device_wait(void)
{
	int64_t end_ns;

	pthread_mutex_lock(&lock);
	end_ns = device_busy_until_ns;
	pthread_mutex_unlock(&lock);
	wait_until(end_ns);
	return cudaSuccess;
}

cudaError_t device_event_create(cudaEvent_t *handle)
{
	pthread_mutex_lock(&lock);
	*handle = TAKE_SLOT(events);
	pthread_mutex_unlock(&lock);
	return *handle ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t device_event_destroy(cudaEvent_t handle)
{
	cudaError_t status = cudaErrorInvalidResourceHandle;

	pthread_mutex_lock(&lock);
	if (IS_SLOT(events, handle)) {
		handle->in_use = false;
		status = cudaSuccess;
	}
	pthread_mutex_unlock(&lock);
	return status;
}

cudaError_t device_event_record(cudaEvent_t handle, cudaStream_t stream_handle)
{
	cudaError_t status = cudaErrorInvalidResourceHandle;
	struct CUstream_st *stream;

	pthread_mutex_lock(&lock);
	stream = find_stream(stream_handle);
	if (stream && IS_SLOT(events, handle)) {
		handle->time_ns = append(stream, 0);
		status = cudaSuccess;
	}
	pthread_mutex_unlock(&lock);
	return status;
}

cudaError_t device_event_wait(cudaEvent_t handle)
{
	cudaError_t status = cudaErrorInvalidResourceHandle;
	int64_t end_ns = 0;

	pthread_mutex_lock(&lock);
	if (IS_SLOT(events, handle)) {
		end_ns = handle->time_ns;
		status = cudaSuccess;
	}
	pthread_mutex_unlock(&lock);
	wait_until(end_ns);
	return status;
}

cudaError_t device_capture_begin(cudaStream_t handle)
{
	cudaError_t status = cudaSuccess;
	struct CUstream_st *stream;

	pthread_mutex_lock(&lock);
	stream = find_stream(handle);
	if (!stream) {
		status = cudaErrorInvalidResourceHandle;
	} else if (stream == &legacy_stream) {
		status = cudaErrorStreamCaptureUnsupported;
	} else if (stream->capturing) {
		status = cudaErrorIllegalState;
	} else {
		stream->capturing = true;
		stream->capture_invalid = false;
		stream->captured_ns = 0;
	}
	pthread_mutex_unlock(&lock);
	return status;
}

cudaError_t device_capture_end(cudaStream_t handle, cudaGraph_t *graph)
{
	cudaError_t status = cudaSuccess;
	struct CUstream_st *stream;

	*graph = NULL;
	pthread_mutex_lock(&lock);
	stream = find_stream(handle);
	if (!stream) {
		status = cudaErrorInvalidResourceHandle;
	} else if (!stream->capturing) {
		status = cudaErrorIllegalState;
	} else if (stream->capture_invalid) {
		status = cudaErrorStreamCaptureInvalidated;
	} else {
		*graph = TAKE_SLOT(graphs);
		if (*graph)
			(*graph)->duration_ns = stream->captured_ns;
		else
			status = cudaErrorMemoryAllocation;
	}
	if (stream)
		stream->capturing = stream->capture_invalid = false;
	pthread_mutex_unlock(&lock);
	return status;
}

cudaError_t device_graph_instantiate(cudaGraphExec_t *executable, cudaGraph_t graph)
{
	cudaError_t status = cudaErrorInvalidValue;

	*executable = NULL;
	pthread_mutex_lock(&lock);
	if (IS_SLOT(graphs, graph)) {
		*executable = TAKE_SLOT(executables);
		status = *executable ? cudaSuccess : cudaErrorMemoryAllocation;
		if (*executable)
			(*executable)->duration_ns = graph->duration_ns;
	}
	pthread_mutex_unlock(&lock);
	return status;
}

cudaError_t device_graph_launch(cudaGraphExec_t executable, cudaStream_t stream)
{
	int64_t duration_ns = -1;

	pthread_mutex_lock(&lock);
	if (IS_SLOT(executables, executable))
		duration_ns = executable->duration_ns;
	pthread_mutex_unlock(&lock);
	return duration_ns < 0 ? cudaErrorInvalidValue : device_enqueue(stream, duration_ns);
}

cudaError_t device_graph_destroy(cudaGraph_t graph)
{
	cudaError_t status = cudaErrorInvalidValue;

	pthread_mutex_lock(&lock);
	if (IS_SLOT(graphs, graph)) {
		graph->in_use = false;
		status = cudaSuccess;
	}
	pthread_mutex_unlock(&lock);
	return status;
}

cudaError_t device_executable_destroy(cudaGraphExec_t executable)
{
	cudaError_t status = cudaErrorInvalidValue;

	pthread_mutex_lock(&lock);
	if (IS_SLOT(executables, executable)) {
		executable->in_use = false;
		status = cudaSuccess;
	}
	pthread_mutex_unlock(&lock);
	return status;
}

static struct allocation **bucket(uint64_t address)
{
	return &memory[address / MEMORY_ALIGN * 2654435761ULL % MEMORY_BUCKETS];
}

cudaError_t device_allocate(void **pointer, uint64_t bytes)
{
	struct allocation *allocation = malloc(sizeof(*allocation));
	cudaError_t status = cudaErrorMemoryAllocation;

	*pointer = NULL;
	if (!allocation)
		return status;
	pthread_mutex_lock(&lock);
	if (bytes <= capacity_bytes - allocated_bytes &&
	    bytes <= ADDRESS_LAST - next_address - MEMORY_ALIGN) {
		struct allocation **head = bucket(next_address);

		*allocation = (struct allocation){ .next = *head,
						   .address = next_address,
						   .bytes = bytes };
		*head = allocation;
		allocated_bytes += bytes;
		next_address += (bytes + MEMORY_ALIGN - 1) / MEMORY_ALIGN * MEMORY_ALIGN;
		*pointer = (void *)(uintptr_t)allocation->address;
		status = cudaSuccess;
	}
	pthread_mutex_unlock(&lock);
	if (status != cudaSuccess)
		free(allocation);
	return status;
}

cudaError_t device_release(const void *pointer)
{
	uint64_t address = (uintptr_t)pointer;
	struct allocation *found;

	pthread_mutex_lock(&lock);
	for (struct allocation **link = bucket(address);; link = &(*link)->next) {
		found = *link;
		if (!found)
			break;
		if (found->address == address) {
			*link = found->next;
			allocated_bytes -= found->bytes;
			break;
		}
	}
	pthread_mutex_unlock(&lock);
	if (!found)
		return cudaErrorInvalidValue;
	free(found);
	return cudaSuccess;
}

int device_owns(const void *pointer)
{
	return (uintptr_t)pointer >= ADDRESS_FIRST && (uintptr_t)pointer < ADDRESS_LAST;
}

cudaKernel_t device_kernel(const void *stub)
{
	cudaKernel_t found = NULL;

	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < KERNELS_MAX && !found; i++) {
		if (!kernels[i].stub)
			kernels[i].stub = stub;
		if (kernels[i].stub == stub)
			found = &kernels[i];
	}
	pthread_mutex_unlock(&lock);
	return found;
}
