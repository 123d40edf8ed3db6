/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What threads held at given times: an as-of join. timelines.py is the other side.
 *
 * Whoever calls sees to it that columns are as long as said, and that each thread has a state. Memory is taken
 * and given back in a call; nothing is kept.
 */
#ifndef OTELGPU_SPANWRITER_TIMELINES_H
#define OTELGPU_SPANWRITER_TIMELINES_H

#include <stdint.h>

/* States of threads, one's after the other's, each by when it began. */
struct timelines {
	const uint64_t *begins_ns;
	const int64_t *states;
	const int64_t *ends; /* by thread */
	int64_t threads;
};

/*
 * The distinct ones of `n` thread ids, as they are first met, and which of them each is.
 * Returns how many; -1 without memory.
 */
int64_t number_threads(const uint32_t *tids, int64_t n, uint32_t *numbers, uint32_t *distinct);

/*
 * The last state of each thread that began by each time; its first one where none did.
 * Returns -1 without memory, else 0.
 */
int64_t find_states(const struct timelines *timelines, const uint32_t *numbers,
		    const uint64_t *times_ns, int64_t n, int64_t *states);

#endif
