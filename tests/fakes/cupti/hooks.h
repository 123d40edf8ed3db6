/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the fake device says the fake CUPTI: each call as it is entered and left, each piece of
 * work as it is queued. The fake libcuda (and libcudart) exports `fake_cupti_hooks`, a pointer that is
 * NULL until the fake CUPTI finds it by dlsym() and sets it.
 */
#ifndef FAKE_CUPTI_HOOKS_H
#define FAKE_CUPTI_HOOKS_H

#include <stdbool.h>
#include <stdint.h>

enum fake_work_kind { FAKE_WORK_KERNEL = 1, FAKE_WORK_COPY = 2, FAKE_WORK_SET = 3 };

/* One piece of work on the simulated device; times are CLOCK_MONOTONIC, `end_ns` may be to come. */
struct fake_work {
	enum fake_work_kind kind;
	int64_t start_ns;
	int64_t end_ns;
	uint32_t device;
	uint32_t stream;     /* small number of the stream, as CUPTI numbers them */
	uint64_t bytes;	     /* copies and sets */
	uint32_t detail;     /* copies: 1 to the device, 2 from it, 8 within it; sets: the value */
	uint64_t graph_node; /* 0: not of a graph */
	uint32_t graph;
	const char *name; /* kernels: mangled; lives as long as the process */
	/*
	 * Where times are not known when it is queued, else NULL: false, they are not known yet; true, they
	 * are there, and `pending` is gone. With times of NULL `pending` goes unasked.
	 */
	bool (*times)(void *pending, int64_t *start_ns, int64_t *end_ns);
	void *pending;
};

struct fake_cupti_hooks {
	/* An API function begins on the calling thread, by its exported name ("cudaLaunchKernel"). */
	void (*enter)(const char *function);
	void (*leave)(const char *function);
	/* The calling thread's innermost function has queued this. */
	void (*work)(const struct fake_work *work);
};

/* extern const struct fake_cupti_hooks *fake_cupti_hooks; in the library that has the device */

#endif
