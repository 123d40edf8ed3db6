// SPDX-License-Identifier: Apache-2.0
/* See measure.h. Rows are taken some at a time, which stay in the first-level cache for all measures. */
#include "measure.h"

#include "row.h"
#include "spanwriter.h"

#include <stdbool.h>

enum {
	ROWS_AT_A_TIME = 64, /* 8 KiB */
};

static const double NS = 1e-9;

static void put(struct measure *measure, double value)
{
	uint32_t bucket = 0;

	for (uint32_t i = 0; i < measure->bound_count; i++)
		bucket += measure->bounds[i] < value;
	measure->buckets[bucket]++;
	measure->count++;
	if (value < measure->least)
		measure->least = value;
	if (value > measure->most)
		measure->most = value;
}

static void add_seconds(struct measure *measure, const uint8_t *at)
{
	uint64_t ns = u64_at(at);

	measure->total_low += ns;
	measure->total_high += measure->total_low < ns;
	put(measure, (double)ns * NS);
}

static void add_volume(struct measure *measure, const uint8_t *at)
{
	double volume = (double)u32_at(at) * u32_at(at + 4) * u32_at(at + 8);

	measure->total += volume;
	put(measure, volume);
}

static void add_all(struct measure *measure, const uint8_t *row, const uint8_t *end)
{
	bool any = !measure->returned;

	for (; row < end; row += ROW_BYTES) {
		if (!any && row[RETURNED_AT] != 1)
			continue;
		if (measure->type == MEASURE_SECONDS)
			add_seconds(measure, row + measure->offset);
		else
			add_volume(measure, row + measure->offset);
	}
}

void measure_rows(const uint8_t *rows, int64_t n, struct measure *measures, uint32_t count)
{
	for (int64_t first = 0; first < n; first += ROWS_AT_A_TIME) {
		int64_t last = n - first < ROWS_AT_A_TIME ? n : first + ROWS_AT_A_TIME;

		for (uint32_t i = 0; i < count; i++)
			add_all(&measures[i], rows + first * ROW_BYTES, rows + last * ROW_BYTES);
	}
}
