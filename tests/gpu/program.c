/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the tests of tests/gpu/ observe: the CUDA runtime API and a kernel in PTX that keeps the device busy
 * for as long as it is reported. Built by gcc with the headers of the CUDA 12 wheel, no nvcc; runs on a GPU, and on
 * the fakes, whose kernels take FAKE_CUDART_KERNEL_US.
 *
 *   program timed LAUNCHES MICROSECONDS    each launch between two events: {"ms": […]}
 *   program memory ROUNDS SEED             allocates and frees at random: {"live": […], "device": […]}
 *   program decode STEPS LAUNCHES US       steps of launches, each ended by a wait: {"step_us": …}
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cuda_runtime_api.h>

#define CHECK(call)                                                                     \
	do {                                                                            \
		cudaError_t status = (call);                                            \
		if (status != cudaSuccess) {                                            \
			fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(status)); \
			exit(1);                                                        \
		}                                                                       \
	} while (0)

/* compute capability 7.5: the oldest that CUDA 13 knows, and every later device translates it. */
static const char image[] = ".version 6.3\n"
			    ".target sm_75\n"
			    ".address_size 64\n"
			    ".visible .entry otelgpu_spin(.param .u64 nanoseconds)\n"
			    "{\n"
			    "	.reg .pred %more;\n"
			    "	.reg .b64 %t<5>;\n"
			    "	ld.param.u64 %t1, [nanoseconds];\n"
			    "	mov.u64 %t2, %globaltimer;\n"
			    "again:\n"
			    "	mov.u64 %t3, %globaltimer;\n"
			    "	sub.u64 %t4, %t3, %t2;\n"
			    "	setp.lt.u64 %more, %t4, %t1;\n"
			    "	@%more bra again;\n"
			    "	ret;\n"
			    "}\n";

static cudaKernel_t spin;
static cudaStream_t stream;

static void launch(uint64_t nanoseconds)
{
	dim3 one = { 1, 1, 1 };
	void *arguments[] = { &nanoseconds };

	CHECK(cudaLaunchKernel((const void *)spin, one, one, arguments, 0, stream));
}

static double now_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static void timed(int launches, uint64_t nanoseconds)
{
	cudaEvent_t before, after;

	CHECK(cudaEventCreate(&before));
	CHECK(cudaEventCreate(&after));
	printf("{\"ms\": [");
	for (int i = 0; i < launches; i++) {
		float ms = 0;

		CHECK(cudaEventRecord(before, stream));
		launch(nanoseconds);
		CHECK(cudaEventRecord(after, stream));
		CHECK(cudaEventSynchronize(after));
		CHECK(cudaEventElapsedTime(&ms, before, after));
		printf("%s%.6f", i ? ", " : "", (double)ms);
	}
	printf("]}\n");
}

#define HELD_MAX 64

static void memory(int rounds, unsigned int seed)
{
	static struct {
		void *pointer;
		uint64_t bytes;
	} held[HELD_MAX];
	uint64_t live = 0;
	size_t free_before = 0, free_now = 0, total = 0;

	CHECK(cudaMemGetInfo(&free_before, &total));
	printf("{\"checkpoints\": [");
	for (int i = 0; i < rounds; i++) {
		int slot = rand_r(&seed) % HELD_MAX;

		if (held[slot].pointer) {
			CHECK(cudaFree(held[slot].pointer));
			live -= held[slot].bytes;
			held[slot].pointer = NULL;
		} else {
			/* Whole pages of 2 MiB, so that the device's account can be compared too. */
			held[slot].bytes = (1 + (uint64_t)rand_r(&seed) % 8) << 21;
			CHECK(cudaMalloc(&held[slot].pointer, held[slot].bytes));
			live += held[slot].bytes;
		}
		CHECK(cudaMemGetInfo(&free_now, &total));
		printf("%s[%llu, %lld]", i ? ", " : "", (unsigned long long)live,
		       (long long)free_before - (long long)free_now);
	}
	printf("], \"live\": %llu}\n", (unsigned long long)live);
}

static void decode(int steps, int launches, uint64_t nanoseconds)
{
	double began_us;

	for (int i = 0; i < launches; i++) /* the first costs what later ones do not */
		launch(nanoseconds);
	CHECK(cudaStreamSynchronize(stream));
	began_us = now_us();
	for (int step = 0; step < steps; step++) {
		for (int i = 0; i < launches; i++)
			launch(nanoseconds);
		CHECK(cudaStreamSynchronize(stream));
	}
	printf("{\"step_us\": %.3f}\n", (now_us() - began_us) / steps);
}

int main(int count, char **arguments)
{
	const char *mode = count > 3 ? arguments[1] : "";
	cudaLibrary_t library;

	if (!*mode) {
		fprintf(stderr, "program timed|memory|decode NUMBER NUMBER [NUMBER]\n");
		return 2;
	}
	CHECK(cudaLibraryLoadData(&library, image, NULL, NULL, 0, NULL, NULL, 0));
	CHECK(cudaLibraryGetKernel(&spin, library, "otelgpu_spin"));
	CHECK(cudaStreamCreate(&stream));
	if (!strcmp(mode, "timed"))
		timed(atoi(arguments[2]), strtoull(arguments[3], NULL, 10) * 1000);
	else if (!strcmp(mode, "memory"))
		memory(atoi(arguments[2]), (unsigned int)atoi(arguments[3]));
	else
		decode(atoi(arguments[2]), atoi(arguments[3]),
		       count > 4 ? strtoull(arguments[4], NULL, 10) * 1000 : 5000);
	CHECK(cudaDeviceSynchronize());
	return 0;
}
