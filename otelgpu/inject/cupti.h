/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device time by CUPTI, in the observed process: opt-in, sampled, never in the way.
 *
 * The interposer calls cupti_start() before its first call of CUDA, cupti_call_begin() and
 * cupti_call_end() around each outermost call, and puts the result of the latter into the call's
 * record: launches in `other`, copies, sets and graph launches in `caller` (CORRELATION).
 * It provides inject_emit() and inject_count_device_time().
 */
#ifndef OTELGPU_INJECT_CUPTI_H
#define OTELGPU_INJECT_CUPTI_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Everything that is dropped, given up or not had, by the name under which it is reported. Those
 * marked "end" are why a process has no device time at all.
 */
#define CUPTI_COUNTERS(COUNTER)                                                            \
	COUNTER(cupti_not_found)	  /* end: no libcupti that fits */                 \
	COUNTER(cupti_incomplete)	  /* end: a function that we need is missing */    \
	COUNTER(cupti_version_unknown)	  /* end: record layouts before CUDA 11.1 */       \
	COUNTER(cupti_taken)		  /* end: another profiler subscribed first */     \
	COUNTER(cupti_no_permission)	  /* end: profiling is for administrators only */  \
	COUNTER(cupti_refused)		  /* end: any other answer to a set-up call */     \
	COUNTER(cupti_forked)		  /* end: this is the child of a fork */           \
	COUNTER(cupti_thread_failed)	  /* end: no thread to flush from */               \
	COUNTER(activities_dropped)	  /* by CUPTI: its buffers were full */            \
	COUNTER(activities_without_times) /* start or end 0, or end before start */        \
	COUNTER(activities_out_of_time)	  /* times of no clock that we know */             \
	COUNTER(activities_unknown)	  /* of a kind that was not asked for */           \
	COUNTER(activities_cut)		  /* shorter than their layout */                  \
	COUNTER(activities_not_sent)	  /* the ring was full */                          \
	COUNTER(activity_names_not_sent)  /* the ring, or the table of names, was full */  \
	COUNTER(activity_buffers_short)	  /* asked for one more than the memory allows */  \
	COUNTER(slices_cut)		  /* ended in the middle of a step, over budget */ \
	COUNTER(slices_unaligned)	  /* begun in the middle of a step */              \
	COUNTER(flush_failed)		  /* CUPTI did not hand over what it had */        \
	COUNTER(flush_late)		  /* the process ended before CUPTI had */

enum cupti_counter {
#define CUPTI_ENUMERATOR(name) CUPTI_COUNT_##name,
	CUPTI_COUNTERS(CUPTI_ENUMERATOR)
#undef CUPTI_ENUMERATOR
		CUPTI_COUNTER_COUNT
};

/*
 * What a call's record says of the activities that it causes: the correlation id of the outermost
 * call in the low half, in the high half that of the first call within it that has another one.
 */
#define CORRELATION(outer, inner) ((uint64_t)(outer) | (uint64_t)(inner) << 32)

/* --- provided by the interposer ------------------------------------------------------------ */

/*
 * Writes a record into the calling thread's ring, whichever thread that is, with the process's
 * number and cgroup filled in. False: the ring is full, or nobody reads it.
 */
bool inject_emit(const void *record, size_t bytes);

void inject_count_device_time(enum cupti_counter counter, uint64_t count);

/*
 * Of a process that the library came into late, whose calls pass it by: CUPTI says of each when it begins
 * and when it has ended.
 */
uint16_t inject_reported_function(const char *name); /* 0: none of those that are observed */
uint16_t inject_reported_kind(uint16_t function);    /* enum cuda_kind */

struct reported_call {
	uint16_t function;
	uint32_t status;
	const void *parameters; /* <function>_params of CUPTI's headers, or NULL; until it ends */
	uint64_t began_ns;
	uint64_t spent_ns; /* on taking its stack */
	uint64_t correlation;
};

void inject_reported_begin(struct reported_call *call);
void inject_reported_end(const struct reported_call *call, uint64_t now_ns);

/* Whether the agent that asked for it still looks. */
bool inject_is_heard(void);

/* Nobody is in a callback any more, and nothing will be recorded: lets go of the agent's memory. */
void inject_live_ended(void);

/* --- provided here ------------------------------------------------------------------------- */

/* Not 0 while device time is had: the only thing that a call reads otherwise. */
extern _Atomic uint32_t cupti_active;

/*
 * Once, before CUDA is initialised; does nothing unless OTELGPU_INJECT_CUPTI is 1. Any thread, any
 * number of times.
 */
void cupti_start(void);

/*
 * The same in a process whose CUDA is up already: 0 stands for a setting's default. Its thread ends it when nobody is
 * heard any more, and gives everything back. CUPTI_COUNTER_COUNT, or why not.
 */
enum cupti_counter cupti_live_start(uint64_t per_second, uint64_t buffers_mib);

/* Before the process ends: hands over what CUPTI has, within half a second. */
void cupti_stop(void);

void cupti_call_began(void);
uint64_t cupti_call_ended(uint16_t kind, uint64_t now_ns);

static inline void cupti_call_begin(void)
{
	if (__builtin_expect(atomic_load_explicit(&cupti_active, memory_order_relaxed), 0))
		cupti_call_began();
}

/* `kind` is enum cuda_kind, `now_ns` when the call returned; still inside the outermost call. */
static inline uint64_t cupti_call_end(uint16_t kind, uint64_t now_ns)
{
	if (__builtin_expect(atomic_load_explicit(&cupti_active, memory_order_relaxed), 0))
		return cupti_call_ended(kind, now_ns);
	return 0;
}

#endif
