/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CUPTI's activity records → struct cuda_activity and its names. Any number of threads:
 * CUPTI's own, ours that flushes, the program's.
 */
#ifndef OTELGPU_INJECT_CUPTI_ACTIVITIES_H
#define OTELGPU_INJECT_CUPTI_ACTIVITIES_H

#include "cupti_library.h"

#include <stdbool.h>

/* Where CUPTI's clock and CLOCK_MONOTONIC were at one time. */
struct clock_pair {
	uint64_t cupti_ns;
	uint64_t monotonic_ns;
};

struct activity_clock {
	bool monotonic; /* CUPTI takes its times from cupti_now_ns(): nothing to convert */
	struct clock_pair first, last;
};

uint64_t cupti_now_ns(void);

/* The closest of a few readings. False: CUPTI does not report the time. */
bool clock_pair_read(const struct cupti_library *library, struct clock_pair *pair);

/* CUPTI's time as CLOCK_MONOTONIC, drift between the two pairs included. */
uint64_t clock_convert(const struct activity_clock *clock, uint64_t cupti_ns);

/* A new slice: it is reported, in the ring of the thread that begins it, and names are reported again. */
void activities_begin_slice(uint64_t began_ns, uint32_t sampled);

/* Sends what is in a buffer; the result is how many activities it held, sent or not. */
uint64_t activities_send(const struct cupti_library *library, const struct activity_clock *clock,
			 uint8_t *buffer, size_t valid_bytes);

#endif
