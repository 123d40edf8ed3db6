/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fake libcupti: records what a subscriber enabled, calls it back with correlation ids, and makes
 * activity records, in the sizes of the release that it plays, of what the fake device did while their
 * kind was enabled. As the real one it hands over at a flush what is complete, and everything at a forced
 * one, with end times of 0 where work had not ended.
 *
 *   FAKE_CUPTI_VERSION         what cuptiGetVersion answers: 28 (CUDA 12.9), 130500, 14 …
 *   FAKE_CUPTI_TAKEN           1: another subscriber was first
 *   FAKE_CUPTI_NO_PERMISSION   1: activities cannot be enabled
 *   FAKE_CUPTI_OWN_CLOCK       1: no timestamp callback is taken
 *   FAKE_CUPTI_OFFSET_NS, FAKE_CUPTI_DRIFT_PPM   its clock against CLOCK_MONOTONIC
 *   FAKE_CUPTI_OWN_IDS         1: a driver call within a runtime call has an id of its own
 *   FAKE_CUPTI_ZERO_EACH=N     each Nth record has no times
 *   FAKE_CUPTI_HANG            1: a flush never returns
 *   FAKE_CUPTI_LEDGER=FILE     at exit one line of JSON: what was enabled, asked and given
 */
#define _GNU_SOURCE
#include "../../../otelgpu/inject/cupti_abi.h"
#include "hooks.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define EXPORTED   __attribute__((visibility("default")))
#define WORK_MAX   65536
#define NESTED_MAX 8
#define KINDS_MAX  64

/* A selection of cupti_runtime_cbid.h and cupti_driver_cbid.h, with their numbers. */
static const struct function {
	int domain;
	uint32_t id;
	const char *name;
} functions[] = {
	{ CUPTI_CB_DOMAIN_RUNTIME_API, 13, "cudaLaunch_v3020" },
	{ CUPTI_CB_DOMAIN_RUNTIME_API, 20, "cudaMalloc_v3020" },
	{ CUPTI_CB_DOMAIN_RUNTIME_API, 31, "cudaMemcpy_v3020" },
	{ CUPTI_CB_DOMAIN_RUNTIME_API, 41, "cudaMemcpyAsync_v3020" },
	{ CUPTI_CB_DOMAIN_RUNTIME_API, 49, "cudaMemset_v3020" },
	{ CUPTI_CB_DOMAIN_RUNTIME_API, 51, "cudaMemsetAsync_v3020" },
	{ CUPTI_CB_DOMAIN_RUNTIME_API, 131, "cudaStreamSynchronize_v3020" },
	{ CUPTI_CB_DOMAIN_RUNTIME_API, 211, "cudaLaunchKernel_v7000" },
	{ CUPTI_CB_DOMAIN_RUNTIME_API, 311, "cudaGraphLaunch_v10000" },
	{ CUPTI_CB_DOMAIN_RUNTIME_API, 430, "cudaLaunchKernelExC_v11060" },
	{ CUPTI_CB_DOMAIN_DRIVER_API, 126, "cuStreamSynchronize" },
	{ CUPTI_CB_DOMAIN_DRIVER_API, 277, "cuMemcpyHtoDAsync_v2" },
	{ CUPTI_CB_DOMAIN_DRIVER_API, 279, "cuMemcpyDtoHAsync_v2" },
	{ CUPTI_CB_DOMAIN_DRIVER_API, 307, "cuLaunchKernel" },
	{ CUPTI_CB_DOMAIN_DRIVER_API, 514, "cuGraphLaunch" },
	{ CUPTI_CB_DOMAIN_DRIVER_API, 652, "cuLaunchKernelEx" },
};
#define FUNCTIONS (sizeof(functions) / sizeof(*functions))
#define LAST_ID	  800

struct queued {
	struct fake_work work;
	uint32_t correlation;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static CUpti_CallbackFunc callback;
static void *callback_data;
static bool subscribed, enabled[FUNCTIONS], ever[FUNCTIONS];
static uint64_t kinds_enabled, kinds_ever;
static CUpti_BuffersCallbackRequestFunc request;
static CUpti_BuffersCallbackCompleteFunc complete;
static CUpti_TimestampCallbackFunc timestamp;
static struct queued queue[WORK_MAX];
static unsigned int queued;
static unsigned long made, dropped, dropped_reported, flushes, enables, attributes[KINDS_MAX];
static uint32_t last_correlation;

static _Thread_local uint32_t correlations[NESTED_MAX];
static _Thread_local unsigned int depth;

static long number(const char *name, long fallback)
{
	const char *text = getenv(name);

	return text && *text ? strtol(text, NULL, 10) : fallback;
}

static int64_t monotonic_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000ll + now.tv_nsec;
}

/* CLOCK_MONOTONIC as this library's clock says it. */
static uint64_t reported(int64_t time_ns)
{
	if (timestamp)
		return (uint64_t)time_ns;
	return (uint64_t)(time_ns + number("FAKE_CUPTI_OFFSET_NS", 0) +
			  time_ns / 1000000 * number("FAKE_CUPTI_DRIFT_PPM", 0));
}

/* --- what the device reports ------------------------------------------------------------------ */

/* cuLaunchKernel_params of generated_cuda_meta.h, of a launch that nobody makes. */
static const struct {
	void *function;
	unsigned int grid[3], block[3], shared;
	void *stream, **parameters, **extra;
} launch = { .grid = { 2, 3, 5 }, .block = { 7, 11, 13 } };

static void call_back(const char *name, int site)
{
	CUpti_CallbackData data = { .callbackSite = site,
				    .functionName = name,
				    .correlationId = correlations[depth - 1] };
	size_t length = strlen(name);

	if (!strcmp(name, "cuLaunchKernel"))
		data.functionParams = &launch;
	for (size_t i = 0; i < FUNCTIONS; i++) {
		const char *full = functions[i].name;

		if (!enabled[i] || strncmp(full, name, length))
			continue;
		if (full[length] == '\0' || !strncmp(full + length, "_v", 2))
			callback(callback_data, functions[i].domain, functions[i].id, &data);
	}
}

static void enter(const char *name)
{
	if (depth == NESTED_MAX)
		abort();
	if (!depth || number("FAKE_CUPTI_OWN_IDS", 0))
		correlations[depth] = __atomic_add_fetch(&last_correlation, 1, __ATOMIC_RELAXED);
	else
		correlations[depth] = correlations[depth - 1];
	depth++;
	call_back(name, CUPTI_API_ENTER);
}

static void leave(const char *name)
{
	call_back(name, CUPTI_API_EXIT);
	depth--;
}

static void work(const struct fake_work *done)
{
	static const int kind_of[] = { 0, CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
				       CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET };

	pthread_mutex_lock(&lock);
	if (kinds_enabled & 1ull << kind_of[done->kind]) {
		if (queued < WORK_MAX)
			queue[queued++] =
				(struct queued){ *done, depth ? correlations[depth - 1] : 0 };
		else
			dropped++;
	} else if (done->pending) {
		done->times(done->pending, NULL, NULL);
	}
	pthread_mutex_unlock(&lock);
}

static const struct fake_cupti_hooks hooks = { enter, leave, work };

static void connect_device(void)
{
	/* The runtime opens the driver with RTLD_LOCAL: it is not among what RTLD_DEFAULT searches. */
	void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
	const struct fake_cupti_hooks **device =
		dlsym(driver ? driver : RTLD_DEFAULT, "fake_cupti_hooks");

	if (device)
		*device = &hooks;
}

/* --- records ---------------------------------------------------------------------------------- */

static size_t record_bytes(uint32_t kind)
{
	long version = number("FAKE_CUPTI_VERSION", 28);
	int column = version >= 130000 ? 2 : version >= 28;
	static const size_t sizes[3][3] = {
		/* CUDA 11.1, 12.9, 13.5 */
		{ 160, 208, 248 }, /* CUpti_ActivityKernel */
		{ 80, 96, 112 },   /* CUpti_ActivityMemcpy */
		{ 80, 88, 104 },   /* CUpti_ActivityMemset */
	};

	switch (kind) {
	case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
		return sizes[0][column];
	case CUPTI_ACTIVITY_KIND_MEMCPY:
		return sizes[1][column];
	default:
		return sizes[2][column];
	}
}

#define FILL(record)                                         \
	do {                                                 \
		(record)->start = start;                     \
		(record)->end = end;                         \
		(record)->deviceId = work->device;           \
		(record)->contextId = 1;                     \
		(record)->streamId = work->stream;           \
		(record)->correlationId = item->correlation; \
		(record)->graphNodeId = work->graph_node;    \
		(record)->graphId = work->graph;             \
	} while (0)

static size_t write_record(uint8_t *into, const struct queued *item, bool ended)
{
	const struct fake_work *work = &item->work;
	long zero_each = number("FAKE_CUPTI_ZERO_EACH", 0);
	bool timeless = zero_each && made % (unsigned long)zero_each == 0;
	uint64_t start = timeless ? 0 : reported(work->start_ns);
	uint64_t end = timeless || !ended ? 0 : reported(work->end_ns);
	uint8_t room[256] = {};
	size_t bytes;

	switch (work->kind) {
	case FAKE_WORK_KERNEL: {
		CUpti_ActivityKernel *kernel = (void *)room;

		kernel->kind = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
		kernel->name = work->name;
		FILL(kernel);
		break;
	}
	case FAKE_WORK_COPY: {
		CUpti_ActivityMemcpy *copy = (void *)room;

		copy->kind = CUPTI_ACTIVITY_KIND_MEMCPY;
		copy->copyKind = (uint8_t)work->detail;
		copy->bytes = work->bytes;
		FILL(copy);
		break;
	}
	case FAKE_WORK_SET: {
		CUpti_ActivityMemset *set = (void *)room;

		set->kind = CUPTI_ACTIVITY_KIND_MEMSET;
		set->value = work->detail;
		set->bytes = work->bytes;
		FILL(set);
		break;
	}
	}
	bytes = record_bytes(((CUpti_Activity *)room)->kind);
	memcpy(into, room, bytes);
	return bytes;
}

/* Hands over what has ended, or all. The queue is not locked while the subscriber is called. */
static void deliver(bool all)
{
	int64_t now_ns = monotonic_ns();
	struct queued *taken;
	unsigned int count = 0, kept = 0;
	uint8_t *buffer = NULL;
	size_t bytes = 0, filled = 0, most = 0;

	taken = malloc(sizeof(queue));
	if (!taken)
		abort();
	pthread_mutex_lock(&lock);
	for (unsigned int i = 0; i < queued; i++) {
		struct fake_work *work = &queue[i].work;

		if (work->pending) {
			if (work->times(work->pending, &work->start_ns, &work->end_ns))
				work->pending = NULL;
			else
				work->end_ns = INT64_MAX;
		}
		if (all || queue[i].work.end_ns <= now_ns)
			taken[count++] = queue[i];
		else
			queue[kept++] = queue[i];
	}
	queued = kept;
	pthread_mutex_unlock(&lock);
	for (unsigned int i = 0; i < count; i++) {
		if (buffer && bytes - filled < sizeof(uint8_t[256])) {
			complete(NULL, 0, buffer, bytes, filled);
			buffer = NULL;
		}
		if (!buffer) {
			request(&buffer, &bytes, &most);
			filled = 0;
		}
		if (!buffer) {
			__atomic_add_fetch(&dropped, 1, __ATOMIC_RELAXED);
			continue;
		}
		made++;
		filled += write_record(buffer + filled, &taken[i], taken[i].work.end_ns <= now_ns);
	}
	if (buffer)
		complete(NULL, 0, buffer, bytes, filled);
	free(taken);
}

/* --- the interface ---------------------------------------------------------------------------- */

EXPORTED CUptiResult cuptiGetVersion(uint32_t *version)
{
	*version = (uint32_t)number("FAKE_CUPTI_VERSION", 28);
	return CUPTI_SUCCESS;
}

EXPORTED CUptiResult cuptiGetTimestamp(uint64_t *time)
{
	*time = timestamp ? timestamp() : reported(monotonic_ns());
	return CUPTI_SUCCESS;
}

EXPORTED CUptiResult cuptiGetCallbackName(int domain, uint32_t id, const char **name)
{
	*name = NULL;
	if (id > LAST_ID)
		return 1; /* CUPTI_ERROR_INVALID_PARAMETER */
	*name = "another";
	for (size_t i = 0; i < FUNCTIONS; i++)
		if (functions[i].domain == domain && functions[i].id == id)
			*name = functions[i].name;
	return CUPTI_SUCCESS;
}

EXPORTED CUptiResult cuptiSubscribe(CUpti_SubscriberHandle *subscriber, CUpti_CallbackFunc function,
				    void *data)
{
	if (subscribed || number("FAKE_CUPTI_TAKEN", 0))
		return CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED;
	subscribed = true;
	callback = function;
	callback_data = data;
	*subscriber = (CUpti_SubscriberHandle)&subscribed;
	connect_device();
	return CUPTI_SUCCESS;
}

EXPORTED CUptiResult cuptiUnsubscribe(CUpti_SubscriberHandle subscriber)
{
	(void)subscriber;
	subscribed = false;
	memset(enabled, 0, sizeof(enabled));
	return CUPTI_SUCCESS;
}

EXPORTED CUptiResult cuptiEnableCallback(uint32_t enable, CUpti_SubscriberHandle subscriber,
					 int domain, uint32_t id)
{
	(void)subscriber;
	for (size_t i = 0; i < FUNCTIONS; i++) {
		if (functions[i].domain != domain || functions[i].id != id)
			continue;
		enabled[i] = enable;
		ever[i] |= enable;
		return CUPTI_SUCCESS;
	}
	return 1;
}

EXPORTED CUptiResult cuptiActivitySetAttribute(int attribute, size_t *bytes, void *value)
{
	if (*bytes != sizeof(size_t) || attribute < 0 || attribute >= KINDS_MAX)
		return 1;
	attributes[attribute] = *(size_t *)value;
	return CUPTI_SUCCESS;
}

EXPORTED CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc requested,
						    CUpti_BuffersCallbackCompleteFunc completed)
{
	request = requested;
	complete = completed;
	return CUPTI_SUCCESS;
}

EXPORTED CUptiResult cuptiActivityRegisterTimestampCallback(CUpti_TimestampCallbackFunc function)
{
	if (number("FAKE_CUPTI_OWN_CLOCK", 0))
		return 27; /* CUPTI_ERROR_NOT_SUPPORTED */
	timestamp = function;
	return CUPTI_SUCCESS;
}

EXPORTED CUptiResult cuptiActivityEnable(int kind)
{
	if (number("FAKE_CUPTI_NO_PERMISSION", 0))
		return CUPTI_ERROR_INSUFFICIENT_PRIVILEGES;
	if (!request || kind < 0 || kind >= KINDS_MAX)
		return 1;
	connect_device(); /* the driver is opened by the first call that needs it */
	pthread_mutex_lock(&lock);
	enables++;
	kinds_enabled |= 1ull << kind;
	kinds_ever |= 1ull << kind;
	pthread_mutex_unlock(&lock);
	return CUPTI_SUCCESS;
}

EXPORTED CUptiResult cuptiActivityDisable(int kind)
{
	pthread_mutex_lock(&lock);
	kinds_enabled &= ~(1ull << kind);
	pthread_mutex_unlock(&lock);
	return CUPTI_SUCCESS;
}

EXPORTED CUptiResult cuptiActivityFlushAll(uint32_t flags)
{
	while (number("FAKE_CUPTI_HANG", 0))
		pause();
	__atomic_add_fetch(&flushes, 1, __ATOMIC_RELAXED);
	deliver(flags & CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
	return CUPTI_SUCCESS;
}

EXPORTED CUptiResult cuptiActivityGetNextRecord(uint8_t *buffer, size_t valid_bytes,
						CUpti_Activity **record)
{
	uint8_t *next = *record ? (uint8_t *)*record + record_bytes((*record)->kind) : buffer;

	if (next >= buffer + valid_bytes)
		return CUPTI_ERROR_MAX_LIMIT_REACHED;
	*record = (CUpti_Activity *)next;
	return CUPTI_SUCCESS;
}

EXPORTED CUptiResult cuptiActivityGetNumDroppedRecords(CUcontext context, uint32_t stream,
						       size_t *count)
{
	(void)context, (void)stream;
	*count = dropped - dropped_reported;
	dropped_reported = dropped;
	return CUPTI_SUCCESS;
}

__attribute__((destructor)) static void report(void)
{
	const char *path = getenv("FAKE_CUPTI_LEDGER"), *comma = "";
	FILE *file = path && *path ? fopen(path, "a") : NULL;

	if (!file)
		return;
	fprintf(file, "{\"pid\": %d, \"subscribed\": %s, \"monotonic\": %s, \"callbacks\": [",
		getpid(), subscribed ? "true" : "false", timestamp ? "true" : "false");
	for (size_t i = 0; i < FUNCTIONS; i++) {
		if (ever[i]) {
			fprintf(file, "%s\"%s\"", comma, functions[i].name);
			comma = ", ";
		}
	}
	fprintf(file, "], \"kinds\": [");
	comma = "";
	for (int kind = 0; kind < KINDS_MAX; kind++) {
		if (kinds_ever & 1ull << kind) {
			fprintf(file, "%s%d", comma, kind);
			comma = ", ";
		}
	}
	fprintf(file,
		"], \"still_enabled\": %d, \"records\": %lu, \"dropped\": %lu, \"flushes\": %lu, "
		"\"enables\": %lu, \"device_buffer\": %lu, \"device_pool\": %lu}\n",
		__builtin_popcountll(kinds_enabled), made, dropped, flushes, enables,
		attributes[CUPTI_ACTIVITY_ATTR_DEVICE_BUFFER_SIZE],
		attributes[CUPTI_ACTIVITY_ATTR_DEVICE_BUFFER_POOL_LIMIT]);
	fclose(file);
}
