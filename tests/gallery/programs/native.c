// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Programs of the gallery without Python: native NAME FOLDER. Steps of some 30 ms of work, and what the name says in
 * every fifth. Compiled by tests/gallery/run.py.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define STEPS 40
#define EVERY 5
#define BYTES (60 << 20)

static char *state;
static const char *folder;
static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
static volatile double sink;

static void pause_ms(long ms)
{
	struct timespec time = { .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000 };

	nanosleep(&time, NULL);
}

static double cpu_s(void)
{
	struct timespec now;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

__attribute__((noinline)) void compute(void)
{
	double until = cpu_s() + 0.03;

	while (cpu_s() < until)
		for (int i = 0; i < 10000; i++)
			sink += i * 0.5;
}

__attribute__((noinline)) void save_state(void)
{
	char path[4096];
	int file;

	snprintf(path, sizeof(path), "%s/state.bin", folder);
	file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
	if (file < 0 || write(file, state, BYTES) < 0)
		abort();
	close(file);
}

__attribute__((noinline)) void *compact(void *unused)
{
	for (;;) {
		pthread_mutex_lock(&guard);
		pause_ms(200);
		pthread_mutex_unlock(&guard);
		pause_ms(300);
	}
	return unused;
}

__attribute__((noinline)) void update_index(void)
{
	pthread_mutex_lock(&guard);
	pthread_mutex_unlock(&guard);
}

int main(int count, char **arguments)
{
	const char *name = count > 2 ? arguments[1] : "";
	int writes = !strcmp(name, "native_write"), locks = !strcmp(name, "native_lock");
	pthread_t other;

	folder = count > 2 ? arguments[2] : ".";
	state = calloc(1, BYTES);
	if (!state || (locks && pthread_create(&other, NULL, compact, NULL)))
		return 1;
	memset(state, 1, BYTES);
	for (int step = 0; step < STEPS; step++) {
		compute();
		pause_ms(10);
		if (writes && step % EVERY == EVERY - 1)
			save_state();
		if (locks)
			update_index();
	}
	return 0;
}
