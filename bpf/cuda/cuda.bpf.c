// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Family cuda: calls of the CUDA runtime and driver API, entry paired with return
 * per thread. What is observed and how it is read is the table in calls.h; a
 * program serves every function of a list and knows by its attach cookie which
 * is the number in enum cuda_api, for which of them it runs.
 *
 * A call made inside another on the same thread (lib/calls.h) is part of that one
 * and is not recorded, but for what reports names or chooses a device.
 */
#include "contexts.h"
#include "slots.h"
#include "../lib/calls.h"
#include "../lib/calls_counted.h"
#include <bpf/bpf_tracing.h>

RECORD(cuda_call);
RECORD(cuda_name);
RECORD(cuda_activity); /* written by the in-process source alone */
RECORD(cuda_activity_name);
ENUM(cuda_kind);
ENUM(cuda_api);
ENUM(cuda_work);
ENUM(cuda_memory);
ENUM(cuda_shape);
ENUM(call_family);

/* Calls may have been made before the probes were there: threads may have chosen their device. */
const volatile bool calls_before = true;

/* How much is recorded: lib/calls_counted.h. */
enum cuda_detail {
	DETAIL_ALL = 0,
	DETAIL_RARE = 1,   /* without launches, copies, sets and events */
	DETAIL_COUNTS = 2, /* names, modules and devices only */
};
ENUM(cuda_detail);

#define KINDS_FREQUENT                                                                \
	(1 << CUDA_LAUNCH | 1 << CUDA_GRAPH_LAUNCH | 1 << CUDA_COPY | 1 << CUDA_SET | \
	 1 << CUDA_EVENT)
/* What later records cannot be understood without. */
#define KINDS_NEEDED (KINDS_NAMING | 1 << CUDA_MODULE | 1 << CUDA_DEVICE)

/* -- State -------------------------------------------------------------------------------- */

#define CALLS_NESTED 4 /* one call and those inside it that report names; a power of two */

/* A call that a thread is inside of. Of a silent one, what it did to devices and contexts is wanted. */
struct call {
	struct open_call open;
	struct cuda_call
		record; /* a slot that is a result says where it will be, until the return */
};

/* The kernel frees it with the thread. */
struct thread {
	struct call calls[CALLS_NESTED]; /* innermost last */
	struct words words;		 /* scratch */
	struct context_stack contexts;
	__u32 depth;
	__u32 captured; /* nodes of the graph that it captures, so far */
	__u8 started;
	__u8 capturing; /* what it submits goes into a graph */
	__u8 reserved[6];
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct thread);
} threads SEC(".maps");

struct handle_key {
	__u64 handle;
	__u32 tgid;
	__u32 reserved;
};

/* (process, context) -> device. A context that falls out has an unknown device. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct handle_key);
	__type(value, __s32);
} contexts SEC(".maps");

/* (process, graph or executable graph) -> nodes. Of one that falls out they are unknown. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct handle_key);
	__type(value, __u32);
} graphs SEC(".maps") BY_PROCESSORS;

CALLS_COUNTED_FOR_OTHERS(API_COUNT);

/* Frequent calls are probed process by process, as long as each can afford it: otelgpu/processes/process_probes.py. */
const volatile bool count_frequent = false;

/* tgid -> how often the probes of frequent calls were hit. User space deletes it when the process ends. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, __u64);
} frequent_hits SEC(".maps");

/* -- Devices ------------------------------------------------------------------------------ */

static __always_inline struct handle_key key_of(__u32 tgid, __u64 handle)
{
	struct handle_key key = { .handle = handle, .tgid = tgid };

	return key;
}

static __always_inline __s16 device_of_context(const struct call *call)
{
	struct handle_key key = key_of(call->record.head.tgid, call->record.object);
	__s32 *device = bpf_map_lookup_elem(&contexts, &key);

	return device ? (__s16)*device : CUDA_DEVICE_UNKNOWN;
}

static __always_inline void learn_context(const struct cuda_call *record)
{
	struct handle_key key = key_of(record->head.tgid, record->object);
	__s32 device = (__s32)record->other;

	if (record->object && bpf_map_update_elem(&contexts, &key, &device, BPF_ANY))
		count(COUNTER_CONTEXT_TABLE_FULL);
}

/* What a call that succeeded means for the thread's current device. */
static __always_inline void follow_call(struct thread *thread, const struct call *call, __u8 shape)
{
	if (reports_context(shape))
		learn_context(&call->record);
	follow_device(&thread->contexts, &call->record, shape, device_of_context(call));
}

/* -- Graphs --------------------------------------------------------------------------------- */

#define KINDS_NODES (1 << CUDA_LAUNCH | 1 << CUDA_GRAPH_LAUNCH | 1 << CUDA_COPY | 1 << CUDA_SET)

/* A call that was made, as far as is known: it is a node if the thread captures a graph. */
static __always_inline void capture(struct thread *thread, const struct spec *spec)
{
	bool pooled = spec->memory == CUDA_MEMORY_POOL;

	if (thread->capturing && (KINDS_NODES >> spec->kind & 1 || pooled))
		thread->captured++;
}

static __always_inline __u32 nodes_of(__u32 tgid, __u64 graph)
{
	struct handle_key key = key_of(tgid, graph);
	__u32 *nodes = bpf_map_lookup_elem(&graphs, &key);

	return nodes ? *nodes : 0;
}

static __always_inline void set_nodes(__u32 tgid, __u64 graph, __u32 nodes)
{
	struct handle_key key = key_of(tgid, graph);

	if (graph && bpf_map_update_elem(&graphs, &key, &nodes, BPF_ANY))
		count(COUNTER_GRAPH_TABLE_FULL);
}

/* A call on a graph that succeeded. Of its own for the verifier: see fill_shape(). */
__attribute__((noinline)) int follow_graph(struct thread *thread, struct cuda_call *record,
					   __u32 shape)
{
	__u32 tgid, nodes;

	if (!thread || !record)
		return 0;
	tgid = record->head.tgid;
	nodes = nodes_of(tgid, record->object);
	switch (shape) {
	case SHAPE_GRAPH_BEGUN:
		thread->capturing = 1;
		thread->captured = nodes;
		break;
	case SHAPE_GRAPH_ENDED:
		record->extra = thread->capturing ? thread->captured : 0;
		set_nodes(tgid, record->object, (__u32)record->extra);
		thread->capturing = 0;
		break;
	case SHAPE_GRAPH_ADDED:
		record->extra = nodes + 1;
		set_nodes(tgid, record->object, nodes + 1);
		break;
	case SHAPE_GRAPH_COUNTED:
		set_nodes(tgid, record->object, (__u32)record->extra);
		break;
	case SHAPE_GRAPH_EXECUTABLE:
		record->extra = nodes;
		set_nodes(tgid, record->other, nodes);
		break;
	case SHAPE_GRAPH_LAUNCHED:
		record->extra = nodes;
		break;
	}
	return 0;
}

/* -- Records ------------------------------------------------------------------------------ */

static __always_inline void submit_name(const struct call *call, __u64 end_ns)
{
	const struct cuda_call *reported = &call->record;
	struct identity who = { .tgid = reported->head.tgid, .tid = reported->head.tid };
	struct cuda_name *record;
	long length;

	record = EMIT_BEGIN(cuda_name, CUDA_NAME, who, reported->head.time_ns, end_ns);
	if (!record)
		return;
	copy_context(&record->head, &reported->head); /* not that of the return */
	record->head.returned = 1;
	record->object = reported->object;
	record->other = reported->other;
	record->status = reported->status;
	record->api = reported->api;
	length = bpf_probe_read_user_str(record->text, sizeof(record->text),
					 (void *)reported->extra);
	if (length < 0)
		count(COUNTER_ARGUMENT_UNREADABLE);
	else if (length == sizeof(record->text))
		record->length = CUDA_NAME_BYTES + 1;
	else if (length > 0)
		record->length = (__u16)(length - 1);
	submit(record);
}

/* -- Entry and return --------------------------------------------------------------------- */

/* Where returns are not probed: the runtime calls the driver. */
static __always_inline bool calls_driver(__u32 outer, __u32 inner)
{
	return outer < API_COUNT && inner < API_COUNT && !specs[outer].driver &&
	       specs[inner].driver;
}

static __always_inline struct thread *this_thread(bool create)
{
	struct thread *thread = bpf_task_storage_get(&threads, bpf_get_current_task_btf(), NULL,
						     create ? BPF_LOCAL_STORAGE_GET_F_CREATE : 0);

	if (!create)
		return thread;
	if (!thread) {
		count(COUNTER_THREAD_STATE_FAILED);
	} else if (!thread->started) {
		thread->started = 1;
		thread->contexts.device = calls_before ? CUDA_DEVICE_UNKNOWN : 0;
	}
	return thread;
}

/* What is known of a function; NULL: there is none. */
static __always_inline const struct spec *spec_of(__u32 api)
{
	__u64 index = api;

	/*
	 * The compiler may not know what it is, nor what it became: else it compares a copy, or adds before it compares,
	 * and the verifier of Linux 6.1 has no bound of what it adds.
	 */
	asm volatile("" : "+r"(index));
	if (index >= API_COUNT)
		return NULL;
	asm volatile("" : "+r"(index));
	return &specs[index];
}

static __always_inline void count_frequent_hit(__u32 tgid)
{
	__u64 one = 1, *hits = bpf_map_lookup_elem(&frequent_hits, &tgid);

	if (hits)
		__sync_fetch_and_add(hits, 1);
	else
		bpf_map_update_elem(&frequent_hits, &tgid, &one, BPF_NOEXIST);
}

/* The list of functions that a program serves. */
enum served { SERVES_LAUNCHES, SERVES_PAIRS, SERVES_ENTRIES };

/* `session`: the program can decline the return, which otherwise comes in any case if it is probed. */
static __always_inline int enter(struct pt_regs *regs, enum served serves, bool session)
{
	__u64 cookie = bpf_get_attach_cookie(regs);
	bool returns = serves != SERVES_ENTRIES && returns_of(cookie);
	__u32 api = (__u32)cookie;
	const struct spec *spec;
	struct open_calls calls;
	struct thread *thread;
	struct identity who;
	int answer = RETURN_WANTED;
	bool naming, counted, inner;
	struct call *call;

	spec = spec_of(api);
	if (!in_scope(&who) || !spec)
		return RETURN_IGNORED;
	if (count_frequent && KINDS_FREQUENT >> spec->kind & 1)
		count_frequent_hit(who.tgid);
	thread = this_thread(true);
	if (!thread)
		return RETURN_IGNORED;
	calls = OPEN_CALLS(thread->calls, CALLS_NESTED, thread->depth);
	naming = serves != SERVES_LAUNCHES && KINDS_NAMING >> spec->kind & 1;
	inner = innermost_call(calls, regs->sp, api, calls_driver);
	if (inner && !naming && (serves != SERVES_PAIRS || !follows_device(spec->shape)))
		return RETURN_IGNORED;
	if (!returns && naming && spec->results)
		return RETURN_IGNORED; /* the handle is known at the return only */
	counted = detail != DETAIL_ALL &&
		  (detail == DETAIL_RARE ? KINDS_FREQUENT : ~KINDS_NEEDED) >> spec->kind & 1;
	call = open_call(calls, regs, api, returns && !(session && counted));
	if (!call)
		return RETURN_IGNORED;
	call->open.silent = (inner && !naming) || counted;
	if (counted) {
		count_call(who.tgid, api, &calls_counted_for_others);
		capture(thread, spec);
		return call->open.unreturned ? RETURN_IGNORED : RETURN_WANTED;
	}
	__builtin_memset(&call->record, 0, sizeof(call->record));
	begin_head(&call->record.head, spec->kind, who);
	call->record.api = (__u16)api;
	call->record.device = thread->contexts.device;
	if (!call->open.silent)
		fill_context(&call->record.head);
	if (serves == SERVES_LAUNCHES) {
		fill_launch(&call->record, regs, spec->shape);
	} else {
		read_words(&thread->words, regs, spec->stack);
		fill_slots(&call->record, &thread->words, spec);
		if (serves == SERVES_PAIRS && spec->shape)
			fill_shape(&call->record, &thread->words, spec->shape);
		if (serves == SERVES_PAIRS && spec->kind == CUDA_ALLOCATION)
			call->record.caller = return_address(regs);
	}
	/* Last thing before the call itself: the clock is read as late as can be. */
	call->record.head.time_ns = bpf_ktime_get_ns();
	if (call->open.unreturned)
		answer = RETURN_IGNORED;
	if (!inner && !naming && wants_stack(spec->kind))
		answer = ask_for_stack(CALL_FAMILY, api, call->record.head.time_ns, 0,
				       call->open.unreturned, answer);
	if (!call->open.unreturned)
		return answer;
	if (serves == SERVES_PAIRS) {
		finish_slots(&call->record, spec, false);
		/* Most likely it succeeds. */
		follow_call(thread, call, spec->shape);
		if (spec->shape >= SHAPE_GRAPH_BEGUN)
			follow_graph(thread, &call->record, spec->shape);
	}
	capture(thread, spec);
	if (!call->open.silent)
		submit_call(&call->record.head, sizeof(call->record), call->record.head.time_ns,
			    false);
	return answer;
}

static __always_inline int leave(struct pt_regs *regs, enum served serves)
{
	__u64 end_ns = bpf_ktime_get_ns();
	__u32 api = (__u32)bpf_get_attach_cookie(regs);
	const struct spec *spec;
	struct thread *thread;
	struct call *call;

	thread = this_thread(false);
	spec = spec_of(api);
	if (!thread || !spec)
		return 0; /* out of scope at entry */
	call = close_call(OPEN_CALLS(thread->calls, CALLS_NESTED, thread->depth), regs, api, true);
	if (!call || (call->open.silent && !follows_device(spec->shape)))
		return 0;
	if (wants_stack(spec->kind))
		call->record.head.time_ns =
			start_with_stack(CALL_FAMILY, call->record.head.time_ns);
	call->record.status = (__s32)RESULT(regs);
	if (serves == SERVES_PAIRS) {
		bool succeeded = !call->record.status;

		finish_slots(&call->record, spec, succeeded);
		if (succeeded)
			follow_call(thread, call, spec->shape);
		if (succeeded && spec->shape >= SHAPE_GRAPH_BEGUN)
			follow_graph(thread, &call->record, spec->shape);
	}
	if (!call->record.status)
		capture(thread, spec);
	if (call->open.silent)
		return 0;
	if (serves == SERVES_PAIRS && spec->kind == CUDA_NAME)
		submit_name(call, end_ns);
	else
		submit_call(&call->record.head, sizeof(call->record), end_ns, true);
	return 0;
}

/* -- Programs ------------------------------------------------------------------------------ */

#define LAUNCHES "libcudart:" CUDA_RUNTIME_LAUNCHES(NAME) ";libcuda:" CUDA_DRIVER_LAUNCHES(NAME)
#define PAIRS	 "libcudart:" CUDA_RUNTIME_PAIRS(NAME) ";libcuda:" CUDA_DRIVER_PAIRS(NAME)
#define ENTRIES	 "libcudart:" CUDA_RUNTIME_ENTRIES(NAME) ";libcuda:" CUDA_DRIVER_ENTRIES(NAME)

static __always_inline int enter_launch(struct pt_regs *regs, bool session)
{
	return enter(regs, SERVES_LAUNCHES, session);
}

static __always_inline int leave_launch(struct pt_regs *regs)
{
	return leave(regs, SERVES_LAUNCHES);
}

static __always_inline int enter_call(struct pt_regs *regs, bool session)
{
	return enter(regs, SERVES_PAIRS, session);
}

static __always_inline int leave_call(struct pt_regs *regs)
{
	return leave(regs, SERVES_PAIRS);
}

CALL_PROGRAMS(launch, LAUNCHES, enter_launch, leave_launch)
CALL_PROGRAMS(call, PAIRS, enter_call, leave_call)

SEC("uprobe/" ENTRIES)
int call_reported_at_entry(struct pt_regs *regs)
{
	int answer;

	ON_OWN_STACK(regs);
	answer = enter(regs, SERVES_ENTRIES, false);
	HAND_ON(regs, answer);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
