/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CLOCK_MONOTONIC at half the price: the time-stamp counter, tied to the clock anew
 * every millisecond, so that the rate measured over the last one is extrapolated
 * over the next and no further (30 ns of error, as much as the anchors have). Only
 * where the kernel keeps time by that counter itself, and so vouches for it.
 */
#ifndef OTELGPU_CLOCK_H
#define OTELGPU_CLOCK_H

#include "lib/types.h"

#include <time.h>

#define CLOCK_ANCHOR_NS 1000000
#define CLOCK_SHIFT	32

/*
 * The two clocks are not read at once. A thread that was held up in between, by a few
 * microseconds or a whole turn of another's, would take its next millisecond's times from
 * the future or the past: such a reading is no anchor.
 */
#define CLOCK_APART_TICKS 16384

/* A thread's. All zero: the clock is asked each time. */
struct clock {
	__u64 ticks;   /* at the anchor */
	__u64 time_ns; /* then */
	__u64 span;    /* ticks for which the anchor holds; 0: for none */
	__u64 rate;    /* ns per tick, times 2^32 */
	__u64 last_ns; /* given out */
};

extern __u8 clock_has_ticks; /* connection.c finds out */

#ifndef CLOCK_TICKS /* a test has its own */
#define CLOCK_TICKS() __builtin_ia32_rdtsc()
#endif

static inline __u64 clock_read(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (__u64)now.tv_sec * 1000000000ULL + (__u64)now.tv_nsec;
}

/* Ask the clock, and learn the rate if the last anchor is not too close to report it. */
static __attribute__((noinline, unused)) __u64 clock_anchor(struct clock *clock)
{
	__u64 before = CLOCK_TICKS(), time_ns = clock_read(), apart = CLOCK_TICKS() - before;
	__u64 ticks = before + apart / 2, passed_ticks = ticks - clock->ticks,
	      passed_ns = time_ns - clock->time_ns;

	if (!clock_has_ticks || apart > CLOCK_APART_TICKS)
		return time_ns;
	if (clock->ticks && passed_ns < CLOCK_ANCHOR_NS / 2 && passed_ticks < 1ULL << 40)
		return time_ns;
	if (clock->ticks && passed_ns < 1ULL << 31 && passed_ticks && passed_ticks < 1ULL << 40) {
		clock->rate = (passed_ns << CLOCK_SHIFT) / passed_ticks;
		clock->span =
			clock->rate ? ((__u64)CLOCK_ANCHOR_NS << CLOCK_SHIFT) / clock->rate : 0;
	} else {
		clock->span = 0; /* idle for seconds: measure anew */
	}
	clock->ticks = ticks;
	clock->time_ns = time_ns;
	return time_ns;
}

/* Never runs backwards on a thread. */
static inline __u64 clock_now(struct clock *clock)
{
	__u64 passed = CLOCK_TICKS() - clock->ticks, now_ns;

	if (__builtin_expect(passed < clock->span, 1))
		now_ns = clock->time_ns + (passed * clock->rate >> CLOCK_SHIFT);
	else
		now_ns = clock_anchor(clock);
	if (now_ns < clock->last_ns)
		now_ns = clock->last_ns;
	clock->last_ns = now_ns;
	return now_ns;
}

#endif
