// SPDX-License-Identifier: Apache-2.0
/*
 * A libcudart of a few functions that do what no vendor's does, to see what the in-process source makes of it.
 * COPY reports copies apart: each function's result begins with it.
 */
#include <errno.h>
#include <stddef.h>

#ifndef COPY
#define COPY 0
#endif
#define EXPORTED __attribute__((visibility("default"), noipa))

struct handle {
	char bytes[64];
};

void (*in_free)(void); /* what cudaFree does */
void (*in_load)(void); /* what is done while the linker loads a copy: of the first one, for all */

__attribute__((constructor)) static void loaded(void)
{
	if (in_load)
		in_load();
}

EXPORTED int cudaFree(void *pointer)
{
	(void)pointer;
	if (in_free)
		in_free();
	return COPY;
}

/* By its exported name, as libraries call themselves and each other. */
EXPORTED int cudaMalloc(void **pointer, size_t size)
{
	cudaFree(NULL);
	*pointer = (void *)size;
	errno = ERANGE;
	return COPY;
}

/* The most that any function of the API has on the stack. */
EXPORTED int cudaIpcOpenMemHandle(void **pointer, struct handle handle, unsigned int flags)
{
	unsigned int sum = flags;

	for (size_t i = 0; i < sizeof(handle); i++)
		sum += (unsigned int)handle.bytes[i] * (unsigned int)(i + 1);
	*pointer = (void *)(size_t)sum;
	return COPY;
}
