// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Programs whose stacks are known, one for each word: built without frame pointers by tests/kernel/test_unwinding.py. */
#define _GNU_SOURCE
#include <alloca.h>
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define APART __attribute__((noinline, noclone))
#define STAY  __asm__ volatile("" ::: "memory") /* what was called returns here: no tail call */

volatile unsigned long sink;

APART void spin(void)
{
	for (int i = 0; i < 200000; i++)
		sink += i * sink;
	STAY;
}

APART int down(int depth)
{
	volatile char room[56];

	room[depth % 56] = depth;
	if (depth)
		down(depth - 1);
	else
		spin();
	STAY;
	return room[depth % 56];
}

/* `stepped` is an instruction that the kernel, where a probe is on it, has executed in a copy. */
APART void step(void)
{
	for (int i = 0; i < 1000; i++)
		__asm__ volatile(
			".globl stepped\n.type stepped, @function\nstepped:\timul $3, %0, %0"
			: "+r"(sink));
	STAY;
}

APART int compare(const void *left, const void *right)
{
	for (int i = 0; i < 50; i++)
		sink += i;
	return *(const int *)left - *(const int *)right;
}

APART void sort_all(void)
{
	static int values[5000];

	for (int i = 0; i < 5000; i++)
		values[i] = rand();
	qsort(values, 5000, sizeof(values[0]), compare);
	STAY;
}

APART void report_time(void)
{
	struct timespec now;

	for (int i = 0; i < 1000; i++)
		clock_gettime(CLOCK_MONOTONIC, &now);
	STAY;
}

APART void calls_out(void)
{
	static char text[64];

	for (int i = 0; i < 1000; i++)
		sink += strtol(text, NULL, 10) + atoi(text);
	STAY;
}

static void on_signal(int number)
{
	(void)number;
	for (int i = 0; i < 5; i++)
		spin();
	STAY;
}

APART void interrupted(void)
{
	for (int i = 0; i < 20000000; i++)
		sink += i;
	STAY;
}

/* Its frame is found by rbp. */
APART void framed(long size)
{
	char *more = alloca(size);

	memset(more, 1, size);
	interrupted();
	sink += more[3];
	STAY;
}

APART void aligned(long size)
{
	char room[128] __attribute__((aligned(64)));
	char *more = alloca(size);

	memset(room, 1, sizeof(room));
	memset(more, 1, size);
	spin();
	sink += room[5] + more[3];
	STAY;
}

APART void *work(void *unused)
{
	(void)unused;
	for (;;)
		down(3);
	return NULL;
}

APART void (*made_code(void))(void (*)(void))
{
	/* push %rbp; mov %rsp,%rbp; call *%rdi; pop %rbp; ret */
	static const unsigned char code[] = { 0x55, 0x48, 0x89, 0xe5, 0xff, 0xd7, 0x5d, 0xc3 };
	void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC,
			  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	memcpy(page, code, sizeof(code));
	return page;
}

APART void through_made(void (*made)(void (*)(void)))
{
	made(spin);
	STAY;
}

/* Its frame is found by rbp, which what it calls leaves alone. */
APART void through_library(long size, void (*through)(void (*)(void)))
{
	char *more = alloca(size);

	memset(more, 1, size);
	through(spin);
	sink += more[3];
	STAY;
}

static void (*library_function(void))(void (*)(void))
{
	void *library = dlopen(getenv("STACKS_LIBRARY"), RTLD_NOW);

	return (void (*)(void (*)(void)))dlsym(library, "through");
}

APART __attribute__((noreturn)) void forever(void)
{
	for (;;)
		spin();
}

/* Its last instruction is a call: the return address is another function's. */
APART void enters_for_good(void)
{
	volatile char room[100];

	room[3] = 1;
	forever();
}

APART void sleeper(void)
{
	usleep(3000);
	STAY;
}

int main(int count, char **words)
{
	const char *word = count > 1 ? words[1] : "";
	struct itimerval often = { { 0, 20000 }, { 0, 20000 } };
	void (*made)(void (*)(void)) = made_code(), (*through)(void (*)(void)) = NULL;
	pthread_t thread;

	if (!strcmp(word, "signals")) {
		signal(SIGALRM, on_signal);
		setitimer(ITIMER_REAL, &often, NULL);
	}
	if (!strcmp(word, "library"))
		through = library_function();
	if (!strcmp(word, "threads"))
		for (int i = 0; i < 3; i++)
			pthread_create(&thread, NULL, work, NULL);
	puts("ready");
	fflush(stdout);
	for (;;) {
		if (!strcmp(word, "recursion"))
			down(20);
		else if (!strcmp(word, "deep"))
			down(400);
		else if (!strcmp(word, "sorting"))
			sort_all();
		else if (!strcmp(word, "steps"))
			step();
		else if (!strcmp(word, "clock"))
			report_time();
		else if (!strcmp(word, "calls"))
			calls_out();
		else if (!strcmp(word, "signals"))
			framed(100);
		else if (!strcmp(word, "aligned"))
			aligned(100);
		else if (!strcmp(word, "made"))
			through_made(made);
		else if (through)
			through_library(100, through);
		else if (!strcmp(word, "last"))
			enters_for_good();
		else if (!strcmp(word, "sleeps"))
			sleeper();
		else
			pause();
		STAY;
	}
}
