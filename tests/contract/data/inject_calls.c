// SPDX-License-Identifier: Apache-2.0
/*
 * Calls of the CUDA API in ways that are hard on an interposer. Commands, one an argument, are done in order:
 *
 *   calls:N           cudaFree(NULL) so often
 *   threads:T:N       T threads, each of them so often; their stacks are the smallest there are
 *   born:T            T threads one after the other, each one call
 *   fork:N            a child by fork() makes N calls and exits, after the parent made one before and after it
 *   clone:N           the same by the system call, which runs no handlers
 *   inside:N          a child by fork() inside a call, which it returns from before it makes N
 *   vfork             a child by vfork() makes a call and ends by _exit()
 *   exec:PATH:…       replaces itself, with the rest as arguments, after one call
 *   arguments         checks that arguments, results and errno arrive
 *   jump:N            leaves a call by longjmp, then makes N calls from deeper in the stack
 *   copies:A:B        dlopens two copies with RTLD_LOCAL, calls cudaFree of each, and of the linked one
 *   unload:A          dlopens, calls, dlcloses it twice
 *   next              asks dlsym(RTLD_NEXT), dlsym(RTLD_DEFAULT) and dlvsym for functions
 *   wait:MS           sleeps
 *   signals           a timer's handler makes calls meanwhile, so that they land within others
 *   held:N            call number N of those below, while the lock of malloc() is held, as by what a handler interrupted
 *   held_thread:N     the same, on a thread of its own
 *   held_child:N      the same, in a child by fork() of a process whose other thread has the linker's list locked
 *   loading:A         a thread dlopens; while that library's constructor runs, calls are made
 *
 * Prints {"calls": made, "pids": [all that made any]} at the end; exits with 3 when something is not as it is
 * without the interposer.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <link.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

struct handle {
	char bytes[64];
};
int cudaFree(void *pointer);
int cudaMalloc(void **pointer, size_t size);
int cudaIpcOpenMemHandle(void **pointer, struct handle handle, unsigned int flags);
int cudaMemcpy(void) __attribute__((weak)); /* which nobody defines */
extern void (*in_free)(void), (*in_load)(void);

static long made;
static pid_t pids[64];
static int pid_count;

static void check(int holds, const char *what)
{
	if (holds)
		return;
	fprintf(stderr, "not as it should be: %s\n", what);
	exit(3);
}

/* One place of a call, whoever makes it. */
static __attribute__((noipa)) void call(long times)
{
	for (long i = 0; i < times; i++)
		cudaFree(NULL);
	__atomic_fetch_add(&made, times, __ATOMIC_RELAXED);
}

static void *call_in_thread(void *times)
{
	call((long)times);
	return NULL;
}

static void run_threads(long threads, long times)
{
	pthread_t started[64];
	pthread_attr_t attributes;

	pthread_attr_init(&attributes);
	pthread_attr_setstacksize(&attributes, PTHREAD_STACK_MIN);
	for (long i = 0; i < threads; i++)
		check(!pthread_create(&started[i], &attributes, call_in_thread, (void *)times),
		      "pthread_create");
	for (long i = 0; i < threads; i++)
		pthread_join(started[i], NULL);
}

static void be_parent(pid_t child, long times)
{
	int status;

	check(child > 0, "a child");
	pids[pid_count++] = child;
	call(1);
	check(waitpid(child, &status, 0) == child && status == 0, "the child's end");
	made += times;
}

static void run_child(int raw, long times)
{
	pid_t child;

	call(1);
	child = raw ? (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : fork();
	if (child == 0) {
		for (long i = 0; i < times; i++)
			cudaFree(NULL);
		_exit(0);
	}
	be_parent(child, times);
}

static pid_t forked;

static void fork_now(void)
{
	in_free = NULL;
	forked = fork();
}

static void fork_inside(long times)
{
	in_free = fork_now;
	cudaFree(NULL);
	if (forked == 0) {
		for (long i = 0; i < times; i++)
			cudaFree(NULL);
		_exit(0);
	}
	made++;
	be_parent(forked, times);
}

static void run_vfork(void)
{
	pid_t child = vfork();

	if (child == 0) {
		cudaFree(NULL);
		_exit(0);
	}
	check(child > 0 && waitpid(child, NULL, 0) == child, "vfork");
	made++;
}

static void check_arguments(void)
{
	struct handle handle;
	unsigned int sum = 7;
	void *pointer = NULL;

	for (size_t i = 0; i < sizeof(handle); i++) {
		handle.bytes[i] = (char)(i * 3);
		sum += (unsigned int)handle.bytes[i] * (unsigned int)(i + 1);
	}
	check(cudaIpcOpenMemHandle(&pointer, handle, 7) == 0, "the result");
	check((size_t)pointer == sum, "64 bytes on the stack");
	errno = 0;
	check(cudaMalloc(&pointer, 4711) == 0 && (size_t)pointer == 4711,
	      "what a pointer points at");
	check(errno == ERANGE, "errno");
	made += 2;
}

static jmp_buf back;

static void jump(void)
{
	in_free = NULL;
	longjmp(back, 1);
}

/* In a frame that lies deeper than the one that was left. */
static __attribute__((noipa)) void call_deeper(long times)
{
	volatile char room[4096];

	room[0] = room[sizeof(room) - 1] = 0;
	call(times);
}

static void leave_by_jump(long times)
{
	if (!setjmp(back)) {
		in_free = jump;
		cudaFree(NULL);
		check(0, "longjmp");
	}
	cudaFree(NULL); /* from here, where the abandoned call has been made: so it is noticed */
	made++;
	call_deeper(times);
}

static void call_copies(char *paths)
{
	char *second = strchr(paths, ':');
	void *copies[2];
	int (*free_of[2])(void *);

	*second++ = 0;
	copies[0] = dlopen(paths, RTLD_NOW | RTLD_LOCAL);
	copies[1] = dlopen(second, RTLD_NOW | RTLD_LOCAL);
	for (int i = 0; i < 2; i++) {
		check(copies[i] != NULL, "dlopen");
		free_of[i] = (int (*)(void *))dlsym(copies[i], "cudaFree");
		check(free_of[i](NULL) == i + 1, "each copy's own function");
		made++;
	}
	check(free_of[0](NULL) == 1 && cudaFree(NULL) == 0, "each copy's own function, again");
	made += 2;
}

static void load_and_unload(const char *path)
{
	for (int i = 0; i < 2; i++) {
		void *copy = dlopen(path, RTLD_NOW | RTLD_LOCAL);
		int (*free_of)(void *) = (int (*)(void *))dlsym(copy, "cudaFree");

		check(free_of(NULL) == 1, "a copy that is loaded for a while");
		made++;
		check(dlclose(copy) == 0, "dlclose");
		check(!dlopen(path, RTLD_NOW | RTLD_NOLOAD), "the library is gone");
	}
}

static void ask_the_linker(void)
{
	int (*next)(void *) = (int (*)(void *))dlsym(RTLD_NEXT, "cudaFree");
	int (*any)(void *) = (int (*)(void *))dlsym(RTLD_DEFAULT, "cudaFree");

	check(next && next(NULL) == 0 && any && any(NULL) == 0, "RTLD_NEXT and RTLD_DEFAULT");
	made += 2;
	dlerror();
	check(!dlsym(RTLD_DEFAULT, "cudaMemcpy") && dlerror(), "what nobody defines is not found");
	check(!dlvsym(RTLD_DEFAULT, "cudaFree", "nonesuch"), "a version that nobody has");
	check(dlvsym(RTLD_DEFAULT, "printf", "GLIBC_2.2.5") != NULL, "dlvsym");
	check(dlsym(RTLD_DEFAULT, "made_up_name") == NULL && dlerror(), "dlerror");
}

static void in_handler(int number)
{
	(void)number;
	cudaFree(NULL);
}

static void call_under_signals(void)
{
	struct itimerval every = { { 0, 300 }, { 0, 300 } }, never = { { 0, 0 }, { 0, 0 } };

	signal(SIGALRM, in_handler);
	setitimer(ITIMER_REAL, &every, NULL);
	call(200000);
	setitimer(ITIMER_REAL, &never, NULL);
}

/* -- While locks are held ----------------------------------------------------------------- */

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *memory, size_t size);
void __libc_free(void *memory);

static volatile int malloc_is_held;

/* Whoever comes here now would wait for ever. */
static void take_malloc_lock(void)
{
	static const char what[] = "the lock of malloc() is waited for\n";

	if (malloc_is_held && write(STDERR_FILENO, what, sizeof(what) - 1))
		_exit(3);
}

void *malloc(size_t size)
{
	take_malloc_lock();
	return __libc_malloc(size);
}

void *calloc(size_t count, size_t size)
{
	take_malloc_lock();
	return __libc_calloc(count, size);
}

void *realloc(void *memory, size_t size)
{
	take_malloc_lock();
	return __libc_realloc(memory, size);
}

void free(void *memory)
{
	take_malloc_lock();
	__libc_free(memory);
}

/* The first call from a place is another matter than those that follow. Each of these is such a place. */
static void call_held(long number)
{
	void *pointer;

	malloc_is_held = 1;
	if (number == 0)
		made += cudaFree(NULL) == 0;
	else if (number == 1)
		made += cudaMalloc(&pointer, 5) == 0;
	else
		cudaMemcpy(); /* which nobody defines: the interposer says that it is there */
	malloc_is_held = 0;
}

static void *call_held_in_thread(void *number)
{
	call_held((long)number);
	return NULL;
}

static int list_is_locked;

static int hold_list(struct dl_phdr_info *info, size_t size, void *data)
{
	(void)info, (void)size, (void)data;
	__atomic_store_n(&list_is_locked, 1, __ATOMIC_RELEASE);
	for (;;)
		pause();
	return 1;
}

static void *lock_list(void *unused)
{
	dl_iterate_phdr(hold_list, unused);
	return NULL;
}

static void call_held_in_child(long number)
{
	pthread_t holder;
	pid_t child;

	call(1); /* the first of the parent must be over: it waits for the list */
	check(!pthread_create(&holder, NULL, lock_list, NULL), "pthread_create");
	while (!__atomic_load_n(&list_is_locked, __ATOMIC_ACQUIRE))
		usleep(100);
	child = fork();
	if (child == 0) {
		alarm(5);
		call_held(number);
		_exit(0);
	}
	be_parent(child, 1);
	_exit(puts("{}") < 0 || fflush(stdout)); /* the list stays locked */
}

static int is_loading, was_called;

static void wait_in_load(void)
{
	__atomic_store_n(&is_loading, 1, __ATOMIC_RELEASE);
	for (int i = 0; i < 5000 && !__atomic_load_n(&was_called, __ATOMIC_ACQUIRE); i++)
		usleep(1000);
	check(was_called, "a call during a dlopen");
}

static void *load(void *path)
{
	return dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

static void call_while_loading(char *path)
{
	pthread_t loader;

	in_load = wait_in_load;
	check(!pthread_create(&loader, NULL, load, path), "pthread_create");
	while (!__atomic_load_n(&is_loading, __ATOMIC_ACQUIRE))
		usleep(100);
	made += cudaFree(NULL) == 0; /* the first from this place */
	__atomic_store_n(&was_called, 1, __ATOMIC_RELEASE);
	pthread_join(loader, NULL);
}

static void obey(char **arguments)
{
	char *line = *arguments;
	long first = 0, second = 0;

	sscanf(line, "%*[^:]:%ld:%ld", &first, &second);
	if (!strncmp(line, "calls:", 6))
		call(first);
	else if (!strncmp(line, "threads:", 8))
		run_threads(first, second);
	else if (!strncmp(line, "born:", 5))
		for (long i = 0; i < first; i++)
			run_threads(1, 1);
	else if (!strncmp(line, "fork:", 5))
		run_child(0, first);
	else if (!strncmp(line, "clone:", 6))
		run_child(1, first);
	else if (!strncmp(line, "inside:", 7))
		fork_inside(first);
	else if (!strcmp(line, "vfork"))
		run_vfork();
	else if (!strcmp(line, "exec")) {
		call(1);
		execv("/proc/self/exe", arguments);
	} else if (!strcmp(line, "arguments"))
		check_arguments();
	else if (!strncmp(line, "jump:", 5))
		leave_by_jump(first);
	else if (!strncmp(line, "copies:", 7))
		call_copies(line + 7);
	else if (!strncmp(line, "unload:", 7))
		load_and_unload(line + 7);
	else if (!strcmp(line, "next"))
		ask_the_linker();
	else if (!strncmp(line, "wait:", 5))
		usleep((useconds_t)first * 1000);
	else if (!strcmp(line, "signals"))
		call_under_signals();
	else if (!strncmp(line, "held:", 5))
		call_held(first);
	else if (!strncmp(line, "held_thread:", 12)) {
		pthread_t thread;

		check(!pthread_create(&thread, NULL, call_held_in_thread, (void *)first),
		      "pthread_create");
		pthread_join(thread, NULL);
	} else if (!strncmp(line, "held_child:", 11))
		call_held_in_child(first);
	else if (!strncmp(line, "loading:", 8))
		call_while_loading(line + 8);
	else
		check(0, line);
}

int main(int count, char **arguments)
{
	(void)count;
	pids[pid_count++] = getpid();
	for (char **at = arguments + 1; *at; at++)
		obey(at);
	printf("{\"calls\": %ld, \"pids\": [", made);
	for (int i = 0; i < pid_count; i++)
		printf("%s%d", i ? ", " : "", (int)pids[i]);
	printf("]}\n");
	return 0;
}
