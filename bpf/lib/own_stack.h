/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * A program on a uprobe may be preempted since Linux 6.0. Since 6.13 the kernel gives it a stack that is its CPU's
 * and not its thread's, as if it could not be (a76ab5731e32): two threads that run it on one CPU then write over
 * each other's variables. It gives none to programs with tail calls: so each has one, which is never made.
 * https://github.com/open-telemetry/opentelemetry-ebpf-instrumentation/issues/3056
 */
#ifndef OTELGPU_OWN_STACK_H
#define OTELGPU_OWN_STACK_H

#include "types.h"
#include <bpf/bpf_helpers.h>

#define NO_PROGRAMS(name)                              \
	struct {                                       \
		__uint(type, BPF_MAP_TYPE_PROG_ARRAY); \
		__uint(max_entries, 1);                \
		__type(key, __u32);                    \
		__type(value, __u32);                  \
	} name SEC(".maps")

/* One for each way of attaching: the kernel wants all programs that name an array to be alike. */
NO_PROGRAMS(no_programs);
NO_PROGRAMS(no_sessions);

const volatile bool makes_tail_calls = false;

/* First thing in each program on a uprobe. */
#define ON_OWN_STACK(regs)	      ON_OWN_STACK_BY(regs, no_programs)
#define ON_OWN_STACK_IN_SESSION(regs) ON_OWN_STACK_BY(regs, no_sessions)
#define ON_OWN_STACK_BY(regs, none)                    \
	do {                                           \
		if (makes_tail_calls)                  \
			bpf_tail_call(regs, &none, 0); \
	} while (0)

#endif
