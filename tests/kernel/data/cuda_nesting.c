/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls inside calls, in every way that they come: the runtime calling the driver, a function that jumps to
 * another, a name asked for within a launch, and calls that are left by longjmp. All of CUDA is in the program.
 */
#include <setjmp.h>
#include <stdio.h>

static jmp_buf left;
#define CALLED __attribute__((noipa)) /* whatever the compiler could know of it */

CALLED int cuMemcpyHtoD_v2(long to, long from, long bytes)
{
	return !(to && from && bytes);
}

CALLED int cuEventRecord(void *event, void *stream)
{
	return event == stream;
}

CALLED int cuLibraryGetKernel(void **kernel, void *library, const char *name)
{
	*kernel = (void *)name;
	return library == NULL;
}

CALLED int cuLaunchKernel(void *function)
{
	return function == NULL;
}

CALLED int cudaMemcpy(long to, long from, long bytes)
{
	int status = cuMemcpyHtoD_v2(to, from, bytes);

	return status + cuMemcpyHtoD_v2(to, from, bytes);
}

CALLED int cudaEventRecord(void *event, void *stream)
{
	int status = cuEventRecord(event, stream);

	return status + cuEventRecord(event, stream);
}

CALLED int cudaLaunchKernel(void *function)
{
	void *kernel = function;
	int status = cuLibraryGetKernel(&kernel, function, "flash_fwd");

	return status + cuLaunchKernel(kernel);
}

CALLED int cudaMalloc(void **pointer, long bytes)
{
	*pointer = (void *)bytes;
	return 0;
}

int cudaMallocManaged(void **pointer, long bytes);
__asm__(".globl cudaMallocManaged\n.type cudaMallocManaged, @function\ncudaMallocManaged:\n"
	"\tnop\n\tjmp cudaMalloc\n.size cudaMallocManaged, .-cudaMallocManaged\n");

CALLED int cudaStreamSynchronize(void *stream)
{
	longjmp(left, stream != NULL);
}

CALLED int cudaFree(void *pointer)
{
	return pointer == NULL;
}

/* From deeper in the stack than what was left. */
static CALLED int deeper(void *pointer)
{
	volatile char room[4096];

	room[0] = 0;
	return cudaFree(pointer) + room[0];
}

int main(void)
{
	void *pointer = NULL;
	volatile int wrong = 0;

	fprintf(stderr, "ready\n");
	getchar();
	for (int i = 0; i < 7; i++)
		wrong += cudaMemcpy(1, 2, 3) + cudaMallocManaged(&pointer, 41);
	for (int i = 0; i < 11; i++)
		wrong += cudaLaunchKernel(&left) + cudaEventRecord(&left, NULL);
	for (volatile int i = 0; i < 3; i++) {
		if (!setjmp(left))
			cudaStreamSynchronize(&left);
		wrong += deeper(&left) + cudaFree(&left);
	}
	for (int i = 0; i < 5; i++)
		wrong += cuMemcpyHtoD_v2(1, 2, 3);
	return wrong;
}
