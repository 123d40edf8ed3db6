/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program that works in steps on a simulated device of its own, with otelgpu/inject/cupti*.c linked in
 * and called as the interposer calls them; what they emit is printed, a line of JSON each.
 *
 *   steps [--steps N] [--launches N] [--graph-nodes N] [--step-us N] [--call-us N] [--kernel-us N] [--no-wait]
 *         [--threads N] [--fork] [--linger-ms N] [--full-after N]
 *
 * A step is launches, one copy, one set, a graph launch (with --graph-nodes), then a wait for the device
 * (unless --no-wait). --step-us, --call-us: how long a step, a call takes at least. --full-after: the ring takes so many
 * records. The last line says what was called and what was counted.
 */
#define _GNU_SOURCE
#include "cuda/cuda.h"
#include "../../../otelgpu/inject/cupti.h"
#include "hooks.h"

#include <getopt.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

__attribute__((visibility("default"))) const struct fake_cupti_hooks *fake_cupti_hooks;

static long call_us, steps = 10, launches = 5, graph_nodes, step_us, kernel_us = 20, threads = 1,
		     linger_ms;
static long full_after = -1;
static int no_wait, forks;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic unsigned long counted[CUPTI_COUNTER_COUNT], emitted, made_calls, correlated,
	device_work;

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* --- as the interposer ------------------------------------------------------------------------ */

bool inject_emit(const void *record, size_t bytes)
{
	const struct cuda_activity *activity = record;
	const struct cuda_activity_name *name = record;

	if (full_after >= 0 && (long)emitted >= full_after)
		return false;
	emitted++;
	pthread_mutex_lock(&lock);
	if (activity->head.kind == CUDA_ACTIVITY && bytes == sizeof(*activity))
		printf("{\"activity\": %u, \"start\": %llu, \"duration\": %llu, \"name\": %llu, "
		       "\"bytes\": %llu, "
		       "\"graph_node\": %llu, \"graph\": %u, \"correlation\": %u, \"stream\": %u, "
		       "\"device\": %d, \"detail\": %u, \"sampled\": %u, \"slice\": %llu}\n",
		       activity->work, activity->head.time_ns, activity->head.duration_ns,
		       activity->name, activity->bytes, activity->graph_node, activity->graph,
		       activity->correlation, activity->stream, activity->device, activity->detail,
		       activity->sampled, activity->slice_ns);
	else if (activity->head.kind == CUDA_ACTIVITY_NAME && bytes == sizeof(*name))
		printf("{\"called\": %llu, \"offset\": %u, \"length\": %u, \"text\": \"%.*s\"}\n",
		       name->name, name->offset, name->length, CUDA_ACTIVITY_NAME_BYTES,
		       name->text);
	else
		abort();
	pthread_mutex_unlock(&lock);
	return true;
}

void inject_count_device_time(enum cupti_counter counter, uint64_t count)
{
	counted[counter] += count;
}

/* Of what comes late: this program is there from the start. */
bool inject_is_heard(void)
{
	return false;
}

void inject_live_ended(void)
{
}

uint16_t inject_reported_function(const char *name)
{
	(void)name;
	return 0;
}

uint16_t inject_reported_kind(uint16_t function)
{
	return function;
}

void inject_reported_begin(struct reported_call *call)
{
	(void)call;
}

void inject_reported_end(const struct reported_call *call, uint64_t now_ns)
{
	(void)call, (void)now_ns;
}

/* --- the device ------------------------------------------------------------------------------- */

static _Thread_local uint64_t busy_until_ns;
static _Thread_local uint32_t my_stream;

static void queue(struct fake_work work)
{
	uint64_t now = now_ns();

	device_work++;
	work.start_ns = (int64_t)(busy_until_ns > now ? busy_until_ns : now);
	busy_until_ns = (uint64_t)work.start_ns + (uint64_t)kernel_us * 1000;
	work.end_ns = (int64_t)busy_until_ns;
	work.stream = my_stream;
	work.device = 0;
	if (fake_cupti_hooks)
		fake_cupti_hooks->work(&work);
}

static void enter(const char *function)
{
	if (fake_cupti_hooks)
		fake_cupti_hooks->enter(function);
}

static void leave(const char *function)
{
	if (fake_cupti_hooks)
		fake_cupti_hooks->leave(function);
}

static void wait_until(uint64_t time_ns)
{
	struct timespec until = { (time_t)(time_ns / 1000000000u), (long)(time_ns % 1000000000u) };

	clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
}

/* One call of the runtime API, which calls the driver's, and the work that it queues. */
static void call(enum cuda_kind kind, const char *runtime, const char *driver,
		 struct fake_work work, long pieces)
{
	uint64_t correlation, began_ns = now_ns();

	cupti_call_begin();
	enter(runtime);
	if (driver)
		enter(driver);
	for (long i = 0; i < pieces; i++) {
		work.graph_node = work.graph ? 1000u + (uint64_t)i : 0;
		queue(work);
	}
	if (driver)
		leave(driver);
	wait_until(began_ns + (uint64_t)call_us * 1000);
	leave(runtime);
	correlation = cupti_call_end((uint16_t)kind, now_ns());
	made_calls += pieces > 0;
	if (!correlation)
		return;
	correlated++;
	pthread_mutex_lock(&lock);
	printf("{\"call\": \"%s\", \"start\": %llu, \"outer\": %u, \"inner\": %u, \"pieces\": "
	       "%ld}\n",
	       runtime, (unsigned long long)began_ns, (uint32_t)correlation,
	       (uint32_t)(correlation >> 32), pieces);
	pthread_mutex_unlock(&lock);
}

static void synchronize(void)
{
	cupti_call_begin();
	enter("cudaStreamSynchronize");
	wait_until(busy_until_ns);
	leave("cudaStreamSynchronize");
	cupti_call_end(CUDA_SYNCHRONIZATION, now_ns());
}

static void *work(void *argument)
{
	static char long_name[400] = "_Z";
	struct fake_work kernel = { .kind = FAKE_WORK_KERNEL, .name = "_Z9flash_fwdPfS_" };
	struct fake_work other = { .kind = FAKE_WORK_KERNEL, .name = long_name };
	struct fake_work copy = { .kind = FAKE_WORK_COPY, .bytes = 4096, .detail = 1 };
	struct fake_work set = { .kind = FAKE_WORK_SET, .bytes = 512, .detail = 7 };
	struct fake_work graph = { .kind = FAKE_WORK_KERNEL, .name = "_Z6decodev", .graph = 3 };

	my_stream = (uint32_t)(uintptr_t)argument;
	memset(long_name + 2, 'k', sizeof(long_name) - 3);
	cupti_call_begin();
	cupti_call_end(CUDA_ALLOCATION, now_ns());
	for (long step = 0; step < steps; step++) {
		uint64_t began_ns = now_ns();

		for (long i = 0; i < launches; i++)
			call(CUDA_LAUNCH, "cudaLaunchKernel", "cuLaunchKernel", i ? kernel : other,
			     1);
		call(CUDA_COPY, "cudaMemcpyAsync", "cuMemcpyHtoDAsync_v2", copy, 1);
		call(CUDA_SET, "cudaMemsetAsync", NULL, set, 1);
		if (graph_nodes)
			call(CUDA_GRAPH_LAUNCH, "cudaGraphLaunch", "cuGraphLaunch", graph,
			     graph_nodes);
		if (!no_wait)
			synchronize();
		wait_until(began_ns + (uint64_t)step_us * 1000);
	}
	return NULL;
}

int main(int count, char **arguments)
{
	static const struct option options[] = {
		{ "steps", required_argument, NULL, 's' },
		{ "launches", required_argument, NULL, 'l' },
		{ "graph-nodes", required_argument, NULL, 'g' },
		{ "step-us", required_argument, NULL, 'u' },
		{ "kernel-us", required_argument, NULL, 'k' },
		{ "threads", required_argument, NULL, 't' },
		{ "linger-ms", required_argument, NULL, 'w' },
		{ "full-after", required_argument, NULL, 'f' },
		{ "call-us", required_argument, NULL, 'c' },
		{ "no-wait", no_argument, &no_wait, 1 },
		{ "fork", no_argument, &forks, 1 },
		{},
	};
	pthread_t others[64];
	int option, status = 0;

	while ((option = getopt_long(count, arguments, "", options, NULL)) != -1) {
		long value = optarg ? atol(optarg) : 0;

		switch (option) {
		case 's':
			steps = value;
			break;
		case 'l':
			launches = value;
			break;
		case 'g':
			graph_nodes = value;
			break;
		case 'u':
			step_us = value;
			break;
		case 'k':
			kernel_us = value;
			break;
		case 't':
			threads = value;
			break;
		case 'w':
			linger_ms = value;
			break;
		case 'f':
			full_after = value;
			break;
		case 'c':
			call_us = value;
			break;
		case 0:
			break;
		default:
			return 2;
		}
	}
	cupti_start();
	for (long i = 1; i < threads && i < 64; i++)
		pthread_create(&others[i], NULL, work, (void *)(uintptr_t)(i + 7));
	work((void *)7);
	for (long i = 1; i < threads && i < 64; i++)
		pthread_join(others[i], NULL);
	fflush(stdout);
	if (forks) {
		pid_t child = fork();

		if (child)
			waitpid(child, &status, 0);
		else
			work((void *)7); /* its calls must do nothing, and it must end */
	}
	usleep((useconds_t)linger_ms * 1000);
	cupti_stop();
	printf("{\"calls\": %lu, \"correlated\": %lu, \"device_work\": %lu, \"counted\": {",
	       made_calls, correlated, device_work);
	option = 0;
#define PRINT(name)                      \
	if (counted[CUPTI_COUNT_##name]) \
		printf("%s\"" #name "\": %lu", option++ ? ", " : "", counted[CUPTI_COUNT_##name]);
	CUPTI_COUNTERS(PRINT)
	printf("}}\n");
	return WIFEXITED(status) ? WEXITSTATUS(status) : 99;
}
