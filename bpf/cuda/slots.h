/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * From a function's row in calls.h and the registers at its entry to the slots of
 * its record. Slots that are results are finished at the return.
 */
#ifndef OTELGPU_CUDA_SLOTS_H
#define OTELGPU_CUDA_SLOTS_H

#include "cuda.h"
#include "layouts.h"
#include "../lib/words.h"

/* A row of the table. */
struct spec {
	__u8 kind;
	__u8 shape;
	__u8 memory;
	__u8 driver; /* not the runtime */
	__u8 object;
	__u8 other;
	__u8 bytes;
	__u8 stream;
	__u8 extra;
	__u8 detail;
	__u8 results; /* some slot is known at the return only */
	__u8 stack;   /* some slot is on the stack */
	__u8 reserved[4];
};

#define ANY_IS(bit, a, b, c, d, e, f) (!!(((a) | (b) | (c) | (d) | (e) | (f)) & (bit)))
#define SLOTS(a, b, c, d, e, f) \
	.object = (a), .other = (b), .bytes = (c), .stream = (d), .extra = (e), .detail = (f)
#define SPEC(is_driver, symbol, of_shape, of_kind, of_memory, ...)             \
	[API_##symbol] = { .kind = CUDA_##of_kind,                             \
			   .shape = SHAPE_##of_shape,                          \
			   .memory = CUDA_MEMORY_##of_memory,                  \
			   .driver = is_driver,                                \
			   SLOTS(__VA_ARGS__),                                 \
			   .results = ANY_IS(SOURCE_OUT, __VA_ARGS__),         \
			   .stack = ANY_IS(SOURCE_STACK, __VA_ARGS__) ||       \
				    SHAPE_##of_shape == SHAPE_ALLOCATION_3D || \
				    SHAPE_##of_shape == SHAPE_ARRAY_3D },
#define RUNTIME_SPEC(...) SPEC(0, __VA_ARGS__)
#define DRIVER_SPEC(...)  SPEC(1, __VA_ARGS__)

/* Which slots the sources that take more than a look into the registers may be in. */
#define ASSUME(symbol, shape, kind, memory, object, other, bytes, stream, extra, detail)          \
	_Static_assert(!(((stream) | (detail)) & SOURCE_OUT), #symbol ": a result");              \
	_Static_assert(!(((bytes) | (stream) | (extra) | (detail)) & SOURCE_IN), #symbol ": IN"); \
	_Static_assert(!(((object) | (other)) & SOURCE_IN) || SHAPE_##shape == SHAPE_COPY_BATCH,  \
		       #symbol ": IN");
CUDA_CALLS(ASSUME)

static const struct spec specs[API_COUNT] = { CUDA_RUNTIME_CALLS(RUNTIME_SPEC)
						      CUDA_DRIVER_CALLS(DRIVER_SPEC) };

/* -- Sources -------------------------------------------------------------------------------- */

/* Of a result: where it will be. */
static __always_inline __u64 slot(const struct words *words, __u8 source)
{
	__u64 place = (source & 7) | (source & SOURCE_STACK) >> 2;

#ifdef __bpf__
	/* The verifier of Linux 6.1 does not see the bound of an `|`; the compiler may not take this one out. */
	asm volatile("%0 &= 15" : "+r"(place));
#endif
	return words->at[place];
}

/* What a slot points at, instead of where. */
static __always_inline void follow(__u64 *slot)
{
	__u64 value = 0;

	if (*slot)
		read_user(&value, sizeof(value), (void *)*slot);
	*slot = value;
}

static __always_inline void fill_slots(struct cuda_call *record, const struct words *words,
				       const struct spec *spec)
{
	record->object = slot(words, spec->object);
	record->other = slot(words, spec->other);
	record->bytes = slot(words, spec->bytes);
	record->stream = slot(words, spec->stream);
	record->extra = slot(words, spec->extra);
	record->detail = (spec->detail & SOURCE_CONSTANT) == SOURCE_CONSTANT
				 ? spec->detail & 7
				 : (__u32)slot(words, spec->detail);
	record->memory = spec->memory;
}

/* -- Launches ------------------------------------------------------------------------------- */

static __always_inline void copy_3(__u32 into[3], const __u32 from[3])
{
	into[0] = from[0];
	into[1] = from[1];
	into[2] = from[2];
}

static __always_inline void fill_launch(struct cuda_call *record, struct pt_regs *regs, __u8 shape)
{
	const void *first = (const void *)ARGUMENT_1(regs);
	__u64 stack[3] = {};
	union {
		struct launch_config config;
		struct launch_params params;
		struct driver_launch_params driver;
	} at = {};

	switch (shape) {
	case SHAPE_LAUNCH:
		/* A dim3 by value takes two integer registers, x and y packed in the first. */
		record->function = ARGUMENT_1(regs);
		record->grid[0] = (__u32)ARGUMENT_2(regs);
		record->grid[1] = ARGUMENT_2(regs) >> 32;
		record->grid[2] = (__u32)ARGUMENT_3(regs);
		record->block[0] = (__u32)ARGUMENT_4(regs);
		record->block[1] = ARGUMENT_4(regs) >> 32;
		record->block[2] = (__u32)ARGUMENT_5(regs);
		read_user(stack, 2 * sizeof(__u64), (void *)(regs->sp + 8));
		record->shared_bytes = stack[0];
		record->stream = stack[1];
		break;
	case SHAPE_LAUNCH_DRIVER:
		record->function = ARGUMENT_1(regs);
		record->grid[0] = (__u32)ARGUMENT_2(regs);
		record->grid[1] = (__u32)ARGUMENT_3(regs);
		record->grid[2] = (__u32)ARGUMENT_4(regs);
		record->block[0] = (__u32)ARGUMENT_5(regs);
		record->block[1] = (__u32)ARGUMENT_6(regs);
		read_user(stack, sizeof(stack), (void *)(regs->sp + 8));
		record->block[2] = (__u32)stack[0];
		record->shared_bytes = (__u32)stack[1];
		record->stream = stack[2];
		break;
	case SHAPE_LAUNCH_CONFIG:
	case SHAPE_LAUNCH_DRIVER_CONFIG:
		record->function = ARGUMENT_2(regs);
		read_user(&at.config, sizeof(at.config), first);
		copy_3(record->grid, at.config.grid);
		copy_3(record->block, at.config.block);
		record->shared_bytes = shape == SHAPE_LAUNCH_CONFIG ? at.config.shared_bytes
								    : (__u32)at.config.shared_bytes;
		record->stream = at.config.stream;
		break;
	case SHAPE_LAUNCH_DEVICES:
		read_user(&at.params, sizeof(at.params), first);
		record->function = at.params.function;
		copy_3(record->grid, at.params.grid);
		copy_3(record->block, at.params.block);
		record->shared_bytes = at.params.shared_bytes;
		record->stream = at.params.stream;
		break;
	case SHAPE_LAUNCH_DRIVER_DEVICES:
		read_user(&at.driver, sizeof(at.driver), first);
		record->function = at.driver.function;
		copy_3(record->grid, at.driver.grid);
		copy_3(record->block, at.driver.block);
		record->shared_bytes = at.driver.shared_bytes;
		record->stream = at.driver.stream;
		break;
	}
}

/* -- Shapes: what the slots alone cannot report ------------------------------------------------ */

static __always_inline __u64 or_one(__u64 extent)
{
	return extent ? extent : 1; /* an array's missing dimension is given as 0 */
}

/* Bytes of a channel of CUarray_format; 0 for formats that are more than a number. */
static __always_inline __u32 format_bytes(__u32 format)
{
	switch (format) {
	case 0x01: /* unsigned and signed, 8 bits */
	case 0x08:
		return 1;
	case 0x02: /* unsigned, signed and float, 16 bits */
	case 0x09:
	case 0x10:
		return 2;
	case 0x03: /* unsigned, signed and float, 32 bits */
	case 0x0a:
	case 0x20:
		return 4;
	}
	return 0;
}

static __always_inline __u64 channel_bytes(const void *description)
{
	struct channel_format format = {};

	read_user(&format, sizeof(format), description);
	return (__u32)(format.bits[0] + format.bits[1] + format.bits[2] + format.bits[3]) / 8;
}

/* enum cudaMemcpyKind of a copy from one CUmemorytype to another */
static __always_inline __u32 direction(__u32 source, __u32 destination)
{
	if (source == MEMORY_TYPE_UNIFIED || destination == MEMORY_TYPE_UNIFIED)
		return 4;
	return (source != MEMORY_TYPE_HOST) << 1 | (destination != MEMORY_TYPE_HOST);
}

static __always_inline __u64 address(const struct copy_end *end)
{
	return end->type == MEMORY_TYPE_HOST	? end->host
	       : end->type == MEMORY_TYPE_ARRAY ? end->array
						: end->device;
}

#define BATCH_AT_ONCE 8
#define BATCH_MOST    64

/* The sum of as many sizes. */
static __always_inline __u64 batch_bytes(const struct words *words)
{
	__u64 sizes[BATCH_AT_ONCE], sum = 0, left = words->at[4];
	const __u64 *from = (const __u64 *)words->at[3];

	for (int chunk = 0; chunk < BATCH_MOST / BATCH_AT_ONCE && left; chunk++) {
		__u32 here = left < BATCH_AT_ONCE ? (__u32)left : BATCH_AT_ONCE;

		__builtin_memset(sizes, 0, sizeof(sizes));
		if (!read_user(sizes, here * sizeof(__u64), from))
			break;
		for (int i = 0; i < BATCH_AT_ONCE; i++)
			sum += sizes[i];
		from += BATCH_AT_ONCE;
		left -= here;
	}
	count_many(COUNTER_BATCH_CUT, left);
	return sum;
}

/*
 * At the entry, after the slots. A function of its own for the verifier, which then
 * looks at each shape once and not once for each way to get here; it checks the
 * arguments where it is called, and they are never NULL.
 */
__attribute__((noinline)) int fill_shape(struct cuda_call *record, const struct words *words,
					 __u32 shape)
{
	const void *first = words ? (const void *)words->at[1] : NULL;
	union {
		struct copy_3d copy_3d;
		struct copy_3d_peer copy_3d_peer;
		struct driver_copy_2d driver_copy_2d;
		struct driver_copy_3d driver_copy_3d;
		struct driver_array array;
		struct driver_array_3d array_3d;
		struct physical_properties physical;
	} at = {};

	if (!record || !words)
		return 0;
	switch (shape) {
	case SHAPE_SET_3D:
		record->bytes = words->at[12] * words->at[13] * words->at[14];
		break;
	case SHAPE_ALLOCATION_3D:
		record->bytes = words->at[8];
		record->extra = words->at[9] * words->at[10];
		break;
	case SHAPE_COPY_3D:
		read_user(&at.copy_3d, sizeof(at.copy_3d), first);
		record->object = at.copy_3d.destination.pointer ?: at.copy_3d.destination_array;
		record->other = at.copy_3d.source.pointer ?: at.copy_3d.source_array;
		record->bytes = at.copy_3d.extent[0] * at.copy_3d.extent[1] * at.copy_3d.extent[2];
		record->detail = at.copy_3d.direction;
		break;
	case SHAPE_COPY_3D_PEER:
		read_user(&at.copy_3d_peer, sizeof(at.copy_3d_peer), first);
		record->object =
			at.copy_3d_peer.destination.pointer ?: at.copy_3d_peer.destination_array;
		record->other = at.copy_3d_peer.source.pointer ?: at.copy_3d_peer.source_array;
		record->bytes = at.copy_3d_peer.extent[0] * at.copy_3d_peer.extent[1] *
				at.copy_3d_peer.extent[2];
		break;
	case SHAPE_COPY_2D_DRIVER:
		read_user(&at.driver_copy_2d, sizeof(at.driver_copy_2d), first);
		record->object = address(&at.driver_copy_2d.destination);
		record->other = address(&at.driver_copy_2d.source);
		record->bytes = at.driver_copy_2d.extent[0] * at.driver_copy_2d.extent[1];
		record->detail = direction(at.driver_copy_2d.source.type,
					   at.driver_copy_2d.destination.type);
		break;
	case SHAPE_COPY_3D_DRIVER:
		read_user(&at.driver_copy_3d, sizeof(at.driver_copy_3d), first);
		record->object = address(&at.driver_copy_3d.destination);
		record->other = address(&at.driver_copy_3d.source);
		record->bytes = at.driver_copy_3d.extent[0] * at.driver_copy_3d.extent[1] *
				at.driver_copy_3d.extent[2];
		record->detail = direction(at.driver_copy_3d.source.type,
					   at.driver_copy_3d.destination.type);
		break;
	case SHAPE_COPY_BATCH:
		follow(&record->object);
		follow(&record->other);
		record->bytes = batch_bytes(words);
		break;
	case SHAPE_ARRAY:
		record->bytes = channel_bytes((void *)words->at[2]) * or_one(words->at[3]) *
				or_one(words->at[4]);
		break;
	case SHAPE_ARRAY_3D:
		record->bytes = channel_bytes((void *)words->at[2]) * or_one(words->at[8]) *
				or_one(words->at[9]) * or_one(words->at[10]);
		break;
	case SHAPE_ARRAY_DRIVER:
		read_user(&at.array, sizeof(at.array), (void *)words->at[2]);
		record->bytes = or_one(at.array.width) * or_one(at.array.height) *
				at.array.channels * format_bytes(at.array.format);
		break;
	case SHAPE_ARRAY_3D_DRIVER:
		read_user(&at.array_3d, sizeof(at.array_3d), (void *)words->at[2]);
		record->bytes = or_one(at.array_3d.width) * or_one(at.array_3d.height) *
				or_one(at.array_3d.depth) * at.array_3d.channels *
				format_bytes(at.array_3d.format);
		break;
	case SHAPE_PHYSICAL:
		read_user(&at.physical, sizeof(at.physical), (void *)words->at[3]);
		if (at.physical.location_type == LOCATION_DEVICE)
			record->device = (__s16)at.physical.location;
		break;
	}
	return 0;
}

/* -- Results -------------------------------------------------------------------------------- */

static __always_inline void resolve(__u64 *slot, __u8 source, bool succeeded)
{
	if (!(source & SOURCE_OUT))
		return;
	if (succeeded)
		follow(slot);
	else
		*slot = 0;
}

/* At the return, or at the entry when that is all there is. */
static __always_inline void finish_slots(struct cuda_call *record, const struct spec *spec,
					 bool succeeded)
{
	__u64 where = record->object;

	if (spec->results) {
		resolve(&record->object, spec->object, succeeded);
		resolve(&record->other, spec->other, succeeded);
		resolve(&record->bytes, spec->bytes, succeeded);
		resolve(&record->extra, spec->extra, succeeded);
	}
	switch (spec->shape) {
	case SHAPE_ALLOCATION_3D:
		/* struct cudaPitchedPtr: the pitch follows the pointer */
		if (succeeded)
			read_user(&record->bytes, sizeof(record->bytes), (void *)(where + 8));
		record->bytes *= record->extra;
		record->extra = 0;
		break;
	case SHAPE_ELEMENTS_2:
		record->bytes *= 2;
		break;
	case SHAPE_ELEMENTS_4:
		record->bytes *= 4;
		break;
	case SHAPE_AREA:
		record->bytes *= record->extra;
		record->extra = 0;
		break;
	case SHAPE_AREA_2:
		record->bytes *= 2 * record->extra;
		record->extra = 0;
		break;
	case SHAPE_AREA_4:
		record->bytes *= 4 * record->extra;
		record->extra = 0;
		break;
	}
}

#endif
