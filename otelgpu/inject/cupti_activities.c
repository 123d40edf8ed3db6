/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda/cuda.h"
#include "cupti.h"
#include "cupti_activities.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#define NAMES_MAX      2048 /* distinct kernels of one slice; a power of two */
#define NAME_BYTES_MAX 4096 /* what C++ templates make of a name is cut there */
#define EARLY_NS       1000000000ull
#define LATE_NS	       100000000ull

/* Guards what follows; neither CUPTI nor the ring is called with it held. */
static pthread_mutex_t slice_lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t names[NAMES_MAX]; /* open addressing; 0: free */
static unsigned int names_count;
static struct slice {
	uint64_t began_ns;
	uint32_t sampled; /* share of time, in millionths, before */
} current, before;	  /* work that a slice queued may end in the next */

uint64_t cupti_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

bool clock_pair_read(const struct cupti_library *library, struct clock_pair *pair)
{
	uint64_t narrowest_ns = UINT64_MAX;

	for (int i = 0; i < 5; i++) {
		uint64_t before_ns = cupti_now_ns(), cupti_ns = 0, after_ns;

		if (library->GetTimestamp(&cupti_ns) != CUPTI_SUCCESS || !cupti_ns)
			return false;
		after_ns = cupti_now_ns();
		if (after_ns - before_ns < narrowest_ns) {
			narrowest_ns = after_ns - before_ns;
			pair->cupti_ns = cupti_ns;
			pair->monotonic_ns = before_ns + narrowest_ns / 2;
		}
	}
	return true;
}

uint64_t clock_convert(const struct activity_clock *clock, uint64_t cupti_ns)
{
	const struct clock_pair *from = &clock->first, *to = &clock->last;
	double rate = 1;

	if (clock->monotonic)
		return cupti_ns;
	/* Over less than 10 ms the error of the readings outweighs any drift. */
	if (to->cupti_ns > from->cupti_ns + 10000000u)
		rate = (double)(to->monotonic_ns - from->monotonic_ns) /
		       (double)(to->cupti_ns - from->cupti_ns);
	return to->monotonic_ns +
	       (uint64_t)(int64_t)((double)(int64_t)(cupti_ns - to->cupti_ns) * rate);
}

/* FNV-1a over the name as far as it is reported; never 0. */
static uint64_t hash_of(const char *name, size_t length)
{
	uint64_t hash = 0xcbf29ce484222325u;

	for (size_t i = 0; i < length; i++)
		hash = (hash ^ (unsigned char)name[i]) * 0x100000001b3u;
	return hash ? hash : 1;
}

static bool name_is_new(uint64_t hash)
{
	size_t slot = hash & (NAMES_MAX - 1);
	bool new, full;

	pthread_mutex_lock(&slice_lock);
	while (names[slot] && names[slot] != hash)
		slot = (slot + 1) & (NAMES_MAX - 1);
	full = names_count >= NAMES_MAX * 3 / 4;
	new = !names[slot] && !full;
	if (new) {
		names[slot] = hash;
		names_count++;
	}
	full &= names[slot] != hash;
	pthread_mutex_unlock(&slice_lock);
	if (full)
		inject_count_device_time(CUPTI_COUNT_activity_names_not_sent, 1);
	return new;
}

static void fill_head(struct record_head *head, enum cuda_kind kind, uint64_t start_ns,
		      uint64_t end_ns)
{
	head->time_ns = start_ns;
	head->duration_ns = end_ns - start_ns;
	head->kind = (uint16_t)kind;
	head->returned = 1;
}

void activities_begin_slice(uint64_t began_ns, uint32_t sampled)
{
	struct cuda_activity begun = { .slice_ns = began_ns, .sampled = sampled };

	pthread_mutex_lock(&slice_lock);
	memset(names, 0, sizeof(names));
	names_count = 0;
	before = current;
	current = (struct slice){ .began_ns = began_ns, .sampled = sampled };
	pthread_mutex_unlock(&slice_lock);
	fill_head(&begun.head, CUDA_ACTIVITY, began_ns, began_ns);
	if (!inject_emit(&begun, sizeof(begun)))
		inject_count_device_time(CUPTI_COUNT_activities_not_sent, 1);
}

/* Reports a name, once a slice; the result is what it is called by. */
static uint64_t send_name(const char *name, uint64_t now_ns)
{
	struct cuda_activity_name piece;
	uint64_t hash;
	size_t length;

	if (!name)
		return 0;
	length = strnlen(name, NAME_BYTES_MAX);
	hash = hash_of(name, length);
	if (!name_is_new(hash))
		return hash;
	for (size_t offset = 0; offset < length; offset += sizeof(piece.text)) {
		size_t rest = length - offset;

		memset(&piece, 0, sizeof(piece));
		fill_head(&piece.head, CUDA_ACTIVITY_NAME, now_ns, now_ns);
		piece.name = hash;
		piece.offset = (uint16_t)offset;
		piece.length = (uint16_t)length;
		memcpy(piece.text, name + offset,
		       rest < sizeof(piece.text) ? rest : sizeof(piece.text));
		if (!inject_emit(&piece, sizeof(piece)))
			inject_count_device_time(CUPTI_COUNT_activity_names_not_sent, 1);
	}
	return hash;
}

/* What the records share is copied by name: they keep it at different places. */
#define COPY_COMMON(into, from)                              \
	do {                                                 \
		(into)->graph_node = (from)->graphNodeId;    \
		(into)->correlation = (from)->correlationId; \
		(into)->graph = (from)->graphId;             \
		(into)->stream = (from)->streamId;           \
		(into)->context = (from)->contextId;         \
		(into)->device = (int16_t)(from)->deviceId;  \
		start_ns = (from)->start;                    \
		end_ns = (from)->end;                        \
	} while (0)

static void send(const struct activity_clock *clock, const CUpti_Activity *record, size_t room,
		 uint64_t now_ns)
{
	struct cuda_activity activity = {};
	uint64_t start_ns = 0, end_ns = 0;
	const char *name = NULL;
	struct slice slice;

	switch (record->kind) {
	case CUPTI_ACTIVITY_KIND_KERNEL:
	case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
		const CUpti_ActivityKernel *kernel = (const void *)record;

		if (room < sizeof(*kernel))
			goto cut;
		COPY_COMMON(&activity, kernel);
		activity.work = CUDA_WORK_KERNEL;
		name = kernel->name;
		break;
	}
	case CUPTI_ACTIVITY_KIND_MEMCPY: {
		const CUpti_ActivityMemcpy *copy = (const void *)record;

		if (room < sizeof(*copy))
			goto cut;
		COPY_COMMON(&activity, copy);
		activity.work = CUDA_WORK_COPY;
		activity.bytes = copy->bytes;
		activity.detail = copy->copyKind;
		break;
	}
	case CUPTI_ACTIVITY_KIND_MEMCPY2: {
		const CUpti_ActivityMemcpyPtoP *copy = (const void *)record;

		if (room < sizeof(*copy))
			goto cut;
		COPY_COMMON(&activity, copy);
		activity.work = CUDA_WORK_COPY;
		activity.bytes = copy->bytes;
		activity.detail = copy->copyKind;
		break;
	}
	case CUPTI_ACTIVITY_KIND_MEMSET: {
		const CUpti_ActivityMemset *set = (const void *)record;

		if (room < sizeof(*set))
			goto cut;
		COPY_COMMON(&activity, set);
		activity.work = CUDA_WORK_SET;
		activity.bytes = set->bytes;
		activity.detail = set->value;
		break;
	}
	default:
		inject_count_device_time(CUPTI_COUNT_activities_unknown, 1);
		return;
	}
	if (!start_ns || !end_ns || end_ns < start_ns) {
		inject_count_device_time(CUPTI_COUNT_activities_without_times, 1);
		return;
	}
	start_ns = clock_convert(clock, start_ns);
	end_ns = clock_convert(clock, end_ns);
	pthread_mutex_lock(&slice_lock);
	slice = start_ns < current.began_ns && before.began_ns ? before : current;
	pthread_mutex_unlock(&slice_lock);
	activity.slice_ns = slice.began_ns;
	activity.sampled = slice.sampled;
	if (start_ns + EARLY_NS < activity.slice_ns || end_ns > now_ns + LATE_NS ||
	    end_ns < start_ns) {
		inject_count_device_time(CUPTI_COUNT_activities_out_of_time, 1);
		return;
	}
	activity.name = send_name(name, now_ns);
	fill_head(&activity.head, CUDA_ACTIVITY, start_ns, end_ns);
	if (!inject_emit(&activity, sizeof(activity)))
		inject_count_device_time(CUPTI_COUNT_activities_not_sent, 1);
	return;
cut:
	inject_count_device_time(CUPTI_COUNT_activities_cut, 1);
}

uint64_t activities_send(const struct cupti_library *library, const struct activity_clock *clock,
			 uint8_t *buffer, size_t valid_bytes)
{
	uint64_t now_ns = cupti_now_ns(), sent = 0;
	CUpti_Activity *record = NULL;
	CUptiResult status;

	while ((status = library->ActivityGetNextRecord(buffer, valid_bytes, &record)) ==
	       CUPTI_SUCCESS) {
		size_t offset = (size_t)((uint8_t *)record - buffer);

		if ((uint8_t *)record < buffer || offset >= valid_bytes) {
			status = CUPTI_SUCCESS;
			break;
		}
		send(clock, record, valid_bytes - offset, now_ns);
		sent++;
	}
	if (status != CUPTI_ERROR_MAX_LIMIT_REACHED)
		inject_count_device_time(CUPTI_COUNT_activities_cut, 1);
	return sent;
}
