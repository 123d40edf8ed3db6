/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Numbers of rows into histograms, all that are made of a row in one pass. measuring.py is the other side.
 *
 * Whoever calls sees to it that values lie in a row, and that bounds ascend, filled up with infinities to a multiple
 * of BOUNDS_AT_ONCE; buckets are one more than bounds. Nothing is allocated or kept.
 */
#ifndef OTELGPU_SPANWRITER_MEASURE_H
#define OTELGPU_SPANWRITER_MEASURE_H

#include <stdint.h>

enum {
	BOUNDS_AT_ONCE = 8,
};

enum measure_type {
	MEASURE_SECONDS, /* of 64 bits of nanoseconds */
	MEASURE_VOLUME,	 /* the product of three numbers of 32 bits */
};

struct measure {
	const double *bounds;
	int64_t *
		buckets; /* these and what follows are added to; a bound belongs to the bucket below it */
	double total; /* of volumes */
	double least;
	double most;
	uint64_t total_low; /* of nanoseconds, in 128 bits */
	uint64_t total_high;
	int64_t count;
	uint32_t bound_count;
	uint16_t offset;
	uint8_t type;
	uint8_t returned; /* 1: only of rows whose return was seen */
};

void measure_rows(const uint8_t *rows, int64_t n, struct measure *measures, uint32_t count);

#endif
