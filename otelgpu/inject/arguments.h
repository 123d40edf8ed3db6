/* SPDX-License-Identifier: Apache-2.0 */
/*
 * In the place of bpf/lib/arguments.h, whose guard it takes: what bpf/cuda/slots.h
 * reads arguments with, here inside the process that they belong to.
 */
#ifndef OTELGPU_ARGUMENTS_H
#define OTELGPU_ARGUMENTS_H

#include "memory.h"

#include <sys/cdefs.h> /* __always_inline */

#define COUNTER_ARGUMENT_UNREADABLE INJECT_ARGUMENT_UNREADABLE
#define COUNTER_BATCH_CUT	    INJECT_BATCH_CUT

#define ARGUMENT_1(regs) ((regs)->di)
#define ARGUMENT_2(regs) ((regs)->si)
#define ARGUMENT_3(regs) ((regs)->dx)
#define ARGUMENT_4(regs) ((regs)->cx)
#define ARGUMENT_5(regs) ((regs)->r8)
#define ARGUMENT_6(regs) ((regs)->r9)

/* Of this thread; recording.c. */
void count_many(enum inject_counter which, __u64 amount);

/*
 * The function itself is about to read what its arguments point at, or has: only
 * what it may answer with an error is asked about here.
 */
static __always_inline bool read_user(void *into, __u32 size, const void *from)
{
	if ((__u64)from < 4096 || (__u64)from >> 47) {
		__builtin_memset(into, 0, size);
		count_many(COUNTER_ARGUMENT_UNREADABLE, 1);
		return false;
	}
	__builtin_memcpy(into, from, size);
	return true;
}

#endif
