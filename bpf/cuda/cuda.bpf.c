// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Family cuda: calls of the CUDA runtime and driver API, entry paired with return
 * per thread. What is observed and how it is read is the table in calls.h; a
 * program serves every function of a list and is told by its attach cookie, which
 * is the number in enum cuda_api, for which of them it runs.
 *
 * A call made inside another on the same thread is part of that one and is not
 * recorded. What contains what is told by the stack pointer: a call that began
 * above the present one on the stack is still under way, any other has been left,
 * by longjmp or an exception if it never returned.
 */
#include "contexts.h"
#include "slots.h"
#include "../lib/emit.h"
#include "../lib/call_stacks.h"
#include "../lib/return_address.h"
#include <bpf/bpf_tracing.h>

RECORD(cuda_call);
RECORD(cuda_name);
RECORD(cuda_activity); /* of the in-process source: the types of both are told here */
RECORD(cuda_activity_name);
RECORD(cuda_activity); /* written by the in-process source alone */
RECORD(cuda_activity_name);
ENUM(cuda_kind);
ENUM(cuda_api);
ENUM(cuda_work);
ENUM(cuda_memory);
ENUM(cuda_shape);
ENUM(cuda_work);

/*
 * Return probes are off (they would harm the observed processes on this
 * kernel): record at entry, with neither duration nor status.
 */
const volatile bool entry_only = false;

/* Calls may have been made before the probes were there: threads may have chosen their device. */
const volatile bool calls_before = true;

/*
 * How much is recorded, set by user space as the load allows. What is not is
 * counted, by process and function.
 */
enum cuda_detail {
	DETAIL_ALL = 0,
	DETAIL_RARE = 1,   /* without launches, copies, sets and events */
	DETAIL_COUNTS = 2, /* names, modules and devices only */
};
ENUM(cuda_detail);
volatile __u32 detail = DETAIL_ALL;

#define KINDS_FREQUENT                                                                \
	(1 << CUDA_LAUNCH | 1 << CUDA_GRAPH_LAUNCH | 1 << CUDA_COPY | 1 << CUDA_SET | \
	 1 << CUDA_EVENT)
/* What later records cannot be understood without. */
#define KINDS_NEEDED (KINDS_NAMING | 1 << CUDA_MODULE | 1 << CUDA_DEVICE)

/* -- State -------------------------------------------------------------------------------- */

#define CALLS_NESTED 4 /* one call and those inside it that tell names; a power of two */

/* A call that a thread is inside of. */
struct call {
	struct cuda_call
		record;	      /* a slot that is a result says where it will be, until the return */
	__u64 sp;	      /* at entry: where the return address is */
	__u64 return_address; /* of a call whose return is not probed */
	__u8 unreturned;      /* its return is not probed */
	__u8 silent;	      /* not recorded: what it did to devices and contexts is wanted */
	__u8 driver;
	__u8 reserved[5];
};

/* The kernel frees it with the thread. */
struct thread {
	struct call stack[CALLS_NESTED]; /* innermost last */
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
} graphs SEC(".maps");

struct counted_key {
	__u32 tgid; /* 0: of a process that found no room */
	__u32 api;
};

/*
 * (process, function) -> calls that were counted instead of recorded, per CPU.
 * User space deletes a process's when it has ended: nothing adds to them then.
 */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, 16384);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct counted_key);
	__type(value, __u64);
} calls_counted SEC(".maps");

/* The same for processes that found no room there, by function. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, API_COUNT);
	__type(key, __u32);
	__type(value, __u64);
} calls_counted_for_others SEC(".maps");

static __always_inline void count_call(__u32 tgid, __u32 api)
{
	struct counted_key key = { .tgid = tgid, .api = api };
	__u64 zero = 0, *counted;

	count(COUNTER_DETAIL_SHED);
	counted = bpf_map_lookup_elem(&calls_counted, &key);
	if (!counted) {
		bpf_map_update_elem(&calls_counted, &key, &zero, BPF_NOEXIST);
		counted = bpf_map_lookup_elem(&calls_counted, &key);
	}
	if (!counted) {
		count(COUNTER_CALL_TABLE_FULL);
		counted = bpf_map_lookup_elem(&calls_counted_for_others, &api);
	}
	if (counted)
		__sync_fetch_and_add(counted, 1);
}

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
	if (tells_context(shape))
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

static __always_inline void submit_call(struct call *call, __u64 end_ns, bool returned)
{
	struct record_head *head = &call->record.head;

	head->duration_ns = end_ns - head->time_ns;
	head->cgroup_id = bpf_get_current_cgroup_id();
	head->cpu = (__u16)bpf_get_smp_processor_id();
	head->returned = returned;
	output(&call->record, sizeof(call->record));
}

static __always_inline void submit_name(const struct call *call, __u64 end_ns)
{
	const struct cuda_call *told = &call->record;
	struct identity who = { .tgid = told->head.tgid, .tid = told->head.tid };
	struct cuda_name *record;
	long length;

	record = EMIT_BEGIN(cuda_name, CUDA_NAME, who, told->head.time_ns, end_ns);
	if (!record)
		return;
	copy_context(&record->head, &told->head); /* not that of the return */
	record->head.returned = 1;
	record->object = told->object;
	record->other = told->other;
	record->status = told->status;
	record->api = told->api;
	length = bpf_probe_read_user_str(record->text, sizeof(record->text), (void *)told->extra);
	if (length < 0)
		count(COUNTER_ARGUMENT_UNREADABLE);
	else if (length == sizeof(record->text))
		record->length = CUDA_NAME_BYTES + 1;
	else if (length > 0)
		record->length = (__u16)(length - 1);
	submit(record);
}

/* An attach cookie is a number of enum cuda_api, and this where the return is not to be probed. */
#define COOKIE_ENTRY_ONLY (1ULL << 32)

/* -- Entry and return --------------------------------------------------------------------- */

enum wanted { RETURN_IGNORED = 1, RETURN_WANTED = 0 }; /* as a session program answers */

static __always_inline __u64 return_address(struct pt_regs *regs)
{
	__u64 address = 0;

	read_user(&address, sizeof(address), (void *)regs->sp);
	return address;
}

/*
 * A call whose return is not probed is taken to be under way if it is the runtime
 * calling the driver, and if its return address is where it was.
 */
static __always_inline bool is_under_way(const struct call *outer, bool driver)
{
	return driver && !outer->driver && is_still_there(outer->sp, outer->return_address);
}

/*
 * Whether the present call is part of one that began at the same place on the
 * stack or above it. While that is under way, its return address is the kernel's
 * trampoline for return probes, on the last page of the address space; what comes
 * after it from as deep in the stack has written something else there. At the same
 * place: it has jumped to the present one.
 */
static __always_inline bool contains(const struct call *outer, __u64 sp, bool driver)
{
	__u64 address = 0;

	if (outer->sp < sp)
		return false;
	if (outer->unreturned)
		return outer->sp > sp && is_under_way(outer, driver);
	return !bpf_probe_read_user(&address, sizeof(address), (void *)outer->sp) &&
	       is_trampoline(address);
}

/* Forget calls that were left without a return; how many the thread is still inside of. */
static __always_inline __u32 forget_left(struct thread *thread, __u64 sp, bool driver)
{
	__u32 depth = thread->depth;

	for (int i = 0; i < CALLS_NESTED && depth; i++) {
		struct call *call = &thread->stack[(depth - 1) & (CALLS_NESTED - 1)];

		if (contains(call, sp, driver))
			break;
		if (!call->unreturned)
			count(COUNTER_CALL_ABANDONED);
		depth--;
	}
	thread->depth = depth;
	return depth;
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

/* The list of functions that a program serves. */
enum served { SERVES_LAUNCHES, SERVES_PAIRS, SERVES_ENTRIES };

/*
 * `session`: the program can decline the return, which otherwise comes in any
 * case unless there are no `returns`.
 */
static __always_inline int enter(struct pt_regs *regs, enum served serves, bool returns,
				 bool session)
{
	__u64 cookie = bpf_get_attach_cookie(regs);
	__u32 api = (__u32)cookie;
	const struct spec *spec;
	struct thread *thread;
	struct identity who;
	int answer = RETURN_WANTED;
	struct call *call;
	bool naming, counted;
	__u32 depth;

	if (!in_scope(&who) || api >= API_COUNT)
		return RETURN_IGNORED;
	if (cookie & COOKIE_ENTRY_ONLY)
		returns = false;
	spec = &specs[api];
	thread = this_thread(true);
	if (!thread)
		return RETURN_IGNORED;
	naming = serves != SERVES_LAUNCHES && KINDS_NAMING >> spec->kind & 1;
	depth = thread->depth;
	if (depth)
		depth = forget_left(thread, regs->sp, spec->driver);
	if (depth && !naming && (serves != SERVES_PAIRS || !follows_device(spec->shape)))
		return RETURN_IGNORED;
	if (depth >= CALLS_NESTED) {
		count(COUNTER_CALLS_NESTED_TOO_DEEP);
		return RETURN_IGNORED;
	}
	if (!returns && naming && spec->results)
		return RETURN_IGNORED; /* the handle is known at the return only */
	counted = detail != DETAIL_ALL &&
		  (detail == DETAIL_RARE ? KINDS_FREQUENT : ~KINDS_NEEDED) >> spec->kind & 1;
	call = &thread->stack[depth & (CALLS_NESTED - 1)];
	call->sp = regs->sp;
	call->driver = spec->driver;
	call->silent = (depth && !naming) || counted;
	call->unreturned = !returns || (session && counted);
	call->record.api = (__u16)api;
	if (call->unreturned)
		call->return_address = return_address(regs);
	thread->depth = depth + 1;
	if (counted) {
		count_call(who.tgid, api);
		capture(thread, spec);
		return call->unreturned ? RETURN_IGNORED : RETURN_WANTED;
	}
	__builtin_memset(&call->record, 0, sizeof(call->record));
	call->record.api = (__u16)api;
	call->record.head.tgid = who.tgid;
	call->record.head.tid = who.tid;
	call->record.head.kind = spec->kind;
	call->record.device = thread->contexts.device;
	if (!call->silent)
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
	if (call->unreturned)
		answer = RETURN_IGNORED;
	if (!depth && !naming && wants_stack(spec->kind))
		answer = ask_for_stack(CALL_CUDA, api, call->record.head.time_ns, 0,
				       call->unreturned, answer);
	if (!call->unreturned)
		return answer;
	if (serves == SERVES_PAIRS) {
		finish_slots(&call->record, spec, false);
		/* Most likely it succeeds. */
		follow_call(thread, call, spec->shape);
		if (spec->shape >= SHAPE_GRAPH_BEGUN)
			follow_graph(thread, &call->record, spec->shape);
	}
	capture(thread, spec);
	if (!call->silent)
		submit_call(call, call->record.head.time_ns, false);
	return answer;
}

static __always_inline int leave(struct pt_regs *regs, enum served serves)
{
	__u64 end_ns = bpf_ktime_get_ns();
	__u32 api = (__u32)bpf_get_attach_cookie(regs);
	__u64 sp = regs->sp - sizeof(__u64); /* what it was at entry */
	const struct spec *spec;
	struct thread *thread;
	struct call *call;
	__u32 depth;

	thread = this_thread(false);
	if (!thread || api >= API_COUNT)
		return 0; /* out of scope at entry */
	spec = &specs[api];
	depth = thread->depth;
	for (int i = 0; i < CALLS_NESTED; i++) {
		if (!depth)
			break;
		depth--;
		call = &thread->stack[depth & (CALLS_NESTED - 1)];
		if (call->sp > sp || (call->sp == sp && call->record.api != api))
			return 0; /* it was inside this one */
		if (call->sp == sp && !call->unreturned) {
			thread->depth = depth;
			if (call->silent && !follows_device(spec->shape))
				return 0;
			if (wants_stack(spec->kind))
				call->record.head.time_ns =
					start_with_stack(CALL_CUDA, call->record.head.time_ns);
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
			if (call->silent)
				return 0;
			if (serves == SERVES_PAIRS && spec->kind == CUDA_NAME)
				submit_name(call, end_ns);
			else
				submit_call(call, end_ns, true);
			return 0;
		}
		if (!call->unreturned)
			count(COUNTER_CALL_ABANDONED);
		thread->depth = depth;
	}
	count(COUNTER_RETURN_WITHOUT_ENTRY);
	return 0;
}

/* -- Programs ------------------------------------------------------------------------------ */

#define NAME(symbol, ...) #symbol ","
#define LAUNCHES	  "libcudart:" CUDA_RUNTIME_LAUNCHES(NAME) ";libcuda:" CUDA_DRIVER_LAUNCHES(NAME)
#define PAIRS		  "libcudart:" CUDA_RUNTIME_PAIRS(NAME) ";libcuda:" CUDA_DRIVER_PAIRS(NAME)
#define ENTRIES		  "libcudart:" CUDA_RUNTIME_ENTRIES(NAME) ";libcuda:" CUDA_DRIVER_ENTRIES(NAME)

SEC("usession/" LAUNCHES)
int launch_session(struct pt_regs *regs)
{
	int answer;

	ON_OWN_STACK_IN_SESSION(regs);
	if (is_return(regs))
		return leave(regs, SERVES_LAUNCHES);
	answer = enter(regs, SERVES_LAUNCHES, true, true);
	HAND_ON_IN_SESSION(regs, answer);
	return answer & RETURN_IGNORED;
}

SEC("uprobe/" LAUNCHES)
int launch_entry(struct pt_regs *regs)
{
	int answer;

	ON_OWN_STACK(regs);
	answer = enter(regs, SERVES_LAUNCHES, !entry_only, false);
	HAND_ON(regs, answer);
	return 0;
}

SEC("uretprobe/" LAUNCHES)
int launch_return(struct pt_regs *regs)
{
	ON_OWN_STACK(regs);
	return leave(regs, SERVES_LAUNCHES);
}

SEC("usession/" PAIRS)
int call_session(struct pt_regs *regs)
{
	int answer;

	ON_OWN_STACK_IN_SESSION(regs);
	if (is_return(regs))
		return leave(regs, SERVES_PAIRS);
	answer = enter(regs, SERVES_PAIRS, true, true);
	HAND_ON_IN_SESSION(regs, answer);
	return answer & RETURN_IGNORED;
}

SEC("uprobe/" PAIRS)
int call_entry(struct pt_regs *regs)
{
	int answer;

	ON_OWN_STACK(regs);
	answer = enter(regs, SERVES_PAIRS, !entry_only, false);
	HAND_ON(regs, answer);
	return 0;
}

SEC("uretprobe/" PAIRS)
int call_return(struct pt_regs *regs)
{
	ON_OWN_STACK(regs);
	return leave(regs, SERVES_PAIRS);
}

SEC("uprobe/" ENTRIES)
int call_told_at_entry(struct pt_regs *regs)
{
	int answer;

	ON_OWN_STACK(regs);
	answer = enter(regs, SERVES_ENTRIES, false, false);
	HAND_ON(regs, answer);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
