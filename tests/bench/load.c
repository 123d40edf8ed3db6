// SPDX-License-Identifier: Apache-2.0
/*
 * What the benchmarks observe. Obeys commands, one per argument or else one per
 * line of standard input, and answers each with one line of JSON:
 *
 *   hello                        process id and the time that main() began
 *   kernels                      the host addresses of the kernels
 *   open PATH                    dlopen one more libcudart; its number (0 is the linked one)
 *   launch LIBRARY CALLS         that many launches, as fast as it goes
 *   pipe CALLS                   that many write() and read() of one byte on a pipe
 *   serve RATE SECONDS CALLS THREADS
 *                                HTTP requests to itself, each of which makes CALLS CUDA calls, RATE
 *                                calls/s in all
 *   wait MS                      do nothing
 */
#include <arpa/inet.h>
#include <dlfcn.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "cuda_runtime_api.h"

#define NS	   1000000000LL
#define LIBRARIES  8
#define THREADS	   64
#define COPY_EVERY 10

/* 200 kernels of different names. */
#define KERNEL(n)                                                \
	__attribute__((noipa, used)) void bench_kernel_##n(void) \
	{                                                        \
	}
#define ADDRESS(n) (const void *)bench_kernel_##n,
#define TEN(x, n)  x(n##0) x(n##1) x(n##2) x(n##3) x(n##4) x(n##5) x(n##6) x(n##7) x(n##8) x(n##9)
#define HUNDRED(x, n) \
	TEN(x, n##0)  \
	TEN(x, n##1)  \
	TEN(x, n##2)  \
	TEN(x, n##3) TEN(x, n##4) TEN(x, n##5) TEN(x, n##6) TEN(x, n##7) TEN(x, n##8) TEN(x, n##9)

HUNDRED(KERNEL, 1)
HUNDRED(KERNEL, 2)
static const void *const kernels[] = { HUNDRED(ADDRESS, 1) HUNDRED(ADDRESS, 2) };
#define KERNELS (sizeof(kernels) / sizeof(*kernels))

typedef cudaError_t launch_function(const void *, dim3, dim3, void **, size_t, cudaStream_t);
static launch_function *launches[LIBRARIES];
static int libraries = 1;

static int64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * NS + now.tv_nsec;
}

static void sleep_until(int64_t time_ns)
{
	struct timespec until = { time_ns / NS, time_ns % NS };

	clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
}

static void check(int holds, const char *what)
{
	if (holds)
		return;
	perror(what);
	exit(2);
}

/* -- calls ------------------------------------------------------------------ */

static int64_t launch(launch_function *function, long calls)
{
	dim3 grid = { 8, 2, 1 }, block = { 128, 1, 1 };
	int64_t began = now_ns();

	for (long i = 0; i < calls; i++)
		function(kernels[0], grid, block, NULL, 0, NULL);
	return now_ns() - began;
}

static int64_t pipe_calls(long calls)
{
	int ends[2];
	int64_t began;
	char byte = 0;

	check(pipe(ends) == 0, "pipe");
	began = now_ns();
	for (long i = 0; i < calls; i++)
		check(write(ends[1], &byte, 1) == 1 && read(ends[0], &byte, 1) == 1, "pipe");
	began = now_ns() - began;
	close(ends[0]);
	close(ends[1]);
	return began;
}

/* -- requests --------------------------------------------------------------- */

struct worker {
	pthread_t client, server;
	int listening, calls;
	int64_t until_ns, every_ns;
	long requests, made;
	struct sockaddr_in address;
};

static void work_for_a_request(struct worker *worker)
{
	dim3 grid = { 8, 2, 1 }, block = { 128, 1, 1 };
	static _Thread_local unsigned int next;

	for (int i = 0; i < worker->calls - 1; i++, next++)
		if (i % COPY_EVERY == COPY_EVERY - 1)
			cudaMemcpyAsync((void *)1, (void *)1, 4096, cudaMemcpyHostToDevice, NULL);
		else
			cudaLaunchKernel(kernels[next % KERNELS], grid, block, NULL, 0, NULL);
	cudaStreamSynchronize(NULL);
	worker->made += worker->calls;
}

static void *serve(void *argument)
{
	static const char answer[] = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
	struct worker *worker = argument;
	int connection = accept(worker->listening, NULL, NULL);
	char request[4096];

	check(connection >= 0, "accept");
	while (read(connection, request, sizeof(request)) > 0) {
		work_for_a_request(worker);
		check(write(connection, answer, sizeof(answer) - 1) > 0, "write");
		worker->requests++;
	}
	close(connection);
	return NULL;
}

static void *ask(void *argument)
{
	static const char request[] = "GET /work HTTP/1.1\r\nhost: bench\r\n\r\n";
	struct worker *worker = argument;
	int connection = socket(AF_INET, SOCK_STREAM, 0), one = 1;
	int64_t next = now_ns();
	char answer[4096];

	check(connect(connection, (struct sockaddr *)&worker->address, sizeof(worker->address)) ==
		      0,
	      "connect");
	setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	do { /* at least one */
		sleep_until(next);
		check(send(connection, request, sizeof(request) - 1, 0) > 0, "send");
		check(recv(connection, answer, sizeof(answer), 0) > 0, "recv");
	} while ((next += worker->every_ns) < worker->until_ns);
	close(connection);
	return NULL;
}

static void run_server(double rate, double seconds, int calls, int threads)
{
	static struct worker workers[THREADS];
	int64_t began = now_ns(), ended;
	long made = 0, requests = 0;

	for (int i = 0; i < threads && i < THREADS; i++) {
		struct worker *worker = &workers[i];
		socklen_t length = sizeof(worker->address);

		*worker = (struct worker){
			.calls = calls,
			.until_ns = began + (int64_t)(seconds * NS),
			.every_ns = (int64_t)(NS * calls * threads / rate),
			.listening = socket(AF_INET, SOCK_STREAM, 0),
			.address = { .sin_family = AF_INET,
				     .sin_addr.s_addr = htonl(INADDR_LOOPBACK) },
		};
		check(bind(worker->listening, (struct sockaddr *)&worker->address, length) == 0,
		      "bind");
		check(listen(worker->listening, 1) == 0, "listen");
		check(getsockname(worker->listening, (struct sockaddr *)&worker->address,
				  &length) == 0,
		      "getsockname");
		pthread_create(&worker->server, NULL, serve, worker);
		pthread_create(&worker->client, NULL, ask, worker);
	}
	for (int i = 0; i < threads && i < THREADS; i++) {
		pthread_join(workers[i].client, NULL);
		pthread_join(workers[i].server, NULL);
		close(workers[i].listening);
		made += workers[i].made;
		requests += workers[i].requests;
	}
	ended = now_ns();
	printf("{\"calls\": %ld, \"requests\": %ld, \"began_ns\": %lld, \"ended_ns\": %lld}\n",
	       made, requests, (long long)began, (long long)ended);
}

/* -- commands --------------------------------------------------------------- */

static int open_library(const char *path)
{
	void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);

	if (!library || libraries == LIBRARIES) {
		fprintf(stderr, "load: %s\n", library ? "too many libraries" : dlerror());
		exit(2);
	}
	launches[libraries] = (launch_function *)dlsym(library, "cudaLaunchKernel");
	return libraries++;
}

static void obey(char *line, int64_t main_ns)
{
	char path[4096];
	double rate, seconds;
	long calls;
	int library, threads;

	line[strcspn(line, "\n")] = 0;
	if (strcmp(line, "hello") == 0) {
		printf("{\"pid\": %d, \"main_ns\": %lld}\n", getpid(), (long long)main_ns);
	} else if (strcmp(line, "kernels") == 0) {
		for (size_t i = 0; i < KERNELS; i++)
			printf("%s%llu", i ? ", " : "[", (unsigned long long)(uintptr_t)kernels[i]);
		printf("]\n");
	} else if (sscanf(line, "open %4095s", path) == 1) {
		printf("%d\n", open_library(path));
	} else if (sscanf(line, "launch %d %ld", &library, &calls) == 2 && library < libraries) {
		printf("%lld\n", (long long)launch(launches[library], calls));
	} else if (sscanf(line, "pipe %ld", &calls) == 1) {
		printf("%lld\n", (long long)pipe_calls(calls));
	} else if (sscanf(line, "serve %lf %lf %ld %d", &rate, &seconds, &calls, &threads) == 4) {
		run_server(rate, seconds, (int)calls, threads);
	} else if (sscanf(line, "wait %ld", &calls) == 1) {
		sleep_until(now_ns() + calls * 1000000);
		printf("%ld\n", calls);
	} else {
		fprintf(stderr, "load: unknown command: %s\n", line);
		exit(2);
	}
	fflush(stdout);
}

int main(int count, char **arguments)
{
	int64_t main_ns = now_ns();
	char line[8192];

	launches[0] = cudaLaunchKernel;
	for (int i = 1; i < count; i++)
		obey(arguments[i], main_ns);
	if (count == 1)
		while (fgets(line, sizeof(line), stdin))
			obey(line, main_ns);
	return 0;
}
