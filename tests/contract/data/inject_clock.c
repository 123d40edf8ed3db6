/* SPDX-License-Identifier: Apache-2.0 */
/*
 * clock.h on a machine of its own, where a tick is 0.5 ns and nothing else passes time but
 * what is said here. Exits with 1 at a time that is not the clock's, to 100 ns.
 */
#include <stdio.h>
#include <time.h>

#include "lib/types.h"

static __u64 true_ns = 1000000000, held_up_ns;
static int asks;

static __u64 ticks_now(void)
{
	return true_ns * 2;
}

static int ask(clockid_t which, struct timespec *now)
{
	(void)which;
	asks++;
	true_ns += held_up_ns; /* before the clock answers */
	held_up_ns = 0;
	now->tv_sec = (time_t)(true_ns / 1000000000);
	now->tv_nsec = (long)(true_ns % 1000000000);
	return 0;
}

#define CLOCK_TICKS   ticks_now
#define clock_gettime ask
#include "clock.h"

__u8 clock_has_ticks = 1;

int main(void)
{
	struct clock clock = {};
	__u64 at;

	for (int call = 0; call < 40000; call++) {
		true_ns += 700;
		if (call % 1000 == 999)
			held_up_ns = 5000000; /* the next time that the clock is asked */
		at = clock_now(&clock);
		if (at > true_ns || true_ns - at > 100) {
			printf("call %d: %lld ns from the truth\n", call,
			       (long long)(at - true_ns));
			return 1;
		}
	}
	printf("asked %d times\n", asks);
	return 0;
}
