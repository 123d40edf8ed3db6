/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When device time is measured and when not, so that a budget of activities per second is kept.
 * Pure: time and events in, decisions out.
 *
 * A slice begins and ends where a thread that launches comes back from waiting for the device: whole
 * steps are in it. It lasts for as long as the budget does, for good in a program that stays below.
 * After it nothing is measured until half a second's budget has been saved up again, and what a slice
 * overspent is saved up first. Worked example, 2000 a second: a program of 50,000 launches a second and
 * steps of 10 ms spends its first 2000 in four steps and a bit, ends the slice with the fifth (2500),
 * owes 400 then, and begins again 0.7 s later.
 */
#ifndef OTELGPU_CUPTI_SLICES_H
#define OTELGPU_CUPTI_SLICES_H

#include <stdbool.h>
#include <stdint.h>

enum slice_step {
	SLICE_KEEP,
	SLICE_BEGIN,
	SLICE_BEGIN_UNALIGNED, /* no thread waits for the device: in the middle of whatever it does */
	SLICE_END,
	SLICE_CUT, /* no boundary came in time */
};

struct slices {
	uint64_t per_second; /* the budget */
	bool on;
	uint64_t first_ns; /* slices_start() */
	uint64_t on_ns;	   /* time in slices that have ended */
	uint64_t began_ns;
	uint64_t next_ns;    /* off: when to begin; on: since when an end is due, 0 not yet */
	int64_t budget;	     /* left at began_ns, or at the end of the last slice */
	uint64_t calls;	     /* of this slice, or the last one */
	uint64_t activities; /* that they caused, as far as they have been seen */
	uint64_t per_call;   /* activities that a call causes, ×256: one graph launch has many */
	uint64_t charged;    /* for the last slice, when it ended */
};

/* A full budget, and the first slice is due. */
void slices_start(struct slices *slices, uint64_t per_second, uint64_t now_ns);

/*
 * What to do now. `boundary`: the calling thread launched, waited for the device and comes back.
 * The caller has added to `calls` and `activities`.
 */
enum slice_step slices_at(struct slices *slices, uint64_t now_ns, bool boundary);

/* The share of time that was in slices before the current one, in millionths; all of it before the first. */
uint32_t slices_sampled(const struct slices *slices);

/* All activities of the last slice have been seen: what it really cost. */
void slices_settle(struct slices *slices);

#endif
