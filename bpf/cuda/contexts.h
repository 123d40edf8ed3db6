/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Which device a thread works on: its context stack, as the calls that change it report. */
#ifndef OTELGPU_CUDA_CONTEXTS_H
#define OTELGPU_CUDA_CONTEXTS_H

#include "cuda.h"
#include "../lib/arguments.h"

#define CONTEXTS_BELOW 8 /* a power of two; deeper ones overwrite the lowest */

struct context_stack {
	__u64 context;		       /* current; 0: the runtime's, or unknown */
	__u64 below[CONTEXTS_BELOW];   /* those under it */
	__s16 devices[CONTEXTS_BELOW]; /* theirs */
	__u32 count;		       /* of those under it */
	__s16 device;		       /* current */
	__u16 reserved;
};

static __always_inline bool follows_device(__u8 shape)
{
	return shape >= SHAPE_DEVICE_SET && shape <= SHAPE_CONTEXT_ENDED;
}

/* A context became known, and is of device `other`. */
static __always_inline bool reports_context(__u8 shape)
{
	return shape == SHAPE_CONTEXT_CREATED || shape == SHAPE_CONTEXT_RETAINED;
}

static __always_inline void choose_context(struct context_stack *stack, __u64 context, __s16 device)
{
	stack->context = context;
	stack->device = device;
}

static __always_inline void push_context(struct context_stack *stack, __u64 context, __s16 device)
{
	__u32 place = stack->count++ & (CONTEXTS_BELOW - 1);

	stack->below[place] = stack->context;
	stack->devices[place] = stack->device;
	choose_context(stack, context, device);
}

static __always_inline void pop_context(struct context_stack *stack)
{
	__u32 place;

	if (!stack->count) {
		choose_context(stack, 0, CUDA_DEVICE_UNKNOWN);
		return;
	}
	place = --stack->count & (CONTEXTS_BELOW - 1);
	choose_context(stack, stack->below[place], stack->devices[place]);
}

/* What a call that succeeded means for its thread. `device`: that of the context `object`. */
static __always_inline void follow_device(struct context_stack *stack,
					  const struct cuda_call *record, __u8 shape, __s16 device)
{
	switch (shape) {
	case SHAPE_DEVICE_SET:
		choose_context(stack, 0, (__s16)record->object);
		break;
	case SHAPE_CONTEXT_SET:
		choose_context(stack, record->object, device);
		break;
	case SHAPE_CONTEXT_CREATED:
		if (record->object) /* else its return is not probed */
			push_context(stack, record->object, (__s16)record->other);
		break;
	case SHAPE_CONTEXT_PUSHED:
		push_context(stack, record->object, device);
		break;
	case SHAPE_CONTEXT_POPPED:
		pop_context(stack);
		break;
	case SHAPE_CONTEXT_ENDED:
		if (record->object && record->object == stack->context)
			pop_context(stack);
		break;
	}
}

#endif
