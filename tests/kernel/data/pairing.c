/* SPDX-License-Identifier: Apache-2.0 */
/* Calls inside calls, from one place, left by longjmp, and deeper than anybody keeps: bpf/lib/calls.h. */
#include <setjmp.h>
#include <stdio.h>

static jmp_buf left;
#define CALLED __attribute__((noipa)) /* whatever the compiler could know of it */

CALLED long inner(long argument)
{
	return argument + 1;
}

CALLED long outer(long argument)
{
	return inner(argument) + inner(argument);
}

CALLED long jumped_to(long argument)
{
	return argument + 2;
}

long jumps(long argument);
__asm__(".globl jumps\n.type jumps, @function\njumps:\n\tnop\n\tjmp jumped_to\n.size jumps, "
	".-jumps\n");

CALLED long leaves(long argument)
{
	longjmp(left, (int)argument);
}

CALLED long recurses(long argument)
{
	return argument ? 1 + recurses(argument - 1) : 0;
}

/* From deeper in the stack than what was left. */
static CALLED long deeper(long argument)
{
	volatile char room[4096];

	room[0] = 0;
	return inner(argument) + room[0];
}

int main(void)
{
	volatile long sum = 0;

	fprintf(stderr, "ready\n");
	getchar();
	for (int i = 0; i < 7; i++)
		sum += outer(i);
	for (int i = 0; i < 5; i++)
		sum += jumps(i);
	for (volatile int i = 0; i < 3; i++) {
		if (!setjmp(left))
			leaves(1);
		sum += deeper(i);
	}
	sum += recurses(5); /* six of them */
	return sum != 56 + 20 + 6 + 5;
}
