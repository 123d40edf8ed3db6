/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allocates and frees at random over every allocation function, and keeps its own account of it.
 *
 *   --operations=N (10000) --seed=N (1) --threads=N (1)
 *   --checkpoint=N (1000)   operations between two checkpoints
 *   --resets=0|1            a context's destruction and a cudaDeviceReset at each checkpoint
 *   --wait=1                waits for a line on stdin before its first call
 *   --step=1                and after each checkpoint
 *
 * At a checkpoint no thread is inside a call, and a JSON line says what is live and what was done so far:
 * {"checkpoint": n, "time_ns": CLOCK_MONOTONIC, "operations": n,
 *  "live": {"<device>/<memory>": {"bytes": n, "count": n}}, "used_bytes": {device: as the driver says},
 *  "allocated_bytes": {memory: n}, "freed_bytes": {memory: n}, "calls": {function: n},
 *  "failures": {function: n}}. The last line is that of the end, when everything is freed.
 *
 * memory: the enumerators of enum cuda_memory (bpf/cuda/cuda.h) in small letters. Widths of pitched memory
 * are multiples of the pitch, so that bytes asked for and bytes given are the same. Physical memory counts
 * from cuMemCreate until it is released as often as it was retained, and mapped nowhere.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "memory.h"

#define REFUSALS_MAX 8 /* in a row, when failures are asked for */
#define THREADS_MAX  64

static pthread_barrier_t barrier;
static struct worker workers[THREADS_MAX];
static long operations, per_checkpoint, thread_count;
static bool resets, step;

/* What a context that ends takes with it; on another device than the one that is reset, if there is one. */
static void use_a_context(const struct worker *worker)
{
	int device = (worker->device + 1) % device_count;
	struct item items[] = { { .memory = DEVICE, .device = device, .bytes = 70001 },
				{ .memory = MANAGED, .device = device, .bytes = 30011 } };
	CUcontext context;

	must(TRY(cuCtxCreate, &context, 0, device));
	must(TRY(cuMemAlloc, (CUdeviceptr *)&items[0].address, items[0].bytes));
	must(TRY(cuMemAllocManaged, (CUdeviceptr *)&items[1].address, items[1].bytes,
		 CU_MEM_ATTACH_GLOBAL));
	came(&items[0]);
	came(&items[1]);
	must(TRY(cuCtxDestroy, context));
	went(&items[0]);
	went(&items[1]);
}

/* All that is allocated on the first thread's device goes, except what handles and address ranges hold. */
static void reset(struct worker *first)
{
	must(TRY(cudaDeviceReset));
	for (long thread = 0; thread < thread_count; thread++) {
		struct worker *worker = &workers[thread];

		for (size_t i = worker->count; i-- > 0;) {
			struct item *item = &worker->items[i];

			if (item->device != first->device || item->memory == PHYSICAL ||
			    item->memory == ADDRESS)
				continue;
			if (item->memory == REGISTERED)
				free((void *)(uintptr_t)item->address);
			let_go(worker, i);
		}
	}
}

static void *work(void *argument)
{
	struct worker *worker = argument;
	long share = operations / thread_count, number = 0;

	worker->device = (int)((worker - workers) % device_count);
	must(TRY(cudaSetDevice, worker->device));
	for (long done = 1; done <= share; done++) {
		operate(worker);
		if (done * thread_count % per_checkpoint >= thread_count && done < share)
			continue;
		pthread_barrier_wait(&barrier);
		if (worker == workers) {
			if (resets)
				use_a_context(worker);
			if (resets)
				reset(worker);
			print_checkpoint(++number, done * thread_count);
			if (step)
				truth_line();
		}
		pthread_barrier_wait(&barrier);
		must(TRY(cudaSetDevice, worker->device)); /* a reset took the context away */
	}
	for (int refused = 0; worker->count;) {
		size_t before = worker->count;

		release(worker, before - 1, true);
		refused = worker->count < before ? 0 : refused + 1;
		must(refused > REFUSALS_MAX);
	}
	pthread_barrier_wait(&barrier);
	if (worker == workers)
		print_checkpoint(number + 1, share * thread_count);
	return NULL;
}

int main(int argc, char **argv)
{
	uint64_t seed = (uint64_t)truth_option(argc, argv, "seed", 1);
	pthread_t threads[THREADS_MAX];

	operations = truth_option(argc, argv, "operations", 10000);
	per_checkpoint = truth_option(argc, argv, "checkpoint", 1000);
	thread_count = truth_option(argc, argv, "threads", 1);
	resets = truth_option(argc, argv, "resets", 0);
	step = truth_option(argc, argv, "step", 0);
	if (thread_count < 1 || thread_count > THREADS_MAX || per_checkpoint < thread_count)
		return 2;
	truth_wait(truth_option(argc, argv, "wait", 0));
	must(TRY(cudaGetDeviceCount, &device_count));
	pthread_barrier_init(&barrier, NULL, (unsigned int)thread_count);
	for (long i = 0; i < thread_count; i++)
		workers[i].random = (seed + (uint64_t)i) * 0x9E3779B97F4A7C15ULL | 1;
	for (long i = 1; i < thread_count; i++)
		pthread_create(&threads[i], NULL, work, &workers[i]);
	work(&workers[0]);
	for (long i = 1; i < thread_count; i++)
		pthread_join(threads[i], NULL);
	return 0;
}
