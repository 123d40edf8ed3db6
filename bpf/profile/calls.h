/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Stacks of calls of vendors' libraries: no probes of their own, see bpf/lib/call_stacks.h. The programs are attached
 * to nothing; user space puts them where those of the other families look for them (otelgpu/kernel/call_stacks.py).
 * Of processes that the in-process source records there is a probe, on a function that it calls for that.
 */
#ifndef OTELGPU_PROFILE_CALLS_H
#define OTELGPU_PROFILE_CALLS_H

#include "../lib/arguments.h"
#include "../lib/call_stacks.h"
#include "stack.h"

static __always_inline int take_call_stack(struct pt_regs *regs)
{
	struct call_stack *stacks = this_call_stack(false);
	struct identity who = current_identity();
	struct profile_sample *sample;
	struct stack_asked *asked;
	__u32 family;
	__u64 stack;

	if (!stacks)
		return 0;
	family = stacks->family;
	if (family >= CALL_FAMILIES)
		return 0;
	asked = &stacks->of[family];
	stack = take_stack(regs, regs, who, LEVEL_TASK);
	sample = begin_sample(PROFILE_CALL, who, asked->began_ns, asked->began_ns);
	if (!sample)
		return stacks->answer & 1;
	sample->stack = stack;
	sample->value = asked->value;
	sample->bytes = asked->bytes;
	sample->other = CALL_NUMBER(family, asked->api);
	/* Last thing before the call itself, whose time begins here. */
	if (!asked->fixed) {
		asked->start_ns = bpf_ktime_get_ns();
		sample->head.time_ns = asked->start_ns;
	}
	submit(sample);
	return stacks->answer & 1;
}

SEC("uprobe/entries")
int call_stack_at_entry(struct pt_regs *regs)
{
	ON_OWN_STACK(regs);
	take_call_stack(regs);
	return 0;
}

SEC("usession/sessions")
int call_stack_in_session(struct pt_regs *regs)
{
	ON_OWN_STACK_IN_SESSION(regs);
	return take_call_stack(regs);
}

/* otelgpu_call_began(start, kind, CALL_NUMBER(…)) of otelgpu/inject/recording.c. */
SEC("uprobe/libotelgpu_inject:otelgpu_call_began")
int call_in_process(struct pt_regs *regs)
{
	struct profile_sample *sample;
	__u64 start_ns, stack;
	struct identity who;

	ON_OWN_STACK(regs);
	start_ns = ARGUMENT_1(regs);
	if (!in_scope(&who) || !wants_stack((__u32)ARGUMENT_2(regs)))
		return 0;
	stack = take_stack(regs, regs, who, LEVEL_TASK);
	sample = begin_sample(PROFILE_CALL, who, start_ns, start_ns);
	if (!sample)
		return 0;
	sample->stack = stack;
	sample->value = 1;
	sample->other = ARGUMENT_3(regs);
	submit(sample);
	return 0;
}

#endif
