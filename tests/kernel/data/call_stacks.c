/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls of CUDA from functions whose names are known, with calls inside them in every way that they come: see
 * cuda_nesting.c. Each caller makes another number of calls. All of CUDA is in the program.
 */
#include <setjmp.h>
#include <stdio.h>

static jmp_buf left;
#define CALLED __attribute__((noipa)) /* whatever the compiler could know of it */

CALLED int cuMemcpyHtoD_v2(long to, long from, long bytes)
{
	return !(to && from && bytes);
}

CALLED int cuLaunchKernel(void *function)
{
	return function == NULL;
}

CALLED int cuEventRecord(void *event, void *stream)
{
	return event == stream;
}

/* Inside another call it is followed, for the thread's device, and not reported. */
CALLED int cuCtxSetCurrent(void *context)
{
	return context == NULL;
}

CALLED int cudaMemcpy(long to, long from, long bytes)
{
	int status = cuCtxSetCurrent(&left) + cuMemcpyHtoD_v2(to, from, bytes);

	return status + cuMemcpyHtoD_v2(to, from, bytes);
}

CALLED int cudaEventRecord(void *event, void *stream)
{
	int status = cuEventRecord(event, stream);

	return status + cuEventRecord(event, stream);
}

CALLED int cudaLaunchKernel(void *function)
{
	int status = cuLaunchKernel(function);

	return status + cuLaunchKernel(function);
}

CALLED int cudaMalloc(void **pointer, long bytes)
{
	*pointer = (void *)bytes;
	return 0;
}

int cudaMallocManaged(void **pointer, long bytes);
__asm__(".globl cudaMallocManaged\n.type cudaMallocManaged, @function\ncudaMallocManaged:\n"
	"\tpush %rbp\n\tpop %rbp\n\tjmp cudaMalloc\n.size cudaMallocManaged, "
	".-cudaMallocManaged\n");

CALLED int cudaStreamSynchronize(void *stream)
{
	longjmp(left, stream != NULL);
}

CALLED int caller_of_launches(void)
{
	int wrong = 0;

	for (int i = 0; i < 7; i++)
		wrong += cudaLaunchKernel(&left);
	return wrong;
}

CALLED int caller_of_other_launches(void)
{
	int wrong = 0;

	for (int i = 0; i < 11; i++)
		wrong += cudaLaunchKernel(&left);
	return wrong;
}

CALLED int caller_of_copies(void)
{
	int wrong = 0;

	for (int i = 0; i < 5; i++)
		wrong += cudaMemcpy(1, 2, 3);
	return wrong;
}

CALLED int caller_of_the_driver(void)
{
	int wrong = 0;

	for (int i = 0; i < 2; i++)
		wrong += cuMemcpyHtoD_v2(1, 2, 3);
	return wrong;
}

CALLED int caller_that_is_jumped_over(void)
{
	int wrong = cudaStreamSynchronize(&left);

	return wrong + 1;
}

CALLED int caller_of_events(void)
{
	int wrong = 0;

	for (int i = 0; i < 6; i++)
		wrong += cudaEventRecord(&left, NULL);
	return wrong;
}

CALLED int caller_of_allocations(void)
{
	void *pointer = NULL;
	int wrong = 0;

	for (int i = 0; i < 4; i++)
		wrong += cudaMallocManaged(&pointer, 4096);
	return wrong;
}

int main(void)
{
	volatile int wrong = 0;

	fprintf(stderr, "ready\n");
	getchar();
	wrong += caller_of_launches() + caller_of_other_launches();
	for (volatile int i = 0; i < 3; i++) {
		if (!setjmp(left))
			wrong += caller_that_is_jumped_over();
		wrong += caller_of_copies();
	}
	wrong += caller_of_the_driver() + caller_of_events() + caller_of_allocations();
	fprintf(stderr, "done\n");
	getchar();
	return wrong;
}
