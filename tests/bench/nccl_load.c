// SPDX-License-Identifier: Apache-2.0
/*
 * What bench_nccl.py observes: two ranks in one process, on two devices. Each line "CALLS" on standard input
 * is answered with the nanoseconds that so many ncclAllReduce took, half of them of each rank.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "../fakes/nccl/nccl.h"

#define NS    1000000000LL
#define RANKS 2

static long long now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * NS + now.tv_nsec;
}

int main(void)
{
	static char buffer[RANKS][4096];
	ncclComm_t comms[RANKS];
	long long began;
	long calls;

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (ncclCommInitAll(comms, RANKS, NULL)) {
		fprintf(stderr, "no communicator\n");
		return 1;
	}
	printf("0\n");
	while (scanf("%ld", &calls) == 1) {
		began = now_ns();
		for (long i = 0; i < calls; i++)
			if (ncclAllReduce(buffer[i % RANKS], buffer[i % RANKS], 1024, ncclFloat32,
					  ncclSum, comms[i % RANKS], NULL))
				return 1;
		printf("%lld\n", now_ns() - began);
	}
	return 0;
}
