/* SPDX-License-Identifier: Apache-2.0 */
/* Functions that a user's probes are put on; waits for a byte, then calls each a known number of times. */
#include <stdio.h>
#include <unistd.h>

#define CALLS 13

__attribute__((noinline)) long work(int a, unsigned short b, const char *text, long d)
{
	volatile long sum = d;

	for (int i = 0; i < 1000; i++)
		sum += text[0];
	return a * 2L - b;
}

__attribute__((noinline)) int deep(int left)
{
	volatile int below = left ? deep(left - 1) : 0;

	return below + 1;
}

int main(void)
{
	char go;

	if (read(0, &go, 1) != 1)
		return 1;
	for (int i = 0; i < CALLS; i++)
		printf("%ld\n", work(-i, (unsigned short)(70 + i), "x", 1L << 40));
	return deep(3) != 4;
}
