/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What is kept of a thread that calls NCCL, and the way from a function's row in calls.h and the registers at its
 * entry to the slots of its record.
 */
#ifndef OTELGPU_NCCL_SLOTS_H
#define OTELGPU_NCCL_SLOTS_H

#include "communicators.h"
#include "../lib/calls.h"
#include "../lib/words.h"

/* -- The table -------------------------------------------------------------------------------- */

struct spec {
	__u8 kind;
	__u8 shape;
	__u8 function; /* enum nccl_function */
	__u8 communicator;
	__u8 count;
	__u8 datatype;
	__u8 reduction;
	__u8 peer;
	__u8 stream;
	__u8 stack; /* some slot is on the stack */
	__u8 reserved[6];
};

#define ON_STACK(slot) ((slot) >= STACK(0))
#define SPEC(symbol, of_kind, of_shape, of_function, comm, elements, type, op, other, on) \
	[API_##symbol] = { .kind = NCCL_##of_kind,                                        \
			   .shape = SHAPE_##of_shape,                                     \
			   .function = FUNCTION_##of_function,                            \
			   .communicator = comm,                                          \
			   .count = elements,                                             \
			   .datatype = type,                                              \
			   .reduction = op,                                               \
			   .peer = other,                                                 \
			   .stream = on,                                                  \
			   .stack = ON_STACK(comm) || ON_STACK(on) ||                     \
				    SHAPE_##of_shape == SHAPE_MADE },
static const struct spec specs[API_COUNT] = { NCCL_CALLS(SPEC) };

SPEC_OF(0)

/* -- State ------------------------------------------------------------------------------------ */

#define PENDING	      16 /* communicators made in one group; more are said when they are first used */
#define GROUP_DEEPEST 64

/* A communicator that will be there when the group ends. */
struct pending {
	__u64 at; /* ncclComm_t * */
	__u64 parent;
	__u64 identity;
	__s32 rank;
	__s32 ranks;
	__s32 color;
	__u16 api;
	__u16 reserved;
};

/* The call that a thread is inside of. */
struct call {
	struct open_call open;
	struct nccl_call record;
	struct pending made; /* shapes that make one */
	__u64 out;	     /* where the result will be: ncclResult_t *, ncclComm_t[] */
	__s32 graphs;	     /* that the communicator was captured into, before */
	__u8 layout;
	__u8 counted; /* `sequence` was read: it should have moved at the return */
	__u8 reserved[2];
};

struct group {
	__u64 time_ns;
	__u64 communicator; /* of all members; 0: they differ */
	__u64 hash;
	__u64 stream;
	__u32 ordinal;
	__u32 depth;
	__u32 calls;
	__u32 pendings;
	__s32 rank;
	__s32 graphs;
	__u16 kept; /* whether the communicator of the first member is still that of all */
	__u8 collectives;
	__u8 device_known;
	__s16 device;
	__s16 reserved;
};

struct thread {
	struct call call;
	struct group group;
	struct pending pending[PENDING];
	struct words words;
	__u32 depth; /* calls that are open, of which the outermost is kept: 0 or 1 */
	__u32 reserved;
};

#include "../lib/thread_state.h"

/* -- Slots ------------------------------------------------------------------------------------ */

static __always_inline __u64 slot(const struct words *words, __u8 source)
{
	return words->at[source & (WORDS - 1)];
}

static __always_inline void fill_slots(struct nccl_call *record, const struct words *words,
				       const struct spec *spec)
{
	__u32 reduction = (__u32)slot(words, spec->reduction);

	record->communicator = slot(words, spec->communicator);
	record->count = slot(words, spec->count);
	record->stream = slot(words, spec->stream);
	record->peer = spec->peer ? (__s32)slot(words, spec->peer) : -1;
	record->datatype = spec->datatype ? (__u8)slot(words, spec->datatype) : NCCL_NO_TYPE;
	record->reduction = NCCL_NO_REDUCTION;
	if (spec->reduction)
		record->reduction =
			reduction < NCCL_REDUCTION_OF_OWN ? (__u8)reduction : NCCL_REDUCTION_OF_OWN;
}

static __always_inline __u64 user_word(__u64 address)
{
	__u64 word = 0;

	if (address)
		read_user(&word, sizeof(word), (void *)address);
	return word;
}

/* ncclWaitSignalDesc_t */
struct wait_signal {
	__s32 operations;
	__s32 peer;
	__s32 signal;
	__s32 context;
};

/* At the entry, after the slots. Of its own for the verifier. */
__attribute__((noinline)) int fill_shape(struct call *call, const struct words *words, __u32 shape)
{
	struct wait_signal first = {};
	struct pending *made;

	if (!call || !words)
		return 0;
	made = &call->made;
	made->rank = -1;
	made->ranks = -1;
	made->api = call->record.api;
	made->parent = call->record.communicator;
	switch (shape) {
	case SHAPE_MADE:
		made->at = words->at[1];
		made->ranks = (__s32)words->at[2];
		made->rank = (__s32)words->at[3];
		made->identity = digest(words->at[STACK(0)]);
		break;
	case SHAPE_MADE_SCALABLE:
		made->at = words->at[1];
		made->ranks = (__s32)words->at[2];
		made->rank = (__s32)words->at[3];
		made->identity = digest(user_word(words->at[5]));
		break;
	case SHAPE_MADE_ALL:
		call->out = words->at[1];
		made->ranks = (__s32)words->at[2];
		break;
	case SHAPE_MADE_SPLIT:
		made->color = (__s32)words->at[2];
		made->at = words->at[4];
		break;
	case SHAPE_MADE_SHRUNK:
		made->at = words->at[4];
		break;
	case SHAPE_MADE_GROWN:
		made->ranks = (__s32)words->at[2];
		made->rank = (__s32)words->at[4];
		made->at = words->at[5];
		break;
	case SHAPE_ASYNC_ERROR:
		call->out = words->at[2];
		break;
	case SHAPE_WAIT_SIGNAL:
		if (words->at[1] == 1 && read_user(&first, sizeof(first), (void *)words->at[2]))
			call->record.peer = first.peer;
		break;
	}
	return 0;
}

static __always_inline bool makes(__u8 shape)
{
	return shape >= SHAPE_MADE && shape <= SHAPE_MADE_GROWN;
}

#endif
