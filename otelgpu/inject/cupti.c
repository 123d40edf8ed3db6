/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CUPTI's life in the observed process: subscribed before CUDA is initialised, measuring in slices,
 * flushed by a thread of ours, ended before the process does.
 *
 * How a call is joined to what the device did: CUPTI calls back on the thread that makes the call, inside
 * it, with the correlation id that the activities will carry. (The other way, external correlation ids, is
 * two calls into CUPTI for each of CUDA's and one more record in its buffers for each, 24 bytes beside
 * the kernel's 248: docs/reference/cupti.md has the figures.)
 *
 * No C++ is here, so that no exception of ours runs through libcupti; one of CUDA's passes.
 */
#include "cuda/cuda.h"
#include "cupti.h"
#include "cupti_activities.h"
#include "cupti_callbacks.h"
#include "cupti_slices.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define MS_NS	     1000000u
#define BUFFER_BYTES (1u << 20) /* CUPTI advises 1 to 10 MiB */
#define BUFFERS_MAX  32
#define MEMORY_MIB   8	  /* default: activity buffers in host memory */
#define PER_SECOND   2000 /* default: at the 25 µs that users of profilers report, 5 % of a core */
#define DEVICE_POOL \
	32 /* buffers of BUFFER_BYTES in each context's device memory; CUPTI: 250 of 3 */
#define FLUSH_MS 100
#define DRAIN_NS (2000u * MS_NS) /* work that was queued in a slice is waited for so long */
#define EXIT_MS	 500

enum { STATE_NEW, STATE_STARTING, STATE_RUNNING, STATE_STOPPING, STATE_ENDED };

_Atomic uint32_t cupti_active;

static _Atomic int state;
static struct cupti_library cupti;
static CUpti_SubscriberHandle subscriber;
static uint32_t version;

static const int kinds[] = {
	CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
	CUPTI_ACTIVITY_KIND_MEMCPY,
	CUPTI_ACTIVITY_KIND_MEMCPY2,
	CUPTI_ACTIVITY_KIND_MEMSET,
};
#define KINDS (sizeof(kinds) / sizeof(*kinds))

/* --- the schedule: guarded by `deciding`, which no call ever waits for ---------------------- */

static atomic_flag deciding = ATOMIC_FLAG_INIT;
static struct slices slices;
static _Atomic uint64_t calls, activities; /* of the slice; taken over by who decides */
static _Atomic uint64_t decide_ns;	   /* nothing to decide before */
static _Atomic bool launched;		   /* launched: some thread has, ever */
static bool ending;			   /* cupti_stop() will be called */

/* --- a thread of the program ----------------------------------------------------------------- */

static _Thread_local struct {
	uint32_t outer, inner; /* correlation ids seen in the call under way */
	bool launched;	       /* since it last waited for the device */
	bool inside;	       /* CUPTI itself is being called */
	uint32_t slice;	       /* live: of the call under way, which began in it */
	int domain;
	uint32_t id;
	struct reported_call call;
} thread;

/* --- the flushing thread --------------------------------------------------------------------- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of this block */
static pthread_cond_t wake = PTHREAD_COND_INITIALIZER, done = PTHREAD_COND_INITIALIZER;
static struct activity_clock clocks;
static bool monotonic;		/* CUPTI takes its times from cupti_now_ns() */
static uint64_t drain_until_ns; /* 0: nothing is to come */
static bool stop_asked, stopped;

/* --- a process that the library came into late -------------------------------------------------- */

static bool live;
static _Atomic uint32_t calling_back; /* threads that are in a callback */
static _Atomic uint32_t slice;	      /* begun so far */

/* --- activity buffers ------------------------------------------------------------------------- */

static uint8_t *buffers; /* one block, so that what comes back can be checked */
static uint32_t buffers_count;
static _Atomic uint32_t buffers_taken; /* a bit each */

static void give_up(enum cupti_counter reason)
{
	atomic_store(&cupti_active, 0);
	atomic_store(&state, STATE_ENDED);
	inject_count_device_time(reason, 1);
}

static void buffer_requested(uint8_t **buffer, size_t *bytes, size_t *records_max)
{
	uint32_t taken = atomic_load(&buffers_taken);

	*buffer = NULL; /* CUPTI then drops records, and counts them */
	*bytes = 0;
	*records_max = 0;
	while (~taken & (uint32_t)((1ull << buffers_count) - 1)) {
		uint32_t free = (uint32_t)__builtin_ctz(~taken);

		if (atomic_compare_exchange_weak(&buffers_taken, &taken, taken | 1u << free)) {
			*buffer = buffers + (size_t)free * BUFFER_BYTES;
			*bytes = BUFFER_BYTES;
			return;
		}
	}
	inject_count_device_time(CUPTI_COUNT_activity_buffers_short, 1);
}

/* CUPTI is never called with our lock held: it calls us with its own. */
static struct activity_clock read_clock(void)
{
	struct clock_pair pair;
	struct activity_clock clock;
	bool reported = !monotonic && clock_pair_read(&cupti, &pair);

	pthread_mutex_lock(&lock);
	if (reported)
		clocks.last = pair;
	clock = clocks;
	pthread_mutex_unlock(&lock);
	return clock;
}

static void buffer_completed(CUcontext context, uint32_t stream, uint8_t *buffer, size_t bytes,
			     size_t valid_bytes)
{
	size_t offset = (size_t)(buffer - buffers), dropped = 0;

	if (buffer < buffers || offset >= (size_t)buffers_count * BUFFER_BYTES)
		return; /* NULL, as it was given */
	if (valid_bytes > bytes || bytes > BUFFER_BYTES)
		valid_bytes = 0;
	if (valid_bytes && atomic_load(&state) != STATE_ENDED) {
		struct activity_clock clock = read_clock();

		atomic_fetch_add(&activities, activities_send(&cupti, &clock, buffer, valid_bytes));
	}
	if (cupti.ActivityGetNumDroppedRecords(context, stream, &dropped) == CUPTI_SUCCESS &&
	    dropped)
		inject_count_device_time(CUPTI_COUNT_activities_dropped, dropped);
	atomic_fetch_and(&buffers_taken, ~(1u << offset / BUFFER_BYTES));
}

static void note(const CUpti_CallbackData *call)
{
	if (!thread.outer)
		thread.outer = call->correlationId;
	else if (!thread.inner && call->correlationId != thread.outer)
		thread.inner = call->correlationId;
}

/* A function of CUDA begins or ends on this thread. */
static void called_back(void *userdata, int domain, uint32_t id, const void *data)
{
	const CUpti_CallbackData *call = data;

	(void)userdata, (void)domain, (void)id;
	if (call && call->callbackSite == CUPTI_API_ENTER)
		note(call);
}

/* A call that was under way when callbacks were taken off has no end: it is forgotten with its slice. */
static void live_began(int domain, uint32_t id, const CUpti_CallbackData *call)
{
	uint32_t now = atomic_load_explicit(&slice, memory_order_relaxed);

	if (thread.outer && thread.slice == now) {
		note(call);
		return;
	}
	thread.outer = call->correlationId;
	thread.inner = 0;
	thread.slice = now;
	thread.domain = domain;
	thread.id = id;
	thread.call = (struct reported_call){ .function = callbacks_function(domain, id) };
	thread.call.parameters = call->functionParams;
	inject_reported_begin(&thread.call);
}

static void live_ended(const CUpti_CallbackData *call)
{
	uint16_t kind = inject_reported_kind(thread.call.function);
	uint64_t now_ns = cupti_now_ns();

	if (call->functionReturnValue)
		thread.call.status = *(const uint32_t *)call->functionReturnValue;
	if (kind != CUDA_SYNCHRONIZATION)
		thread.call.correlation = CORRELATION(thread.outer, thread.inner);
	inject_reported_end(&thread.call, now_ns);
	cupti_call_ended(kind, now_ns);
}

/* The same where nobody else sees the call: it is recorded here. */
static void called_back_live(void *userdata, int domain, uint32_t id, const void *data)
{
	const CUpti_CallbackData *call = data;

	(void)userdata;
	if (!call || thread.inside || !callbacks_function(domain, id))
		return;
	atomic_fetch_add(&calling_back, 1);
	if (atomic_load(&cupti_active)) {
		if (call->callbackSite == CUPTI_API_ENTER)
			live_began(domain, id, call);
		else if (thread.outer && domain == thread.domain && id == thread.id &&
			 thread.slice == atomic_load(&slice))
			live_ended(call);
	}
	atomic_fetch_sub(&calling_back, 1);
}

/* --- slices ------------------------------------------------------------------------------------ */

static void end_slice(void)
{
	for (size_t i = 0; i < KINDS; i++)
		cupti.ActivityDisable(kinds[i]);
	callbacks_enable(&cupti, subscriber, false);
	pthread_mutex_lock(&lock);
	drain_until_ns = cupti_now_ns() + DRAIN_NS;
	pthread_cond_signal(&wake);
	pthread_mutex_unlock(&lock);
}

static void begin_slice(uint64_t now_ns)
{
	CUptiResult status = CUPTI_SUCCESS;
	struct clock_pair pair = {};
	bool called;

	atomic_fetch_add(&slice, 1);
	if (!ending) {
		/* CUDA is up by now and has registered what it does at exit: ours runs before that. */
		ending = true;
		atexit(cupti_stop);
	}
	activities_begin_slice(now_ns, slices_sampled(&slices));
	if (!monotonic)
		clock_pair_read(&cupti, &pair);
	pthread_mutex_lock(&lock);
	clocks.first = clocks.last = pair;
	drain_until_ns = UINT64_MAX;
	pthread_cond_signal(&wake);
	pthread_mutex_unlock(&lock);
	/* Callbacks first, and last at the end: other threads go on, and each activity needs its call. */
	called = callbacks_enable(&cupti, subscriber, true);
	for (size_t i = 0; i < KINDS && called && status == CUPTI_SUCCESS; i++)
		status = cupti.ActivityEnable(kinds[i]);
	if (called && status == CUPTI_SUCCESS)
		return;
	end_slice();
	give_up(status == CUPTI_ERROR_INSUFFICIENT_PRIVILEGES ||
				status == CUPTI_ERROR_VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES
			? CUPTI_COUNT_cupti_no_permission
			: CUPTI_COUNT_cupti_refused);
}

/* Takes over what was counted, asks the schedule, does what it says. */
static void decide(uint64_t now_ns, bool boundary)
{
	enum slice_step step;
	bool inside = thread.inside;

	if (atomic_flag_test_and_set_explicit(&deciding, memory_order_acquire))
		return; /* another thread does */
	slices.calls += atomic_exchange(&calls, 0);
	slices.activities += atomic_exchange(&activities, 0);
	step = slices_at(&slices, now_ns, boundary);
	thread.inside = true;
	switch (step) {
	case SLICE_KEEP:
		break;
	case SLICE_BEGIN_UNALIGNED:
		inject_count_device_time(CUPTI_COUNT_slices_unaligned, 1);
		__attribute__((fallthrough));
	case SLICE_BEGIN:
		begin_slice(now_ns);
		break;
	case SLICE_CUT:
		inject_count_device_time(CUPTI_COUNT_slices_cut, 1);
		__attribute__((fallthrough));
	case SLICE_END:
		end_slice();
		break;
	}
	thread.inside = inside;
	atomic_store(&decide_ns, slices.on ? now_ns + MS_NS : slices.next_ns);
	atomic_flag_clear_explicit(&deciding, memory_order_release);
}

void cupti_call_began(void)
{
	thread.outer = thread.inner = 0;
}

uint64_t cupti_call_ended(uint16_t kind, uint64_t now_ns)
{
	uint64_t correlation = CORRELATION(thread.outer, thread.inner);
	bool boundary = false;

	thread.outer = thread.inner = 0;
	if (thread.inside)
		return 0;
	switch (kind) {
	case CUDA_LAUNCH:
	case CUDA_GRAPH_LAUNCH:
	case CUDA_COPY:
	case CUDA_SET:
		thread.launched = true;
		atomic_store_explicit(&launched, true, memory_order_relaxed);
		if (correlation)
			atomic_fetch_add_explicit(&calls, 1, memory_order_relaxed);
		break;
	case CUDA_SYNCHRONIZATION:
		boundary = thread.launched;
		thread.launched = false;
		break;
	default:
		/* Before the first launch of all, every call that has CUDA initialised is a boundary. */
		boundary = kind <= CUDA_DEVICE &&
			   !atomic_load_explicit(&launched, memory_order_relaxed);
		break;
	}
	if (boundary || now_ns >= atomic_load_explicit(&decide_ns, memory_order_relaxed))
		decide(now_ns, boundary);
	return correlation;
}

/* --- the flushing thread ------------------------------------------------------------------------ */

static void flush(uint32_t flags)
{
	if (cupti.ActivityFlushAll(flags) != CUPTI_SUCCESS)
		inject_count_device_time(CUPTI_COUNT_flush_failed, 1);
}

static void settle(void)
{
	while (atomic_flag_test_and_set_explicit(&deciding, memory_order_acquire))
		sched_yield();
	slices.activities += atomic_exchange(&activities, 0);
	slices_settle(&slices);
	if (!slices.on)
		atomic_store(&decide_ns, slices.next_ns);
	atomic_flag_clear_explicit(&deciding, memory_order_release);
}

static void wait_for(pthread_cond_t *condition, uint64_t ms)
{
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_nsec += (long)(ms % 1000 * MS_NS);
	until.tv_sec += (time_t)(ms / 1000) + until.tv_nsec / 1000000000;
	until.tv_nsec %= 1000000000;
	pthread_cond_timedwait(condition, &lock, &until);
}

/* Between slices nothing calls: the next one begins from here. False: nobody wants it any more. */
static bool live_goes_on(void)
{
	uint64_t now_ns = cupti_now_ns();

	if (atomic_load(&state) > STATE_RUNNING || !inject_is_heard())
		return false;
	if (now_ns >= atomic_load(&decide_ns))
		decide(now_ns, false);
	return true;
}

/* Nothing enabled, no callback, no memory: as it was before, but that libraries are mapped. */
static void live_end(void)
{
	atomic_store(&cupti_active, 0);
	while (atomic_flag_test_and_set_explicit(&deciding, memory_order_acquire))
		sched_yield();
	for (size_t i = 0; i < KINDS; i++)
		cupti.ActivityDisable(kinds[i]);
	callbacks_enable(&cupti, subscriber, false);
	slices.on = false;
	atomic_flag_clear_explicit(&deciding, memory_order_release);
	cupti.Unsubscribe(subscriber);
	flush(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
	while (atomic_load(&calling_back))
		sched_yield();
	atomic_store(&state, STATE_ENDED);
	if (!atomic_load(
		    &buffers_taken)) { /* else CUPTI may write there yet: they serve the next time */
		munmap(buffers, (size_t)buffers_count * BUFFER_BYTES);
		buffers = NULL;
	}
	inject_live_ended();
	atomic_store(&state, STATE_NEW);
}

/*
 * CUPTI could flush by itself (cuptiActivityFlushPeriod), but then nobody would know when a slice is
 * complete, and nobody could stop waiting for it at the end.
 */
static void *flush_for_ever(void *argument)
{
	(void)argument;
	thread.inside = true;
	pthread_mutex_lock(&lock);
	while (!stop_asked) {
		if (!drain_until_ns && !live) {
			pthread_cond_wait(&wake, &lock);
			continue;
		}
		wait_for(&wake, FLUSH_MS);
		if (stop_asked)
			break;
		if (live) {
			pthread_mutex_unlock(&lock);
			if (!live_goes_on()) {
				live_end();
				return NULL;
			}
			pthread_mutex_lock(&lock);
			if (!drain_until_ns)
				continue;
		}
		pthread_mutex_unlock(&lock);
		flush(0);
		pthread_mutex_lock(&lock);
		if (cupti_now_ns() < drain_until_ns)
			continue;
		drain_until_ns = 0;
		pthread_mutex_unlock(&lock);
		settle();
		pthread_mutex_lock(&lock);
	}
	pthread_mutex_unlock(&lock);
	flush(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
	pthread_mutex_lock(&lock);
	stopped = true;
	pthread_cond_signal(&done);
	pthread_mutex_unlock(&lock);
	return NULL;
}

static bool start_thread(void)
{
	pthread_attr_t attributes;
	sigset_t all, before;
	pthread_t made;
	int failed;

	if (pthread_attr_init(&attributes))
		return false;
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&attributes, 512 << 10);
	sigfillset(&all); /* the program's signals are for its own threads */
	pthread_sigmask(SIG_SETMASK, &all, &before);
	failed = pthread_create(&made, &attributes, flush_for_ever, NULL);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attributes);
	return !failed;
}

/* --- start and end -------------------------------------------------------------------------------- */

/* A number from the environment, within bounds. */
static uint64_t setting(const char *name, uint64_t fallback, uint64_t least, uint64_t most)
{
	const char *text = getenv(name);
	char *end = NULL;
	uint64_t value;

	if (!text || !*text)
		return fallback;
	errno = 0;
	value = strtoull(text, &end, 10);
	if (errno || *end)
		return fallback;
	return value < least ? least : value > most ? most : value;
}

/* Device memory that CUPTI takes for its own records; it refuses what a release does not know. */
static void limit_device_memory(void)
{
	size_t bytes = BUFFER_BYTES, pool = DEVICE_POOL, size = sizeof(size_t);

	cupti.ActivitySetAttribute(CUPTI_ACTIVITY_ATTR_DEVICE_BUFFER_SIZE, &size, &bytes);
	size = sizeof(size_t);
	cupti.ActivitySetAttribute(CUPTI_ACTIVITY_ATTR_DEVICE_BUFFER_POOL_LIMIT, &size, &pool);
}

static bool make_buffers(uint64_t mib)
{
	size_t bytes;
	void *block;

	if (buffers)
		return true; /* left by a former time */
	buffers_count = (uint32_t)mib;
	bytes = (size_t)buffers_count * BUFFER_BYTES;
	block = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (block == MAP_FAILED)
		return false;
	buffers = block;
	return true;
}

static enum cupti_counter subscribe(uint64_t mib)
{
	CUptiResult status;

	switch (cupti_library_open(&cupti)) {
	case CUPTI_FOUND:
		break;
	case CUPTI_NOT_FOUND:
		return CUPTI_COUNT_cupti_not_found;
	case CUPTI_INCOMPLETE:
		return CUPTI_COUNT_cupti_incomplete;
	}
	if (cupti.GetVersion(&version) != CUPTI_SUCCESS)
		return CUPTI_COUNT_cupti_refused; /* no driver that it can work with */
	if (version < CUPTI_VERSION_OLDEST)
		return CUPTI_COUNT_cupti_version_unknown;
	if (!callbacks_choose(&cupti, live) || !make_buffers(mib))
		return CUPTI_COUNT_cupti_refused;
	/* First of all: who subscribes owns the activities too, whoever asks for them. */
	status = cupti.Subscribe(&subscriber, live ? called_back_live : called_back, NULL);
	if (status == CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED)
		return CUPTI_COUNT_cupti_taken;
	if (status != CUPTI_SUCCESS)
		return CUPTI_COUNT_cupti_refused;
	limit_device_memory();
	if (cupti.ActivityRegisterCallbacks(buffer_requested, buffer_completed) != CUPTI_SUCCESS) {
		cupti.Unsubscribe(subscriber);
		return CUPTI_COUNT_cupti_refused;
	}
	/* Where it is had, CUPTI's times are ours from the first record on, and no pair is ever read. */
	monotonic = cupti.ActivityRegisterTimestampCallback &&
		    cupti.ActivityRegisterTimestampCallback(cupti_now_ns) == CUPTI_SUCCESS;
	clocks.monotonic = monotonic;
	if (!start_thread()) {
		cupti.Unsubscribe(subscriber);
		return CUPTI_COUNT_cupti_thread_failed;
	}
	return CUPTI_COUNTER_COUNT;
}

/* CUDA does not outlive fork(), nor does CUPTI: what was begun before is not for the child. */
static void forked(void)
{
	int was = atomic_load(&state);

	if (was == STATE_NEW || was == STATE_ENDED)
		return;
	give_up(CUPTI_COUNT_cupti_forked);
}

static void start(enum cupti_counter *reason, uint64_t per_second, uint64_t mib)
{
	static bool has_handler;

	thread.inside = true;
	if (!has_handler)
		pthread_atfork(NULL, NULL, forked);
	has_handler = true;
	slices_start(&slices, per_second, cupti_now_ns());
	atomic_store(&decide_ns, 0);
	*reason = subscribe(mib);
	thread.inside = false;
	if (*reason != CUPTI_COUNTER_COUNT) {
		give_up(*reason);
		return;
	}
	atomic_store(&state, STATE_RUNNING);
	atomic_store(&cupti_active, 1);
}

void cupti_start(void)
{
	const char *wanted = getenv("OTELGPU_INJECT_CUPTI");
	enum cupti_counter reason;
	int new = STATE_NEW;

	if (!wanted || strcmp(wanted, "1") || atomic_load(&state) != STATE_NEW ||
	    !atomic_compare_exchange_strong(&state, &new, STATE_STARTING))
		return;
	start(&reason, setting("OTELGPU_INJECT_CUPTI_RATE", PER_SECOND, 1, 1000000),
	      setting("OTELGPU_INJECT_CUPTI_MIB", MEMORY_MIB, 2, BUFFERS_MAX));
}

enum cupti_counter cupti_live_start(uint64_t per_second, uint64_t mib)
{
	enum cupti_counter reason = CUPTI_COUNT_cupti_taken;
	int new = STATE_NEW;

	if (!atomic_compare_exchange_strong(&state, &new, STATE_STARTING))
		return reason;
	live = true;
	mib = mib ? mib : MEMORY_MIB;
	start(&reason, per_second ? per_second : PER_SECOND,
	      mib < 2		  ? 2
	      : mib > BUFFERS_MAX ? BUFFERS_MAX
				  : mib);
	if (reason != CUPTI_COUNTER_COUNT) {
		live = false;
		atomic_store(&state,
			     STATE_NEW); /* nothing is left of it: another time it may be had */
	}
	return reason;
}

void cupti_stop(void)
{
	uint64_t deadline_ns = cupti_now_ns() + EXIT_MS * (uint64_t)MS_NS;
	int running = STATE_RUNNING;

	if (!atomic_compare_exchange_strong(&state, &running, STATE_STOPPING))
		return;
	atomic_store(&cupti_active, 0);
	pthread_mutex_lock(&lock);
	stop_asked = true;
	pthread_cond_signal(&wake);
	while (!stopped && cupti_now_ns() < deadline_ns)
		wait_for(&done, EXIT_MS / 10);
	if (!stopped)
		inject_count_device_time(CUPTI_COUNT_flush_late, 1);
	pthread_mutex_unlock(&lock);
	atomic_store(&state, STATE_ENDED);
}
