/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program of HIP whose calls are known, a prime number of each:
 *   13 hipMalloc of 64 KiB, of which 6 are freed, 1 that is refused; 5 hipMallocManaged of 4 KiB; 3 hipHostMalloc of 8 KiB
 *   23 launches of axpy and 7 of scale; 17 copies to the device and 11 from it, of 4 KiB; 19 waits for the stream
 *   2 hipMemset, each of which calls another function of the library
 * It holds 7 x 64 KiB of device and 5 x 4 KiB of managed memory at its end. It writes "done" then, and stays for half a
 * second: kernels of a program that has ended before a busy agent looks at it have no names. --forever: it goes on
 * launching. --wait: it writes "ready", and begins when it reads a line.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct {
	unsigned x, y, z;
} dim3;
int hipSetDevice(int device);
int hipMalloc(void **pointer, unsigned long size);
int hipMallocManaged(void **pointer, unsigned long size, unsigned flags);
int hipHostMalloc(void **pointer, unsigned long size, unsigned flags);
int hipFree(void *pointer);
int hipMemcpy(void *to, const void *from, unsigned long size, int kind);
int hipMemset(void *to, int value, unsigned long size);
int hipStreamCreate(void **stream);
int hipStreamSynchronize(void *stream);
int hipLaunchKernel(const void *function, dim3 grid, dim3 block, void **arguments,
		    unsigned long shared, void *stream);

/* Host stubs: what hipLaunchKernel is given, and what a kernel is called by. */
__attribute__((noipa)) void axpy(void)
{
}

__attribute__((noipa)) void scale(void)
{
	__asm__ volatile("");
}

static int failures;

static void expect(int answer, int wanted)
{
	failures += answer != wanted;
}

__attribute__((noipa)) static void launch(void (*kernel)(void), int times, void *stream)
{
	for (int i = 0; i < times; i++)
		expect(hipLaunchKernel((const void *)kernel, (dim3){ 8, 4, 2 }, (dim3){ 128, 1, 1 },
				       NULL, 512, stream),
		       0);
}

__attribute__((noipa)) static void allocate(void **blocks)
{
	for (int i = 0; i < 13; i++)
		expect(hipMalloc(&blocks[i], 64 << 10), 0);
}

int main(int count, char **arguments)
{
	static char host[4096];
	void *blocks[13], *managed, *pinned, *stream;

	if (count > 1 && !strcmp(arguments[count - 1], "--wait")) {
		puts("ready");
		fflush(stdout);
		getchar();
	}
	expect(hipSetDevice(1), 0);
	expect(hipStreamCreate(&stream), 0);
	allocate(blocks);
	expect(hipMalloc(&managed, 1ul << 41), 2);
	for (int i = 0; i < 5; i++)
		expect(hipMallocManaged(&managed, 4 << 10, 1), 0);
	for (int i = 0; i < 3; i++)
		expect(hipHostMalloc(&pinned, 8 << 10, 0), 0);
	for (int i = 0; i < 17; i++)
		expect(hipMemcpy(blocks[0], host, sizeof(host), 1), 0);
	launch(axpy, 23, stream);
	launch(scale, 7, stream);
	for (int i = 0; i < 11; i++)
		expect(hipMemcpy(host, blocks[0], sizeof(host), 2), 0);
	for (int i = 0; i < 19; i++)
		expect(hipStreamSynchronize(stream), 0);
	for (int i = 0; i < 2; i++)
		expect(hipMemset(managed, 0, 4096), 0);
	for (int i = 7; i < 13; i++)
		expect(hipFree(blocks[i]), 0);
	puts("done");
	fflush(stdout);
	while (count > 1 && !strcmp(arguments[1], "--forever")) {
		launch(axpy, 1, stream);
		usleep(1000);
	}
	usleep(500000);
	return failures != 0;
}
