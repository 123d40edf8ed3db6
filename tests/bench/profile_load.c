// SPDX-License-Identifier: Apache-2.0
/*
 * Native work to be profiled: profile_load THREADS DEPTH. Each thread computes at the bottom of DEPTH calls, without
 * frame pointers. A line on standard input is answered with the rounds done so far.
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#define ROUND 200000

static _Atomic uint64_t rounds;
static int depth;

static void compute(void)
{
	for (;;) {
		volatile uint64_t value = 1;

		for (int i = 0; i < ROUND; i++)
			value = value * 6364136223846793005u + 1442695040888963407u;
		atomic_fetch_add_explicit(&rounds, 1, memory_order_relaxed);
	}
}

static __attribute__((noinline)) void descend(int left)
{
	if (left)
		descend(left - 1);
	else
		compute();
	__asm__ volatile("" : : : "memory"); /* no tail call */
}

static void *run(void *unused)
{
	(void)unused;
	descend(depth);
	return NULL;
}

int main(int argc, char **argv)
{
	int threads = argc > 1 ? atoi(argv[1]) : 1;
	char line[64];

	depth = argc > 2 ? atoi(argv[2]) : 20;
	for (int i = 0; i < threads; i++) {
		pthread_t thread;

		if (pthread_create(&thread, NULL, run, NULL))
			return 1;
	}
	while (fgets(line, sizeof(line), stdin)) {
		printf("%" PRIu64 "\n", atomic_load(&rounds));
		fflush(stdout);
	}
	return 0;
}
