/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Stacks at a user's probes. User space attaches the program, with the probe's number as its cookie. */
#ifndef OTELGPU_PROFILE_USER_H
#define OTELGPU_PROFILE_USER_H

#include "stack.h"

#define USER_INSIDE (1 << 16) /* in the cookie: in the middle of a function, not at its entry */

SEC("uprobe")
int user_sample(struct pt_regs *regs)
{
	__u64 cookie = bpf_get_attach_cookie(regs);
	struct profile_sample *sample;
	struct identity who;
	__u64 stack, now;

	ON_OWN_STACK(regs);
	if (!in_scope(&who))
		return 0;
	now = bpf_ktime_get_ns();
	if (cookie & USER_INSIDE)
		stack = take_stack(regs, NULL, who, LEVEL_TASK);
	else
		stack = take_stack(regs, regs, who, LEVEL_TASK);
	sample = begin_sample(PROFILE_USER, who, now, now);
	if (!sample)
		return 0;
	sample->stack = stack;
	sample->value = 1;
	sample->other = cookie & (USER_INSIDE - 1);
	submit(sample);
	return 0;
}

#endif
