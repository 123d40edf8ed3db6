// SPDX-License-Identifier: Apache-2.0
/*
 * Programs that are easily harmed by who stops a thread of theirs and calls something in it. Each checks what it does
 * itself: on SIGTERM it says how often, and exits with 0; with 3 as soon as something is not as it must be.
 *
 *   busy MODE    threads, malloc, signals, forks, waits, numbers
 */
#define _GNU_SOURCE
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <linux/futex.h>
#include <time.h>
#include <unistd.h>

static volatile sig_atomic_t stop;
static unsigned long done;

static void ask_to_stop(int number)
{
	(void)number;
	stop = 1;
}

static void wrong(const char *what)
{
	if (stop && errno == EINTR)
		return; /* by SIGTERM itself */
	dprintf(2, "busy: %s: %s\n", what, strerror(errno));
	_exit(3);
}

static double now_s(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void one_more(void)
{
	__atomic_add_fetch(&done, 1, __ATOMIC_RELAXED);
}

/* Keeps vectors, callee-saved registers and the red zone busy: a leaf that the compiler may not take apart. */
static __attribute__((noinline)) double compute(unsigned int rounds, double seed)
{
	double a[8];

	for (int i = 0; i < 8; i++)
		a[i] = seed + i;
	__asm__ volatile("" : : : "memory"); /* it is computed each time, though it is the same */
	for (unsigned int r = 0; r < rounds; r++)
		for (int i = 0; i < 8; i++)
			a[i] = a[i] * 1.0000001 + (double)(r & 7);
	return a[0] + a[1] + a[2] + a[3] + a[4] + a[5] + a[6] + a[7];
}

static void *numbers(void *unused)
{
	double expected = compute(200000, 1.5);

	(void)unused;
	while (!stop) {
		if (compute(200000, 1.5) != expected)
			wrong("a sum is another");
		one_more();
	}
	return NULL;
}

static void *mallocs(void *unused)
{
	unsigned int seed = (unsigned int)(uintptr_t)pthread_self();
	unsigned char *kept[64] = { 0 };
	size_t sizes[64] = { 0 };

	(void)unused;
	while (!stop) {
		unsigned int at = (unsigned int)rand_r(&seed) % 64;

		for (size_t i = 0; i < sizes[at]; i += 97)
			if (kept[at][i] != (unsigned char)at)
				wrong("memory has changed");
		free(kept[at]);
		sizes[at] = 1 + (size_t)rand_r(&seed) % 70000;
		kept[at] = malloc(sizes[at]);
		if (!kept[at])
			wrong("malloc");
		memset(kept[at], (int)at, sizes[at]);
		one_more();
	}
	return NULL;
}

static void *little(void *unused)
{
	(void)unused;
	while (!stop) {
		struct timespec pause = { .tv_nsec = 20000000 };

		if (compute(2000, 0.5) != compute(2000, 0.5))
			wrong("a sum is another");
		if (nanosleep(&pause, NULL) && !stop)
			wrong("nanosleep");
		one_more();
	}
	return NULL;
}

/* -- System calls that wait ---------------------------------------------------------------- */

static int pipes[2], events;

static void *sleeps(void *unused)
{
	(void)unused;
	while (!stop) {
		struct timespec pause = { .tv_nsec = 400000000 };
		double began = now_s(), took;

		if (nanosleep(&pause, NULL))
			wrong("nanosleep");
		took = now_s() - began;
		if (took < 0.4)
			wrong("slept for too short");
		one_more();
	}
	return NULL;
}

static void *polls(void *unused)
{
	(void)unused;
	while (!stop) {
		double began = now_s();

		if (poll(NULL, 0, 300))
			wrong("poll");
		if (now_s() - began < 0.299)
			wrong("polled for too short");
		one_more();
	}
	return NULL;
}

static void *epolls(void *unused)
{
	struct epoll_event got;

	(void)unused;
	while (!stop) {
		if (epoll_wait(events, &got, 1, 250))
			wrong("epoll_wait");
		one_more();
	}
	return NULL;
}

static void *futexes(void *unused)
{
	static uint32_t word;
	struct timespec limit = { .tv_nsec = 350000000 };

	(void)unused;
	while (!stop) {
		if (syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, &limit, NULL, 0) != -1 ||
		    errno != ETIMEDOUT)
			wrong("futex");
		one_more();
	}
	return NULL;
}

static void *reads(void *unused)
{
	char byte;

	(void)unused;
	while (!stop) {
		if (read(pipes[0], &byte, 1) != 1 || byte != 'x')
			wrong("read");
		one_more();
	}
	return NULL;
}

static void *writes(void *unused)
{
	(void)unused;
	while (!stop) {
		struct timespec pause = { .tv_nsec = 150000000 };

		if (nanosleep(&pause, NULL) || write(pipes[1], "x", 1) != 1)
			wrong("write");
	}
	return NULL;
}

/* -- Signals and forks --------------------------------------------------------------------- */

static void handler(int number)
{
	double seed = number;
	volatile char room[512];

	memset((char *)room, number, sizeof(room));
	if (compute(200, seed) != compute(200, seed))
		wrong("a sum in a handler is another");
	one_more();
}

static void *kicks(void *other)
{
	while (!stop) {
		struct timespec pause = { .tv_nsec = 300000 };

		clock_nanosleep(CLOCK_MONOTONIC, 0, &pause, NULL);
		pthread_kill(*(pthread_t *)other, SIGUSR1);
	}
	return NULL;
}

static void *forks(void *unused)
{
	(void)unused;
	while (!stop) {
		pid_t child = fork();
		int status;

		if (!child)
			_exit(malloc(1000) ? 7 : 8);
		if (child < 0)
			wrong("fork");
		while (waitpid(child, &status, 0) < 0)
			if (errno != EINTR)
				wrong("waitpid");
		if (!WIFEXITED(status) || WEXITSTATUS(status) != 7)
			wrong("a child by fork ended otherwise");
		child = vfork();
		if (!child) {
			execl("/bin/true", "true", NULL);
			_exit(9);
		}
		if (child < 0)
			wrong("vfork");
		while (waitpid(child, &status, 0) < 0)
			if (errno != EINTR)
				wrong("waitpid");
		if (!WIFEXITED(status) || WEXITSTATUS(status))
			wrong("a child by vfork ended otherwise");
		one_more();
	}
	return NULL;
}

static void start(int count, void *(*function)(void *), void *argument)
{
	while (count--) {
		pthread_attr_t small;
		pthread_t made;

		pthread_attr_init(&small);
		pthread_attr_setstacksize(&small, 256 << 10);
		if (pthread_create(&made, &small, function, argument))
			wrong("pthread_create");
	}
}

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "";
	struct sigaction act = { .sa_handler = handler, .sa_flags = SA_RESTART };
	void *(*own)(void *) = little;
	static pthread_t self;

	signal(SIGTERM, ask_to_stop);
	self = pthread_self();
	sigaction(SIGUSR1, &act, NULL);
	events = epoll_create1(0);
	if (events < 0 || pipe(pipes))
		wrong("descriptors");
	if (!strcmp(mode, "threads")) {
		start(99, little, NULL);
	} else if (!strcmp(mode, "malloc")) {
		start(3, mallocs, NULL);
		own = mallocs;
	} else if (!strcmp(mode, "signals")) {
		start(1, kicks, &self);
		own = numbers;
	} else if (!strcmp(mode, "forks")) {
		own = forks;
	} else if (!strcmp(mode, "waits")) {
		start(1, polls, NULL);
		start(1, epolls, NULL);
		start(1, futexes, NULL);
		start(1, reads, NULL);
		start(1, writes, NULL);
		own = sleeps;
	} else if (!strcmp(mode, "numbers")) {
		own = numbers;
	} else {
		return 2;
	}
	printf("ready\n");
	fflush(stdout);
	own(NULL);
	printf("%lu\n", done);
	fflush(stdout);
	_exit(0);
}
