/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Who is on a CPU when its clock strikes. */
#ifndef OTELGPU_CPU_H
#define OTELGPU_CPU_H

#include "stack.h"

const volatile __u64 cpu_period_ns = 0; /* what one sample stands for */

SEC("perf_event")
int cpu_sample(void *ctx)
{
	struct profile_sample *sample;
	struct identity who;
	__u64 stack, now;

	if (!in_scope(&who) || is_kernel_thread())
		return 0;
	now = bpf_ktime_get_ns();
	stack = take_stack(ctx, NULL, who, LEVEL_INTERRUPT);
	sample = begin_sample(PROFILE_CPU, who, now, now);
	if (!sample)
		return 0;
	sample->stack = stack;
	sample->value = cpu_period_ns;
	submit(sample);
	return 0;
}

#endif
