// SPDX-License-Identifier: Apache-2.0
/* See timelines.h. */
#include "timelines.h"

#include "row.h"

#include <stdlib.h>

int64_t number_threads(const uint32_t *tids, int64_t n, uint32_t *numbers, uint32_t *distinct)
{
	uint32_t bits = 3, count = 0;
	uint32_t *buckets; /* number + 1; 0: free */
	uint64_t factor;

	if (n > INT32_MAX / 2)
		return -1;
	while (1LL << bits < 2 * n)
		bits++;
	draw_factors(&factor, 1);
	buckets = calloc((size_t)1 << bits, sizeof(*buckets));
	if (!buckets)
		return -1;
	for (int64_t i = 0; i < n; i++) {
		uint64_t at = tids[i] * factor >> (64 - bits);

		while (buckets[at] && distinct[buckets[at] - 1] != tids[i])
			at = (at + 1) & ((1ULL << bits) - 1);
		if (!buckets[at]) {
			distinct[count] = tids[i];
			buckets[at] = ++count;
		}
		numbers[i] = buckets[at] - 1;
	}
	free(buckets);
	return count;
}

/* The last of `count` ascending times that is not after `time_ns`; the first if all are. */
static int64_t last_by(const uint64_t *times_ns, int64_t count, uint64_t time_ns)
{
	int64_t first = 0;

	while (count > 1) {
		int64_t half = count / 2;

		if (times_ns[first + half] <= time_ns) {
			first += half;
			count -= half;
		} else {
			count = half;
		}
	}
	return first;
}

int64_t find_states(const struct timelines *timelines, const uint32_t *numbers,
		    const uint64_t *times_ns, int64_t n, int64_t *states)
{
	const uint64_t *begins_ns = timelines->begins_ns;
	int64_t *latest; /* by thread: calls come in the order of time, or nearly */

	latest = malloc(((size_t)timelines->threads + 1) * sizeof(*latest));
	if (!latest)
		return -1;
	for (int64_t thread = 0; thread < timelines->threads; thread++)
		latest[thread] = thread ? timelines->ends[thread - 1] : 0;
	for (int64_t i = 0; i < n; i++) {
		uint32_t thread = numbers[i];
		int64_t end = timelines->ends[thread], at = latest[thread];

		if (begins_ns[at] > times_ns[i] ||
		    (at + 1 < end && begins_ns[at + 1] <= times_ns[i])) {
			int64_t first = thread ? timelines->ends[thread - 1] : 0;

			at = first + last_by(begins_ns + first, end - first, times_ns[i]);
			latest[thread] = at;
		}
		states[i] = timelines->states[at];
	}
	free(latest);
	return 0;
}
