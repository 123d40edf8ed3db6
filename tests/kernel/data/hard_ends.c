/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ends of calls, threads and programs that no call expects. All of CUDA is in the program, so that what happens
 * inside a call is ours to say.
 *
 *   storm FILE THREADS   calls without end; FILE is counters, begun and returned, of each thread
 *   threads HOW N        N threads, each left in the middle of its second call; then N whole calls
 *   exec                 the program is executed anew in the middle of a call, and makes 7 calls
 *   fork                 a child comes into being in the middle of a call; it makes 7, its parent 11
 *   numbers N            N threads that all have the number of the first, see ns_last_pid in proc(5)
 *   held N               N processes of one number; each is killed while it holds 1 MiB
 *   short N              N threads of one call
 *   graphs               graphs of 3 and of 1 node at one address, and a copy of the latter, are launched
 *
 * Each waits for a line on standard input first, after "ready".
 */
#define _GNU_SOURCE /* gettid() */
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define CALLED __attribute__((noipa)) /* whatever the compiler could know of it */

static __thread void (*in_the_middle)(void);

CALLED int cudaDeviceSynchronize(void)
{
	void (*leave)(void) = in_the_middle;

	in_the_middle = NULL;
	if (leave)
		leave();
	return 0;
}

/* The kernel puts no probe on an instruction with a lock, so that this one must not begin with it. */
CALLED int cudaMalloc(void **pointer, size_t bytes)
{
	static uintptr_t next = 1 << 20;

	*pointer = (void *)next;
	next += bytes;
	return 0;
}

CALLED int cudaGraphCreate(void **graph, unsigned int flags)
{
	*graph = (void *)0x7000;
	return flags != 0;
}

CALLED int cudaGraphAddEmptyNode(void **node, void *graph)
{
	*node = graph;
	return graph == NULL;
}

CALLED int cudaGraphClone(void **clone, void *graph)
{
	*clone = (void *)0x9000;
	return graph == NULL;
}

CALLED int cudaGraphInstantiate(void **executable, void *graph, unsigned long long flags)
{
	*executable = (void *)0x8000;
	return graph == NULL || flags != 0;
}

CALLED int cudaGraphLaunch(void *executable, void *stream)
{
	return executable == stream;
}

static void leave_by_pthread_exit(void)
{
	pthread_exit(NULL);
}

static void leave_by_exit(void)
{
	syscall(SYS_exit, 0);
}

static __thread jmp_buf before;

static void leave_by_longjmp(void)
{
	longjmp(before, 1);
}

static void must(int failed)
{
	if (failed) {
		perror("hard_ends");
		exit(2);
	}
}

static void run_thread(void *(*body)(void *), void *argument)
{
	pthread_t thread;

	must(pthread_create(&thread, NULL, body, argument));
	must(pthread_join(thread, NULL));
}

/* -- storm -- */

static struct counted {
	_Atomic unsigned long begun, returned;
} * storms;

static void *storm(void *argument)
{
	struct counted *mine = argument;

	for (;;) {
		mine->begun++;
		cudaDeviceSynchronize();
		mine->returned++;
	}
	return NULL;
}

static void storm_all(const char *path, int threads)
{
	int file = open(path, O_RDWR | O_CREAT, 0644);
	size_t bytes = threads * sizeof(*storms);
	pthread_t thread;

	must(file < 0 || ftruncate(file, bytes));
	storms = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	must(storms == MAP_FAILED);
	for (int i = 0; i < threads; i++)
		must(pthread_create(&thread, NULL, storm, &storms[i]));
	for (;;)
		pause();
}

/* -- threads -- */

static void *leave(void *how)
{
	if (setjmp(before))
		return NULL;
	cudaDeviceSynchronize();
	in_the_middle = (void (*)(void))how;
	cudaDeviceSynchronize();
	return NULL;
}

static void *call_once(void *argument)
{
	cudaDeviceSynchronize();
	return argument;
}

static void leave_threads(const char *how, int count)
{
	void (*leaving)(void) = strcmp(how, "exit") == 0      ? leave_by_exit
				: strcmp(how, "longjmp") == 0 ? leave_by_longjmp
							      : leave_by_pthread_exit;

	for (int i = 0; i < count; i++)
		run_thread(leave, (void *)leaving);
	for (int i = 0; i < count; i++)
		run_thread(call_once, NULL);
}

/* -- exec, fork -- */

static char *self;

static void execute_anew(void)
{
	execl(self, self, "anew", (char *)NULL);
}

static void call(int times)
{
	while (times--)
		cudaDeviceSynchronize();
}

static pid_t forked;

static void become_two(void)
{
	forked = fork();
	must(forked < 0);
}

/* -- numbers -- */

static void next_number(pid_t number)
{
	char text[16];
	int file = open("/proc/sys/kernel/ns_last_pid", O_WRONLY);
	int length = snprintf(text, sizeof(text), "%d", number - 1);

	must(file < 0 || write(file, text, length) != length);
	close(file);
}

static void *say_number(void *left)
{
	pid_t number = gettid();

	printf("%d\n", number);
	cudaDeviceSynchronize();
	if (left)
		in_the_middle = leave_by_exit;
	cudaDeviceSynchronize();
	return NULL;
}

static void *hold(void *argument)
{
	return argument;
}

static void same_numbers(int count)
{
	pid_t number = getpid() + 1000;

	for (int i = 0; i < count; i++) {
		next_number(number);
		run_thread(say_number, i % 2 ? "left" : NULL);
	}
}

static void held_in_turn(int count)
{
	pid_t number = getpid() + 1000, child;
	void *pointer;

	for (int i = 0; i < count; i++) {
		next_number(number);
		child = fork();
		must(child < 0);
		if (!child) {
			for (int mine = 0; mine <= i; mine++)
				cudaMalloc(&pointer, 1 << 20);
			usleep(100000); /* to be looked at */
			kill(getpid(), SIGKILL);
		}
		must(child != number);
		waitpid(child, NULL, 0);
		usleep(100000);
	}
	printf("%d\n", number);
}

static void *graph, *made;

static void launch(void *which)
{
	cudaGraphInstantiate(&made, which, 0);
	cudaGraphLaunch(made, NULL);
}

static void make_graphs(void)
{
	for (int nodes = 3; nodes > 0; nodes -= 2) {
		cudaGraphCreate(&graph, 0);
		for (int i = 0; i < nodes; i++)
			cudaGraphAddEmptyNode(&made, graph);
		launch(graph);
	}
	cudaGraphClone(&graph, graph);
	launch(graph);
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	char line[16];

	self = argv[0];
	if (strcmp(what, "anew") == 0) {
		call(7);
		return 0;
	}
	fputs("ready\n", stderr);
	if (!fgets(line, sizeof(line), stdin))
		return 1;
	setvbuf(stdout, NULL, _IOLBF, 0);
	run_thread(hold, NULL); /* loads what ending a thread needs */
	if (strcmp(what, "storm") == 0 && argc > 3) {
		storm_all(argv[2], atoi(argv[3]));
	} else if (strcmp(what, "threads") == 0 && argc > 3) {
		leave_threads(argv[2], atoi(argv[3]));
	} else if (strcmp(what, "exec") == 0) {
		in_the_middle = execute_anew;
		call(1);
	} else if (strcmp(what, "fork") == 0) {
		in_the_middle = become_two;
		call(1);
		call(forked ? 11 : 7);
		if (forked)
			waitpid(forked, NULL, 0);
	} else if (strcmp(what, "numbers") == 0 && argc > 2) {
		same_numbers(atoi(argv[2]));
	} else if (strcmp(what, "held") == 0 && argc > 2) {
		held_in_turn(atoi(argv[2]));
	} else if (strcmp(what, "short") == 0 && argc > 2) {
		for (int i = 0; i < atoi(argv[2]); i++)
			run_thread(call_once, NULL);
	} else if (strcmp(what, "graphs") == 0) {
		make_graphs();
	} else {
		return 2;
	}
	return 0;
}
