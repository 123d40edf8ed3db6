/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When something on the simulated device is done: the latest of a time and of ends of collectives that are
 * not known before all their ranks have come, each with what follows it. The fake libnccl gives these
 * ends: it finds `fake_collective_hooks`, which libcuda exports and which is NULL until then, by dlsym().
 *
 * Example: a kernel of 20 us behind collective 7, queued at time T, ends at max(T + 20 us, end of 7 + 20 us).
 */
#ifndef FAKE_CUDA_MOMENT_H
#define FAKE_CUDA_MOMENT_H

#include <stdbool.h>
#include <stdint.h>

#define MOMENT_ENDS_MAX 16 /* of one stream at a time: about one for each communicator it meets */

/* `plus_ns` after the end of collective `which` of communicator `where`. */
struct collective_end {
	uint64_t where, which;
	int64_t plus_ns;
};

struct moment {
	int64_t ns; /* CLOCK_MONOTONIC */
	uint32_t count, reserved;
	struct collective_end ends[MOMENT_ENDS_MAX];
};

struct fake_collective_hooks {
	/* Whether the kernel that the thread is launching is a collective; then `moment`, when it could begin,
	 * becomes its end. With the driver's lock held: must not wait. */
	bool (*launch)(struct moment *moment);
	/* The end of a collective, CLOCK_MONOTONIC; -1: not known yet, and `wait` is false. */
	int64_t (*end)(uint64_t where, uint64_t which, bool wait);
};

/* The later of both, into `moment`. */
void moment_raise(struct moment *moment, const struct moment *other);
void moment_raise_ns(struct moment *moment, int64_t ns);
void moment_add_ns(struct moment *moment, int64_t ns);
/* Forgets the ends that `other` has too: what comes next is after them. */
void moment_forget(struct moment *moment, const struct moment *other);
/* The time; -1: not known yet, and `wait` is false. Never with the driver's lock held and `wait`. */
int64_t moment_ns(const struct moment *moment, bool wait);
/* NULL: there is no fake libnccl. */
const struct fake_collective_hooks *moment_hooks(void);

#endif
