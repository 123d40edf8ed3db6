// SPDX-License-Identifier: Apache-2.0
/* See measure.h. Rows are taken some at a time, which stay in the first-level cache for all measures. */
#include "measure.h"

#include "row.h"
#include "spanwriter.h"

enum {
	ROWS_AT_A_TIME = 64, /* 8 KiB */
};

static const double NS = 1e-9;

typedef double doubles __attribute__((vector_size(16)));
typedef int64_t numbers __attribute__((vector_size(16)));

/* How many bounds are below a value, two at once: which is faster than to stop at the right one. */
static int64_t bucket_of(const double *bounds, uint32_t count, double value)
{
	doubles values = { value, value };
	numbers below = { 0, 0 };

	for (uint32_t first = 0; first < count; first += BOUNDS_AT_ONCE)
		for (uint32_t i = 0; i < BOUNDS_AT_ONCE; i += 2) {
			doubles two;

			memcpy(&two, bounds + first + i, sizeof(two));
			below -= two < values; /* -1 where it is */
		}
	return below[0] + below[1];
}

static double value_of(uint8_t type, const uint8_t *at)
{
	if (type == MEASURE_SECONDS)
		return (double)u64_at(at) * NS;
	return (double)u32_at(at) * u32_at(at + 4) * u32_at(at + 8);
}

static void add_all(struct measure *measure, const uint8_t *row, const uint8_t *end)
{
	struct measure sum =
		*measure; /* of which the compiler knows that nothing else points at it */

	for (; row < end; row += ROW_BYTES) {
		const uint8_t *at = row + sum.offset;
		double value;

		if (sum.returned && row[RETURNED_AT] != 1)
			continue;
		value = value_of(sum.type, at);
		if (sum.type == MEASURE_SECONDS) {
			uint64_t ns = u64_at(at);

			sum.total_low += ns;
			sum.total_high += sum.total_low < ns;
		} else {
			sum.total += value;
		}
		sum.buckets[bucket_of(sum.bounds, sum.bound_count, value)]++;
		sum.count++;
		sum.least = value < sum.least ? value : sum.least;
		sum.most = value > sum.most ? value : sum.most;
	}
	*measure = sum;
}

void measure_rows(const uint8_t *rows, int64_t n, struct measure *measures, uint32_t count)
{
	for (int64_t first = 0; first < n; first += ROWS_AT_A_TIME) {
		int64_t last = n - first < ROWS_AT_A_TIME ? n : first + ROWS_AT_A_TIME;

		for (uint32_t i = 0; i < count; i++)
			add_all(&measures[i], rows + first * ROW_BYTES, rows + last * ROW_BYTES);
	}
}
