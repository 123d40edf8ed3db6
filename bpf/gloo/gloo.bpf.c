// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Family gloo: collectives of gloo, which PyTorch's processes without GPUs use, sends and receives (transfers.h), and
 * three things that their threads do around them: a wait for a batch of data, a backward pass, a wait for collectives.
 * Of processes that never called gloo nothing is recorded: the functions of PyTorch are in those of GPUs too.
 */
#include "gloo.h"
#include "../lib/calls.h"
#include <bpf/bpf_tracing.h>

RECORD(gloo_call);
RECORD(gloo_stretch);
ENUM(gloo_kind);
ENUM(gloo_api);
ENUM(gloo_stretch_of);

#define PROCESSES	8192
#define MOST_RANKS	(1 << 20)
#define LARGEST_ELEMENT 64
#define LARGEST_SIZE	(1ull << 48)
#define NESTED		4
#define CONTEXT_RANK_AT \
	8 /* gloo/context.h: after the virtual table `const int rank`, `const int size` */
#define BUFFER_BYTES_AT \
	16 /* gloo/transport/unbound_buffer.h: after it `void *const ptr`, `const size_t size` */
#define RECORDED_BYTES 64 /* of a PythonRecordFunction, before its RecordFunction */

#define DATA_LOADER "enumerate(DataLoader)" /* what torch.utils.data calls it */

/* Processes that have called gloo. The oldest are forgotten. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, PROCESSES);
	__type(key, __u32);
	__type(value, __u8);
} processes SEC(".maps");

struct spec {
	__u8 shape;
	__u8 elements;
	__u8 element_bytes;
	__u8 buffer;
	__u8 root;
	__u8 tag;
	__u8 reserved[2];
};

#define SPEC(symbol, of_shape, count, size, at, other, number) \
	[API_##symbol] = { .shape = SHAPE_##of_shape,          \
			   .elements = count,                  \
			   .element_bytes = size,              \
			   .buffer = at,                       \
			   .root = other,                      \
			   .tag = number },
static const struct spec specs[API_COUNT] = { GLOO_CALLS(SPEC) };

SPEC_OF(1) /* API_NONE has none */

#include "transfers.h"

struct call {
	struct open_call open;
	__u64 start_ns;
	__u64 context;
	__u64 bytes;
	__u32 tag;
	__s32 rank;
	__s32 ranks;
	__s32 root;
	__u8 tagged;
	__u8 reserved[7];
	struct transfer transfer; /* that it begins, or waits for */
};

/* Of one thread: the calls that it is inside of, and the wait for data that it is in. */
struct thread {
	struct call calls[NESTED];
	__u64 loader_start_ns;
	__u64 loader; /* the object that stands for it; 0: none */
	__u32 depth;
	__u32 reserved;
};

#include "../lib/thread_state.h"

/* -- Options of a collective ------------------------------------------------------------------ */

static __always_inline __u64 word_at(__u64 address)
{
	__u64 word = 0;

	read_user(&word, sizeof(word), (void *)address);
	return word;
}

static __always_inline __u32 half_at(__u64 address)
{
	__u32 half = 0;

	read_user(&half, sizeof(half), (void *)address);
	return half;
}

/* Of its own for the stack. What cannot be is left unknown, and counted. */
__attribute__((noinline)) int read_options(struct call *call, __u64 options, __u32 api)
{
	const struct spec *spec = spec_of(api);
	__u64 elements, element_bytes = 1, buffer;

	if (!call || !spec)
		return 0;
	call->rank = call->ranks = call->root = -1;
	call->context = word_at(options);
	if (!call->context)
		return 0;
	call->rank = (__s32)half_at(call->context + CONTEXT_RANK_AT);
	call->ranks = (__s32)half_at(call->context + CONTEXT_RANK_AT + 4);
	if (spec->element_bytes != NO)
		element_bytes = word_at(options + spec->element_bytes) & 0xffffffff;
	if (call->ranks < 1 || call->ranks > MOST_RANKS || call->rank < 0 ||
	    call->rank >= call->ranks || !element_bytes || element_bytes > LARGEST_ELEMENT) {
		count(COUNTER_COMMUNICATOR_IMPLAUSIBLE);
		call->rank = call->ranks = -1;
		return 0;
	}
	if (spec->elements != NO) {
		elements = word_at(options + spec->elements);
		if (elements <= LARGEST_SIZE / LARGEST_ELEMENT)
			call->bytes = elements * element_bytes;
	} else if (spec->buffer != NO) {
		buffer = word_at(options + spec->buffer);
		if (buffer)
			call->bytes = word_at(buffer + BUFFER_BYTES_AT);
		if (call->bytes > LARGEST_SIZE)
			call->bytes = 0;
	}
	if (spec->root != NO)
		call->root = (__s32)half_at(options + spec->root);
	if (spec->tag != NO) {
		call->tag = half_at(options + spec->tag);
		call->tagged = 1;
	}
	return 0;
}

/* -- Records ---------------------------------------------------------------------------------- */

static __always_inline void emit_call(const struct call *call, __u32 api, __u64 end_ns,
				      bool returned)
{
	struct gloo_call *record =
		EMIT_BEGIN(gloo_call, GLOO_CALL, current_identity(), call->start_ns, end_ns);

	if (!record)
		return;
	record->head.returned = returned;
	record->context = call->context;
	record->bytes = call->bytes;
	record->tag = call->tag;
	record->rank = call->rank;
	record->ranks = call->ranks;
	record->root = call->root;
	record->api = (__u16)api;
	record->tagged = call->tagged;
	record->transfer = call->transfer.group != 0;
	submit(record);
}

static __always_inline void emit_stretch(__u16 of, __u64 start_ns, __u64 end_ns)
{
	struct gloo_stretch *record =
		EMIT_BEGIN(gloo_stretch, GLOO_STRETCH, current_identity(), start_ns, end_ns);

	if (!record)
		return;
	record->head.returned = 1;
	record->of = of;
	submit(record);
}

/* -- Sends and receives ----------------------------------------------------------------------- */

static __always_inline void begin_transfer(struct call *call, struct pt_regs *regs,
					   const struct spec *spec, __u32 api, __u32 tgid)
{
	struct transfer *transfer = &call->transfer;
	bool any = spec->root == NO;

	transfer->group = ARGUMENT_2(regs);
	transfer->peer = any ? -1 : (__s32)ARGUMENT_4(regs);
	transfer->api = (__u16)api;
	read_transfer(transfer, tgid, spec->shape == SHAPE_SEND, any || ARGUMENT_5(regs) != 0);
}

/* When the wait for it has ended; where returns are not seen, when it began. */
static __always_inline void emit_transfer(struct call *call, __u64 end_ns, bool returned)
{
	const struct transfer *transfer = &call->transfer;

	call->context = transfer->group;
	call->rank = transfer->rank;
	call->ranks = transfer->ranks;
	call->root = transfer->peer;
	call->tag = transfer->number;
	call->tagged = transfer->numbered;
	emit_call(call, transfer->api, end_ns, returned);
}

/* -- Entry and return ------------------------------------------------------------------------- */

static __always_inline bool is_data_loader(struct pt_regs *regs)
{
	char wanted[] = DATA_LOADER, name[sizeof(wanted)] = {};
	__u64 text = word_at(ARGUMENT_2(regs)); /* the first is where the result goes */

	if (!text || bpf_probe_read_user(name, sizeof(name) - 1, (void *)text))
		return false;
	for (__u32 i = 0; i < sizeof(name); i++)
		if (name[i] != wanted[i])
			return false;
	return true;
}

static __always_inline bool begins_transfer(const struct spec *spec)
{
	return spec->shape == SHAPE_SEND || spec->shape == SHAPE_RECEIVE;
}

/* Whoever calls it is a process of gloo's. */
static __always_inline bool calls_gloo(const struct spec *spec)
{
	return spec->shape == SHAPE_COLLECTIVE || begins_transfer(spec);
}

static __always_inline int enter(struct pt_regs *regs, bool session)
{
	__u64 cookie = bpf_get_attach_cookie(regs);
	__u32 api = (__u32)cookie;
	const struct spec *spec = spec_of(api);
	bool returns = returns_of(cookie);
	struct open_calls calls;
	struct thread *thread;
	struct identity who;
	struct call *call;
	__u8 one = 1;

	(void)session;
	if (!spec || !in_scope(&who))
		return RETURN_IGNORED;
	if (spec->shape == SHAPE_GROUP) {
		group_made(who.tgid, ARGUMENT_1(regs), (__s32)ARGUMENT_3(regs),
			   (__s32)ARGUMENT_4(regs));
		return RETURN_IGNORED;
	}
	if (!calls_gloo(spec)) {
		if (!returns || !bpf_map_lookup_elem(&processes, &who.tgid))
			return RETURN_IGNORED;
		if (spec->shape == SHAPE_RECORDED && !is_data_loader(regs))
			return RETURN_IGNORED;
	} else if (!bpf_map_lookup_elem(&processes, &who.tgid)) {
		bpf_map_update_elem(&processes, &who.tgid, &one, BPF_ANY);
	}
	thread = this_thread(true);
	if (!thread)
		return RETURN_IGNORED;
	calls = OPEN_CALLS(&thread->calls[0], NESTED, thread->depth);
	innermost_call(calls, regs->sp, api, NULL);
	call = open_call(calls, regs, api, returns);
	if (!call)
		return RETURN_IGNORED;
	call->context = call->bytes = call->tag = call->tagged = call->transfer.group = 0;
	if (spec->shape == SHAPE_COLLECTIVE)
		read_options(call, ARGUMENT_1(regs), api);
	else if (begins_transfer(spec))
		begin_transfer(call, regs, spec, api, who.tgid);
	else if (spec->shape == SHAPE_TRANSFER_WAIT)
		transfer_of(who.tgid, ARGUMENT_1(regs), &call->transfer);
	call->start_ns = bpf_ktime_get_ns();
	if (returns)
		return RETURN_WANTED;
	if (begins_transfer(spec))
		emit_transfer(call, call->start_ns, false);
	else
		emit_call(call, api, call->start_ns, false);
	return RETURN_IGNORED;
}

static __always_inline int leave(struct pt_regs *regs)
{
	__u64 end_ns = bpf_ktime_get_ns();
	__u32 api = (__u32)bpf_get_attach_cookie(regs);
	const struct spec *spec = spec_of(api);
	struct thread *thread = this_thread(false);
	struct call *call;

	if (!thread || !spec)
		return 0; /* out of scope at entry */
	call = close_call(OPEN_CALLS(&thread->calls[0], NESTED, thread->depth), regs, api,
			  spec->shape == SHAPE_COLLECTIVE);
	if (!call)
		return 0;
	if (spec->shape == SHAPE_COLLECTIVE) {
		emit_call(call, api, end_ns, true);
	} else if (begins_transfer(spec)) {
		transfer_began(current_identity().tgid, word_at(RESULT(regs)), &call->transfer);
	} else if (spec->shape == SHAPE_TRANSFER_WAIT && call->transfer.group) {
		emit_transfer(call, end_ns, true);
	} else if (spec->shape == SHAPE_RECORDED) {
		thread->loader = word_at(RESULT(regs));
		thread->loader_start_ns = call->start_ns;
	} else {
		emit_stretch(spec->shape == SHAPE_BACKWARD ? STRETCH_BACKWARD
							   : STRETCH_COMMUNICATION_WAIT,
			     call->start_ns, end_ns);
	}
	return 0;
}

/* -- Programs ------------------------------------------------------------------------------ */

#define PAIRS "libtorch_cpu:" GLOO_CALLS(NAME) ";libgloo:" GLOO_COLLECTIVES(NAME)

CALL_PROGRAMS(call, PAIRS, enter, leave)

/* (RecordFunction): the end of a stretch that Python names, of which one that waits for data is remembered. */
SEC("uprobe/libtorch_cpu:_ZN2at14RecordFunction3endEv")
int recorded_ended(struct pt_regs *regs)
{
	struct thread *thread;

	ON_OWN_STACK(regs);
	thread = this_thread(false);
	if (!thread || !thread->loader || ARGUMENT_1(regs) - thread->loader >= RECORDED_BYTES)
		return 0;
	thread->loader = 0;
	emit_stretch(STRETCH_DATA_LOADER, thread->loader_start_ns, bpf_ktime_get_ns());
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
