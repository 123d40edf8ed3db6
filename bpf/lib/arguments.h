/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Arguments of a probed function: System V AMD64 ABI, integer class. */
#ifndef OTELGPU_ARGUMENTS_H
#define OTELGPU_ARGUMENTS_H

#include "counters.h"

#define ARGUMENT_1(regs) ((regs)->di)
#define ARGUMENT_2(regs) ((regs)->si)
#define ARGUMENT_3(regs) ((regs)->dx)
#define ARGUMENT_4(regs) ((regs)->cx)
#define ARGUMENT_5(regs) ((regs)->r8)
#define ARGUMENT_6(regs) ((regs)->r9)
#define RESULT(regs)	 ((regs)->ax)

/* Stack argument n (from 0) at function entry, above the return address. */
static __always_inline __u64 stack_argument(struct pt_regs *regs, int n)
{
	__u64 value = 0;

	if (bpf_probe_read_user(&value, sizeof(value), (void *)(regs->sp + 8 + 8 * n)))
		count(COUNTER_ARGUMENT_UNREADABLE);
	return value;
}

/*
 * In a `usession` program: whether the probed function has returned. At its entry the instruction pointer is
 * where the probe lies, which the helper reports at the return as well. (The kernel's bpf_session_is_return()
 * takes nothing in Linux 6.13 and the context in 7.2: no declaration fits both.)
 */
static __always_inline bool is_return(struct pt_regs *regs)
{
	return regs->ip != bpf_get_func_ip(regs);
}

/* Copy `size` bytes of user memory; zeroes and a count when it faults. */
static __always_inline bool read_user(void *into, __u32 size, const void *from)
{
	if (bpf_probe_read_user(into, size, from)) {
		count(COUNTER_ARGUMENT_UNREADABLE);
		return false;
	}
	return true;
}

#endif
