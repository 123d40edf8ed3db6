// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Family mpi: collectives of MPI, sends and receives that block, and waits for those that do not. A communicator's rank
 * and size are what MPI_Comm_rank and MPI_Comm_size gave the program itself.
 */
#include "mpi.h"
#include "layouts.h"
#include "../lib/calls.h"
#include <bpf/bpf_tracing.h>

RECORD(mpi_call);
ENUM(mpi_kind);
ENUM(mpi_api);

#define PROCESSES     8192
#define COMMUNICATORS 16384
#define MOST_RANKS    (1 << 20)
#define LARGEST_BYTES (1ull << 48)
#define NESTED	      4

struct process {
	__u8 initialized; /* MPI_Init was seen */
	__u8 ints;	  /* handles are ints: the upper half of an argument says nothing */
};

/* Processes that use MPI. The oldest are forgotten. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, PROCESSES);
	__type(key, __u32);
	__type(value, struct process);
} processes SEC(".maps");

struct communicator_key {
	__u64 handle;
	__u32 tgid;
	__u32 reserved;
};

struct communicator {
	__s32 rank_and_one; /* 0: not asked for yet */
	__s32 ranks;
};

/* Of a process -> what it was told of it. The oldest are forgotten. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, COMMUNICATORS);
	__type(key, struct communicator_key);
	__type(value, struct communicator);
} communicators SEC(".maps");

struct spec {
	__u8 shape;
	__u8 communicator;
	__u8 count;
	__u8 datatype;
	__u8 root;
	__u8 reserved[3];
};

#define SPEC(symbol, of_shape, of_communicator, of_count, of_datatype, of_root) \
	[API_##symbol] = { .shape = SHAPE_##of_shape,                           \
			   .communicator = of_communicator,                     \
			   .count = of_count,                                   \
			   .datatype = of_datatype,                             \
			   .root = of_root },
static const struct spec specs[API_COUNT] = { MPI_CALLS(SPEC) };

SPEC_OF(1) /* API_NONE has none */

struct call {
	struct open_call open;
	__u64 start_ns;
	__u64 communicator;
	__u64 bytes;
	__u64 answer; /* where MPI_Comm_rank or MPI_Comm_size puts it */
	__s32 root;
	__u32 reserved;
};

/* Of one thread: the calls that it is inside of. */
struct thread {
	struct call calls[NESTED];
	__u32 depth;
	__u32 reserved;
};

#include "../lib/thread_state.h"

/* -- What is known of processes and communicators ---------------------------------------------- */

static const struct process new_process;

static __always_inline struct process *process_of(__u32 tgid)
{
	struct process *process = bpf_map_lookup_elem(&processes, &tgid);

	if (process)
		return process;
	bpf_map_update_elem(&processes, &tgid, &new_process, BPF_ANY);
	return bpf_map_lookup_elem(&processes, &tgid);
}

static __always_inline __u64 handle_of(const struct process *process, __u64 argument)
{
	return process->ints ? (__u32)argument : argument;
}

static __always_inline void learn(__u32 tgid, const struct call *call, bool is_size)
{
	struct communicator_key key = { .handle = call->communicator, .tgid = tgid };
	struct communicator unknown = {}, *known;
	__s32 answer = -1;

	if (!read_user(&answer, sizeof(answer), (void *)call->answer))
		return;
	if (answer < is_size || answer > MOST_RANKS) {
		count(COUNTER_COMMUNICATOR_IMPLAUSIBLE);
		return;
	}
	known = bpf_map_lookup_elem(&communicators, &key);
	if (!known) {
		bpf_map_update_elem(&communicators, &key, &unknown, BPF_ANY);
		known = bpf_map_lookup_elem(&communicators, &key);
	}
	if (!known)
		return;
	if (is_size)
		known->ranks = answer;
	else
		known->rank_and_one = answer + 1;
}

/* -- Arguments of a call ---------------------------------------------------------------------- */

static __always_inline __u64 argument(struct pt_regs *regs, __u8 nth)
{
	switch (nth) {
	case 1:
		return ARGUMENT_1(regs);
	case 2:
		return ARGUMENT_2(regs);
	case 3:
		return ARGUMENT_3(regs);
	case 4:
		return ARGUMENT_4(regs);
	case 5:
		return ARGUMENT_5(regs);
	case 6:
		return ARGUMENT_6(regs);
	default:
		return stack_argument(regs, nth - 7);
	}
}

static __always_inline void read_arguments(struct call *call, struct pt_regs *regs,
					   const struct spec *spec, struct process *process)
{
	__u64 size;
	__s32 elements;

	call->communicator = call->bytes = call->answer = 0;
	call->root = -1;
	if (spec->communicator != NO)
		call->communicator = argument(regs, spec->communicator);
	if (spec->shape == SHAPE_RANK && is_mpich_communicator(call->communicator))
		process->ints = 1;
	call->communicator = handle_of(process, call->communicator);
	if (spec->root != NO)
		call->root = (__s32)argument(regs, spec->root);
	if (spec->shape == SHAPE_RANK || spec->shape == SHAPE_SIZE)
		call->answer = ARGUMENT_2(regs);
	if (spec->count == NO)
		return;
	elements = (__s32)argument(regs, spec->count);
	size = element_bytes(handle_of(process, argument(regs, spec->datatype)));
	if (elements > 0)
		call->bytes = (__u64)elements * size;
}

/* -- Records ---------------------------------------------------------------------------------- */

static __always_inline void emit_call(const struct call *call, const struct spec *spec, __u32 api,
				      __u64 end_ns, bool returned)
{
	struct identity who = current_identity();
	struct process *process = process_of(who.tgid);
	struct communicator_key key = { .handle = call->communicator, .tgid = who.tgid };
	struct mpi_call *record = EMIT_BEGIN(mpi_call, MPI_CALL, who, call->start_ns, end_ns);
	struct communicator *known;

	if (!record)
		return;
	record->head.returned = returned;
	record->communicator = call->communicator;
	record->bytes = call->bytes;
	record->root = call->root < 0 ? -1 : call->root;
	record->rank = record->ranks = -1;
	record->api = (__u16)api;
	record->transfer = spec->shape == SHAPE_TRANSFER;
	record->wait = spec->shape == SHAPE_WAIT;
	record->created = process && process->initialized;
	known = bpf_map_lookup_elem(&communicators, &key);
	if (known && known->rank_and_one && known->ranks) {
		if (known->rank_and_one <= known->ranks) {
			record->rank = known->rank_and_one - 1;
			record->ranks = known->ranks;
		} else {
			count(COUNTER_COMMUNICATOR_IMPLAUSIBLE);
		}
	}
	if (spec->shape == SHAPE_SPREAD)
		record->bytes = record->ranks > 0 ? record->bytes * (__u32)record->ranks : 0;
	if (record->bytes > LARGEST_BYTES)
		record->bytes = 0;
	submit(record);
}

/* At the entry, for the library takes the handle away. */
static __always_inline void freed(struct identity who, const struct process *process, __u32 api,
				  __u64 of)
{
	struct communicator_key key = { .tgid = who.tgid };
	__u64 now_ns = bpf_ktime_get_ns();
	struct mpi_call *record;

	if (bpf_probe_read_user(&key.handle, process->ints ? 4 : 8, (void *)of))
		return;
	bpf_map_delete_elem(&communicators, &key);
	record = EMIT_BEGIN(mpi_call, MPI_CALL, who, now_ns, now_ns);
	if (!record)
		return;
	record->communicator = key.handle;
	record->rank = record->ranks = record->root = -1;
	record->api = (__u16)api;
	record->freed = 1;
	submit(record);
}

/* -- Entry and return ------------------------------------------------------------------------- */

static __always_inline int enter(struct pt_regs *regs, bool session)
{
	__u64 cookie = bpf_get_attach_cookie(regs);
	__u32 api = (__u32)cookie;
	const struct spec *spec = spec_of(api);
	bool returns = returns_of(cookie);
	struct open_calls calls;
	struct thread *thread;
	struct process *process;
	struct identity who;
	struct call *call;

	(void)session;
	if (!spec || !in_scope(&who))
		return RETURN_IGNORED;
	process = process_of(who.tgid);
	if (!process)
		return RETURN_IGNORED;
	if (spec->shape == SHAPE_INIT) {
		process->initialized = 1;
		return RETURN_IGNORED;
	}
	if (spec->shape == SHAPE_FREE) {
		freed(who, process, api, ARGUMENT_1(regs));
		return RETURN_IGNORED;
	}
	if (!returns && spec->shape > SHAPE_TRANSFER)
		return RETURN_IGNORED; /* what it is for is known at its end */
	thread = this_thread(true);
	if (!thread)
		return RETURN_IGNORED;
	calls = OPEN_CALLS(&thread->calls[0], NESTED, thread->depth);
	if (innermost_call(calls, regs->sp, api, NULL))
		return RETURN_IGNORED; /* the library's own */
	call = open_call(calls, regs, api, returns);
	if (!call)
		return RETURN_IGNORED;
	read_arguments(call, regs, spec, process);
	call->start_ns = bpf_ktime_get_ns();
	if (returns)
		return RETURN_WANTED;
	emit_call(call, spec, api, call->start_ns, false);
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
	call = close_call(OPEN_CALLS(&thread->calls[0], NESTED, thread->depth), regs, api, false);
	if (!call)
		return 0;
	if (spec->shape == SHAPE_RANK || spec->shape == SHAPE_SIZE)
		learn(current_identity().tgid, call, spec->shape == SHAPE_SIZE);
	else
		emit_call(call, spec, api, end_ns, true);
	return 0;
}

/* -- Programs ------------------------------------------------------------------------------ */

#define PAIRS "libmpi:" MPI_CALLS(NAME) ";libmpich:" MPI_CALLS(NAME)

CALL_PROGRAMS(call, PAIRS, enter, leave)

char LICENSE[] SEC("license") = "Dual BSD/GPL";
