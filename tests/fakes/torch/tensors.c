/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gives memory to tensors and takes it back at random, as PyTorch's caching allocator does, and keeps its own account.
 *
 *   --operations=N (5000) --seed=N (1) --threads=N (1) --devices=N (1)
 *   --checkpoint=N (1000)   operations between two checkpoints
 *   --before=N (0)          operations before it waits for anybody
 *   --absurd=N (0)          nonsense reported between operations, of which nothing is true
 *   --wait=1                waits for a line on stdin before its first call
 *   --step=1                and after each checkpoint
 *
 * At a checkpoint no thread is inside a call, and a JSON line says how things stand:
 * {"checkpoint": n, "devices": {"cuda:0": {"allocated": n, …}}, "in_use": {"who asked": {"bytes": n, "count": n}},
 *  "given": {"who asked": {"bytes": n, "count": n}}}: `in_use` and `given` without what came --before.
 */
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../programs/truth.h"
#include "c10.h"

#define DEVICES_MAX 4
#define THREADS_MAX 16
#define TENSORS_MAX 512
#define SEGMENT	    (2 << 20) /* of what is taken from the driver */
#define BLOCK	    512	      /* sizes are rounded up to it */
#define CAPACITY    (1ull << 30)

/* Who asks for memory: by the functions below. */
enum caller { PLAIN, OPERATOR, NESTED, BACKWARD, CALLERS };
static const char *const caller_names[] = { "plain", "operator", "nested", "backward" };

struct device {
	pthread_mutex_t lock; /* held while a report is made, as the real one's is */
	uint64_t allocated, reserved, allocated_peak, reserved_peak;
	uint64_t allocations, allocated_bytes, frees, freed_bytes, refusals;
	uint64_t next; /* address */
};

struct tensor {
	uint64_t address, bytes;
	enum caller caller;
	int device;
	bool seen; /* allocated after the beginning */
};

struct sum {
	uint64_t bytes, count;
};

struct worker {
	uint64_t random;
	int device;
	size_t count;
	struct tensor tensors[TENSORS_MAX];
	struct sum in_use[CALLERS], given[CALLERS];
};

static struct device devices[DEVICES_MAX];
static struct worker workers[THREADS_MAX];
static pthread_barrier_t barrier;
static long operations, per_checkpoint, thread_count, device_count, absurd;
static bool step, begun;

static uint64_t draw(struct worker *worker, uint64_t below)
{
	worker->random ^= worker->random << 13;
	worker->random ^= worker->random >> 7;
	worker->random ^= worker->random << 17;
	return worker->random % below;
}

static struct c10_device cuda(int index)
{
	return (struct c10_device){ .type = C10_CUDA, .index = (int8_t)index };
}

static uint64_t most(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

/* 0: there is no more memory. */
static __attribute__((noinline)) uint64_t allocate(int index, uint64_t bytes)
{
	struct device *device = &devices[index];
	uint64_t address = 0;

	pthread_mutex_lock(&device->lock);
	if (device->allocated + bytes > CAPACITY) {
		device->refusals++;
		report_refusal((int64_t)bytes, device->allocated, device->reserved, cuda(index));
	} else {
		while (device->reserved < device->allocated + bytes)
			device->reserved += SEGMENT;
		address = ((uint64_t)index + 1) << 40 | device->next;
		device->next = (device->next + bytes) % (1ull << 34);
		device->allocated += bytes;
		device->allocations++;
		device->allocated_bytes += bytes;
		report_memory((void *)(uintptr_t)address, (int64_t)bytes, device->allocated,
			      device->reserved, cuda(index));
	}
	device->allocated_peak = most(device->allocated_peak, device->allocated);
	device->reserved_peak = most(device->reserved_peak, device->reserved);
	pthread_mutex_unlock(&device->lock);
	return address;
}

static void give_back(const struct tensor *tensor)
{
	struct device *device = &devices[tensor->device];

	pthread_mutex_lock(&device->lock);
	device->allocated -= tensor->bytes;
	device->frees++;
	device->freed_bytes += tensor->bytes;
	report_memory((void *)(uintptr_t)tensor->address, -(int64_t)tensor->bytes,
		      device->allocated, device->reserved, cuda(tensor->device));
	pthread_mutex_unlock(&device->lock);
}

/* Under the names that PyTorch's operators have: the asm keeps calls from becoming jumps, and functions from being one. */
#define AS_CALL(who, value)                                 \
	do {                                                \
		uint64_t _value = (value);                  \
		__asm__ volatile("# " #who : "+r"(_value)); \
		return _value;                              \
	} while (0)

/* at::_ops::empty_memory_format::call(long) */
__attribute__((noinline)) uint64_t
empty_call(int device, uint64_t bytes) __asm__("_ZN2at4_ops19empty_memory_format4callEl");
uint64_t empty_call(int device, uint64_t bytes)
{
	AS_CALL(empty, allocate(device, bytes));
}

/* at::_ops::mm::call(at::Tensor const&, at::Tensor const&) */
__attribute__((noinline)) uint64_t
mm_call(int device, uint64_t bytes) __asm__("_ZN2at4_ops2mm4callERKNS_6TensorES4_");
uint64_t mm_call(int device, uint64_t bytes)
{
	AS_CALL(mm, empty_call(device, bytes));
}

/* torch::autograd::generated::MmBackward0::apply(long) */
__attribute__((noinline)) uint64_t
mm_backward(int device,
	    uint64_t bytes) __asm__("_ZN5torch8autograd9generated11MmBackward05applyEl");
uint64_t mm_backward(int device, uint64_t bytes)
{
	AS_CALL(backward, mm_call(device, bytes));
}

static __attribute__((noinline)) uint64_t plain(int device, uint64_t bytes)
{
	AS_CALL(plain, allocate(device, bytes));
}

static uint64_t ask(enum caller caller, int device, uint64_t bytes)
{
	switch (caller) {
	case OPERATOR:
		return empty_call(device, bytes);
	case NESTED:
		return mm_call(device, bytes);
	case BACKWARD:
		return mm_backward(device, bytes);
	default:
		return plain(device, bytes);
	}
}

static void make_tensor(struct worker *worker)
{
	struct tensor *tensor = &worker->tensors[worker->count];
	enum caller caller = (enum caller)draw(worker, CALLERS);
	/* Now and then more than there is. */
	uint64_t wanted = draw(worker, 97) == 0 ? CAPACITY + 1 : draw(worker, 1 << 20) + 1;
	uint64_t bytes = (wanted + BLOCK - 1) / BLOCK * BLOCK;

	*tensor = (struct tensor){ .address = ask(caller, worker->device, bytes),
				   .bytes = bytes,
				   .caller = caller,
				   .device = worker->device,
				   .seen = begun };
	if (!tensor->address)
		return;
	worker->count++;
	if (!begun)
		return;
	worker->in_use[caller].bytes += bytes;
	worker->in_use[caller].count++;
	worker->given[caller].bytes += bytes;
	worker->given[caller].count++;
}

static void drop_tensor(struct worker *worker, size_t place)
{
	struct tensor *tensor = &worker->tensors[place];

	give_back(tensor);
	if (tensor->seen) {
		worker->in_use[tensor->caller].bytes -= tensor->bytes;
		worker->in_use[tensor->caller].count--;
	}
	*tensor = worker->tensors[--worker->count];
}

static void operate(struct worker *worker)
{
	/* More are made than dropped, until there is no room for them. */
	if (!worker->count || (worker->count < TENSORS_MAX && draw(worker, 5) < 3))
		make_tensor(worker);
	else
		drop_tensor(worker, draw(worker, worker->count));
}

/* Sizes that nothing can have, another address than any that was given, and devices that are none. */
static void report_nonsense(void)
{
	const struct c10_device nobody = { .type = 77, .index = -3 };
	void *nowhere = (void *)(uintptr_t)0x5555;

	report_memory(nowhere, INT64_MIN, 1, 1, cuda(0));
	report_memory(nowhere, INT64_MAX, 1, 1, cuda(0));
	report_memory(nowhere, 512, ~0ull >> 1, 1, cuda(0));
	report_memory(nowhere, 512, 1, ~0ull >> 1, cuda(0));
	report_memory(nowhere, -512, 512, 1024, nobody);
	report_memory(nowhere, 512, 512, 512, (struct c10_device){ .type = C10_CPU });
	report_refusal(512, 512, 512, (struct c10_device){ .type = C10_CPU });
}

static void print_sums(const char *name, size_t offset)
{
	printf("\"%s\": {", name);
	for (int caller = 0; caller < CALLERS; caller++) {
		struct sum all = { 0 };

		for (long i = 0; i < thread_count; i++) {
			const struct sum *sums =
				(const struct sum *)((const char *)&workers[i] + offset);

			all.bytes += sums[caller].bytes;
			all.count += sums[caller].count;
		}
		printf("%s\"%s\": {\"bytes\": %llu, \"count\": %llu}", caller ? ", " : "",
		       caller_names[caller], (unsigned long long)all.bytes,
		       (unsigned long long)all.count);
	}
	printf("}");
}

static void print_checkpoint(long number)
{
	printf("{\"checkpoint\": %ld, \"devices\": {", number);
	for (long i = 0; i < device_count; i++) {
		const struct device *device = &devices[i];
		const uint64_t numbers[] = { device->allocated,	     device->reserved,
					     device->allocated_peak, device->reserved_peak,
					     device->allocations,    device->allocated_bytes,
					     device->frees,	     device->freed_bytes,
					     device->refusals };
		static const char *const names[] = { "allocated",      "reserved",
						     "allocated_peak", "reserved_peak",
						     "allocations",    "allocated_bytes",
						     "frees",	       "freed_bytes",
						     "refusals" };

		printf("%s\"cuda:%ld\": {", i ? ", " : "", i);
		for (size_t n = 0; n < sizeof(names) / sizeof(names[0]); n++)
			printf("%s\"%s\": %llu", n ? ", " : "", names[n],
			       (unsigned long long)numbers[n]);
		printf("}");
	}
	printf("}, ");
	print_sums("in_use", offsetof(struct worker, in_use));
	printf(", ");
	print_sums("given", offsetof(struct worker, given));
	printf("}\n");
	fflush(stdout);
}

static void *work(void *argument)
{
	struct worker *worker = argument;
	long share = operations / thread_count, number = 0;

	for (long done = 1; done <= share; done++) {
		operate(worker);
		if (worker == workers && done <= absurd)
			report_nonsense();
		if (done * thread_count % per_checkpoint >= thread_count && done < share)
			continue;
		pthread_barrier_wait(&barrier);
		if (worker == workers) {
			print_checkpoint(++number);
			if (step)
				truth_line();
		}
		pthread_barrier_wait(&barrier);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	uint64_t seed = (uint64_t)truth_option(argc, argv, "seed", 1);
	long before = truth_option(argc, argv, "before", 0);
	pthread_t threads[THREADS_MAX];

	operations = truth_option(argc, argv, "operations", 5000);
	per_checkpoint = truth_option(argc, argv, "checkpoint", 1000);
	thread_count = truth_option(argc, argv, "threads", 1);
	device_count = truth_option(argc, argv, "devices", 1);
	absurd = truth_option(argc, argv, "absurd", 0);
	step = truth_option(argc, argv, "step", 0);
	if (thread_count < 1 || thread_count > THREADS_MAX || per_checkpoint < thread_count ||
	    device_count < 1 || device_count > DEVICES_MAX)
		return 2;
	for (long i = 0; i < device_count; i++) {
		pthread_mutex_init(&devices[i].lock, NULL);
		devices[i].next = 4096;
	}
	for (long i = 0; i < thread_count; i++) {
		workers[i].random = (seed + (uint64_t)i) * 0x9E3779B97F4A7C15ULL | 1;
		workers[i].device = (int)(i % device_count);
	}
	for (long done = 0; done < before; done++)
		operate(&workers[0]);
	truth_wait(truth_option(argc, argv, "wait", 0));
	begun = true;
	pthread_barrier_init(&barrier, NULL, (unsigned int)thread_count);
	for (long i = 1; i < thread_count; i++)
		pthread_create(&threads[i], NULL, work, &workers[i]);
	work(&workers[0]);
	for (long i = 1; i < thread_count; i++)
		pthread_join(threads[i], NULL);
	return 0;
}
