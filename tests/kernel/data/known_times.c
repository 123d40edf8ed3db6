/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * A program whose functions know how long they took. `known_times PART`: says "ready", waits for a line, does its
 * part, and writes for each function a line `name calls nanoseconds`; it ends at the next line or at the end of input.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MILLISECOND 1000000LL

static long long now(clockid_t clock)
{
	struct timespec at;

	clock_gettime(clock, &at);
	return at.tv_sec * 1000 * MILLISECOND + at.tv_nsec;
}

static void nap(long long ns)
{
	struct timespec time = { .tv_nsec = ns };

	nanosleep(&time, NULL);
}

static pthread_mutex_t reporting = PTHREAD_MUTEX_INITIALIZER;

static void report(const char *name, long long calls, long long ns)
{
	pthread_mutex_lock(&reporting);
	printf("%s %lld %lld\n", name, calls, ns);
	pthread_mutex_unlock(&reporting);
}

/* -- on a CPU ----------------------------------------------------------------------------------------- */

static volatile unsigned long sink;

#define BURNS(name)                                                        \
	__attribute__((noinline)) static long long name(long long ns)      \
	{                                                                  \
		long long begin = now(CLOCK_THREAD_CPUTIME_ID), end;       \
		do                                                         \
			for (int i = 0; i < 2000; i++)                     \
				sink += i;                                 \
		while ((end = now(CLOCK_THREAD_CPUTIME_ID)) - begin < ns); \
		return end - begin;                                        \
	}

BURNS(burns_sixty)
BURNS(burns_thirty)
BURNS(burns_ten)

/* Turns are of no one length: the clock that samples must not keep step with them. */
static void *burns(void *seed)
{
	unsigned int random = (unsigned int)(long)seed;
	long long sixty = 0, thirty = 0, ten = 0;

	while (sixty + thirty + ten < 2500 * MILLISECOND) {
		long long part = MILLISECOND / 2 + rand_r(&random) % MILLISECOND;

		sixty += burns_sixty(6 * part);
		thirty += burns_thirty(3 * part);
		ten += burns_ten(part);
	}
	report("burns_sixty", 1, sixty);
	report("burns_thirty", 1, thirty);
	report("burns_ten", 1, ten);
	return NULL;
}

static void cpu(void)
{
	pthread_t threads[2];

	for (long i = 0; i < 2; i++)
		pthread_create(&threads[i], NULL, burns, (void *)(i + 1));
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
}

/* -- waits -------------------------------------------------------------------------------------------- */

#define NAPS  10
#define TURNS 6
#define BYTES 8

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_barrier_t held;
static int ends[2];

static volatile int slept;

/* Whom the clocks that end sleeps come upon. */
static void *spins(void *unused)
{
	while (!slept)
		sink++;
	return unused;
}

__attribute__((noinline)) static void sleeps(void)
{
	long long begin = now(CLOCK_MONOTONIC);

	for (int i = 0; i < NAPS; i++)
		nap(20 * MILLISECOND);
	report("sleeps", NAPS, now(CLOCK_MONOTONIC) - begin);
}

__attribute__((noinline)) static void lets_sleep_among_others(void)
{
	pthread_t threads[2];

	for (int i = 0; i < 2; i++)
		pthread_create(&threads[i], NULL, spins, NULL);
	sleeps();
	slept = 1;
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
}

__attribute__((noinline)) static void takes_lock(void)
{
	pthread_mutex_lock(&lock);
}

static void *waits_for_lock(void *unused)
{
	long long waited = 0;

	pthread_setname_np(pthread_self(), "waiter");
	for (int i = 0; i < TURNS; i++) {
		long long begin;

		pthread_barrier_wait(&held);
		begin = now(CLOCK_MONOTONIC);
		takes_lock();
		waited += now(CLOCK_MONOTONIC) - begin;
		pthread_mutex_unlock(&lock);
		pthread_barrier_wait(&held);
	}
	report("takes_lock", TURNS, waited);
	return unused;
}

__attribute__((noinline)) static void hands_lock_over(void)
{
	pthread_mutex_unlock(&lock);
}

__attribute__((noinline)) static void holds_lock(void)
{
	for (int i = 0; i < TURNS; i++) {
		pthread_mutex_lock(&lock);
		pthread_barrier_wait(&held);
		nap(30 * MILLISECOND);
		hands_lock_over();
		pthread_barrier_wait(&held);
	}
}

__attribute__((noinline)) static void *reads_pipe(void *unused)
{
	long long waited = 0, reads = 0;
	char byte;

	pthread_setname_np(pthread_self(), "reader");
	for (;;) {
		long long begin = now(CLOCK_MONOTONIC);

		if (read(ends[0], &byte, 1) != 1)
			break;
		waited += now(CLOCK_MONOTONIC) - begin;
		reads++;
	}
	report("reads_pipe", reads, waited);
	return unused;
}

__attribute__((noinline)) static void writes_pipe(void)
{
	for (int i = 0; i < BYTES; i++) {
		nap(15 * MILLISECOND);
		if (write(ends[1], "x", 1) != 1)
			abort();
	}
}

static void waits(void)
{
	pthread_t waiter, reader;

	lets_sleep_among_others();
	pthread_barrier_init(&held, NULL, 2);
	pthread_create(&waiter, NULL, waits_for_lock, NULL);
	holds_lock();
	pthread_join(waiter, NULL);
	if (pipe(ends))
		abort();
	pthread_create(&reader, NULL, reads_pipe, NULL);
	writes_pipe();
	close(ends[1]);
	pthread_join(reader, NULL);
}

/* It waits for what never comes, until the process ends. */
__attribute__((noinline)) static void *waits_for_ever(void *unused)
{
	pthread_setname_np(pthread_self(), "forever");
	for (;;)
		pause();
	return unused;
}

static void forever(void)
{
	pthread_t thread;

	pthread_create(&thread, NULL, waits_for_ever, NULL);
	nap(50 * MILLISECOND);
}

/* -- system calls ------------------------------------------------------------------------------------- */

#define QUICK 20000
#define SLOW  15

__attribute__((noinline)) static void asks_often(void)
{
	long long begin = now(CLOCK_MONOTONIC);

	for (int i = 0; i < QUICK; i++)
		syscall(SYS_getppid);
	report("asks_often", QUICK, now(CLOCK_MONOTONIC) - begin);
}

__attribute__((noinline)) static void sleeps_in_calls(void)
{
	struct timespec time = { .tv_nsec = 4 * MILLISECOND };
	long long begin = now(CLOCK_MONOTONIC);

	for (int i = 0; i < SLOW; i++)
		syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &time, NULL);
	report("sleeps_in_calls", SLOW, now(CLOCK_MONOTONIC) - begin);
}

static void *asks(void *unused)
{
	asks_often();
	return unused;
}

static void calls(void)
{
	pthread_t thread;

	pthread_create(&thread, NULL, asks, NULL);
	asks_often();
	pthread_join(thread, NULL);
	sleeps_in_calls();
	syscall(1000000); /* there is none */
	syscall(-1);
}

/* -- files and devices -------------------------------------------------------------------------------- */

#define CHECKPOINT (50 << 20)
#define REQUESTS   32
#define REQUEST	   (64 << 10)

__attribute__((noinline)) static void saves(const char *path)
{
	int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0600);
	char *bytes = malloc(CHECKPOINT);
	long long begin;

	memset(bytes, 1, CHECKPOINT);
	begin = now(CLOCK_MONOTONIC);
	if (write(fd, bytes, CHECKPOINT) != CHECKPOINT)
		abort();
	report("write", CHECKPOINT, now(CLOCK_MONOTONIC) - begin);
	begin = now(CLOCK_MONOTONIC);
	if (fsync(fd))
		abort();
	report("fsync", 0, now(CLOCK_MONOTONIC) - begin);
	close(fd);
}

/* Written once before, so that its blocks are there; now each write is a request, which is waited for. */
__attribute__((noinline)) static void writes_through(const char *path)
{
	int fd = open(path, O_WRONLY | O_DIRECT | O_DSYNC);
	long long begin;
	void *bytes;

	if (fd < 0 || posix_memalign(&bytes, 4096, REQUEST))
		abort();
	memset(bytes, 2, REQUEST);
	begin = now(CLOCK_MONOTONIC);
	for (int i = 0; i < REQUESTS; i++)
		if (pwrite(fd, bytes, REQUEST, (long)i * REQUEST) != REQUEST)
			abort();
	report("writes_through", REQUESTS, now(CLOCK_MONOTONIC) - begin);
	close(fd);
}

int main(int count, char **arguments)
{
	const char *part = arguments[1], *path = count > 2 ? arguments[2] : "";
	char line[8];

	fprintf(stderr, "ready\n");
	if (!fgets(line, sizeof(line), stdin))
		return 1;
	if (!strcmp(part, "cpu"))
		cpu();
	else if (!strcmp(part, "waits"))
		waits();
	else if (!strcmp(part, "forever"))
		forever();
	else if (!strcmp(part, "calls"))
		calls();
	else if (!strcmp(part, "saves"))
		saves(path);
	else
		writes_through(path);
	report("done", 0, 0);
	fflush(stdout);
	fgets(line, sizeof(line), stdin);
	return 0;
}
