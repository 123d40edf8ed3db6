/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * A process that is hard to follow: `storm THREADS SECONDS`. So many threads wait in turns; beside them threads begin
 * and end, and children are made, replace their program, and end, some of them while others of their threads wait.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static volatile int over;

static void nap(long ms)
{
	struct timespec time = { .tv_nsec = ms * 1000000 };

	nanosleep(&time, NULL);
}

static void *waits(void *number)
{
	while (!over)
		nap(500 + (long)number % 499);
	return NULL;
}

static void *ends(void *unused)
{
	nap(2);
	return unused;
}

static void breed(void)
{
	static char *quick[] = { "/bin/true", NULL };
	pthread_t thread;
	pid_t child = fork();

	if (child == 0) {
		if (!pthread_create(&thread, NULL, waits, NULL) && getpid() % 2)
			_exit(0); /* while the other waits */
		nap(2);
		execv(quick[0], quick);
		_exit(1);
	}
	if (child > 0)
		waitpid(child, NULL, 0);
}

int main(int count, char **arguments)
{
	int wanted = count > 1 ? atoi(arguments[1]) : 10,
	    seconds = count > 2 ? atoi(arguments[2]) : 1;
	pthread_attr_t small;
	pthread_t thread;
	long made = 0, children = 0, short_lived = 0;
	time_t until;
	char line[8];

	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, 64 << 10);
	pthread_attr_setdetachstate(&small, PTHREAD_CREATE_DETACHED);
	fprintf(stderr, "ready\n");
	if (!fgets(line, sizeof(line), stdin))
		return 1;
	for (; made < wanted; made++)
		if (pthread_create(&thread, &small, waits, (void *)made))
			break;
	until = time(NULL) + seconds;
	while (time(NULL) < until) {
		breed();
		children++;
		if (!pthread_create(&thread, &small, ends, NULL))
			short_lived++;
	}
	printf("threads %ld 0\nchildren %ld 0\nshort_lived %ld 0\ndone 0 0\n", made, children,
	       short_lived);
	fflush(stdout);
	fgets(line, sizeof(line), stdin);
	over = 1;
	return 0;
}
