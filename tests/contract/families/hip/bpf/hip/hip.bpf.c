// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Family hip: calls of the HIP runtime, entry paired with return per thread. What is observed and how it is read is the
 * table in calls.h. A call inside another one is part of that.
 */
#include "hip.h"
#include "../lib/calls.h"
#include "../lib/words.h"

RECORD(hip_call);
ENUM(hip_kind);
ENUM(hip_api);
ENUM(call_family);

/* A row of the table: the arguments of slots by their number. */
struct spec {
	__u8 kind;
	__u8 memory;
	__u8 object;
	__u8 other;
	__u8 bytes;
	__u8 stream;
	__u8 detail;
	__u8 reserved;
};

#define SPEC(symbol, of_kind, of_memory, object_, other_, bytes_, stream_, detail_) \
	[API_##symbol] = { .kind = HIP_##of_kind,                                   \
			   .memory = HIP_MEMORY_##of_memory,                        \
			   .object = object_,                                       \
			   .other = other_,                                         \
			   .bytes = bytes_,                                         \
			   .stream = stream_,                                       \
			   .detail = detail_ },

static const struct spec specs[API_COUNT] = { HIP_CALLS(SPEC) };

struct call {
	struct open_call open;
	struct hip_call record; /* object: of OUT, where it will be, until the return */
};

/* The kernel frees it with the thread. */
struct thread {
	struct call call;
	struct words words; /* scratch */
	__u32 depth;
	__s16 device;
	__u8 started;
	__u8 reserved;
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct thread);
} threads SEC(".maps");

static __always_inline struct thread *this_thread(bool create)
{
	struct thread *thread = bpf_task_storage_get(&threads, bpf_get_current_task_btf(), NULL,
						     create ? BPF_LOCAL_STORAGE_GET_F_CREATE : 0);

	if (create && !thread)
		count(COUNTER_THREAD_STATE_FAILED);
	if (create && thread && !thread->started) {
		thread->started = 1;
		thread->device = HIP_DEVICE_UNKNOWN;
	}
	return thread;
}

/* hipLaunchKernel(function, dim3 grid, dim3 block, void **arguments, size_t shared, hipStream_t): x and y in one word. */
static __always_inline void fill_launch(struct hip_call *record, const struct words *words)
{
	record->function = words->at[1];
	record->grid[0] = (__u32)words->at[2];
	record->grid[1] = words->at[2] >> 32;
	record->grid[2] = (__u32)words->at[3];
	record->block[0] = (__u32)words->at[4];
	record->block[1] = words->at[4] >> 32;
	record->block[2] = (__u32)words->at[5];
	record->shared_bytes = words->at[WORD_STACK];
	record->stream = words->at[WORD_STACK + 1];
}

static __always_inline __u64 slot(const struct words *words, __u8 argument)
{
	__u64 place = argument & 7;

	asm volatile("" : "+r"(place)); /* the verifier is to see the bound */
	return words->at[place & 7];
}

static __always_inline void fill_slots(struct hip_call *record, const struct words *words,
				       const struct spec *spec, struct pt_regs *regs)
{
	record->object = slot(words, spec->object);
	record->other = slot(words, spec->other);
	record->bytes = slot(words, spec->bytes);
	record->stream = slot(words, spec->stream);
	record->detail = (__u32)slot(words, spec->detail);
	record->memory = spec->memory;
	if (spec->kind == HIP_ALLOCATION)
		record->caller = return_address(regs);
}

static __always_inline int enter(struct pt_regs *regs, bool session)
{
	__u64 cookie = bpf_get_attach_cookie(regs);
	__u32 api = (__u32)cookie;
	bool returns = returns_of(cookie);
	int answer = returns ? RETURN_WANTED : RETURN_IGNORED;
	const struct spec *spec;
	struct open_calls calls;
	struct hip_call *record;
	struct thread *thread;
	struct identity who;

	(void)session;
	if (api >= API_COUNT || !in_scope(&who))
		return RETURN_IGNORED;
	spec = &specs[api];
	thread = this_thread(true);
	if (!thread)
		return RETURN_IGNORED;
	calls = OPEN_CALLS(&thread->call, 1, thread->depth);
	if (innermost_call(calls, regs->sp, api, NULL) || !open_call(calls, regs, api, returns))
		return RETURN_IGNORED;
	record = &thread->call.record;
	__builtin_memset(record, 0, sizeof(*record));
	begin_head(&record->head, spec->kind, who);
	fill_context(&record->head);
	record->api = (__u16)api;
	record->device = thread->device;
	read_words(&thread->words, regs, spec->kind == HIP_LAUNCH);
	if (spec->kind == HIP_LAUNCH)
		fill_launch(record, &thread->words);
	else
		fill_slots(record, &thread->words, spec, regs);
	/* Last thing before the call itself: the clock is read as late as can be. */
	record->head.time_ns = bpf_ktime_get_ns();
	if (wants_stack(spec->kind))
		answer = ask_for_stack(CALL_FAMILY, api, record->head.time_ns, 0, !returns, answer);
	if (!returns) {
		if (spec->object & OUT)
			record->object = 0;
		submit_call(&record->head, sizeof(*record), record->head.time_ns, false);
	}
	return answer;
}

static __always_inline int leave(struct pt_regs *regs)
{
	__u64 end_ns = bpf_ktime_get_ns(), given = 0;
	__u32 api = (__u32)bpf_get_attach_cookie(regs);
	struct thread *thread = this_thread(false);
	const struct spec *spec;
	struct hip_call *record;

	if (!thread || api >= API_COUNT)
		return 0; /* out of scope at entry */
	spec = &specs[api];
	if (!close_call(OPEN_CALLS(&thread->call, 1, thread->depth), regs, api, true))
		return 0;
	record = &thread->call.record;
	if (wants_stack(spec->kind))
		record->head.time_ns = start_with_stack(CALL_FAMILY, record->head.time_ns);
	record->status = (__s32)RESULT(regs);
	if (spec->object & OUT) {
		if (!record->status)
			read_user(&given, sizeof(given), (void *)record->object);
		record->object = given;
	}
	if (spec->kind == HIP_DEVICE && !record->status)
		thread->device = record->device = (__s16)record->object;
	submit_call(&record->head, sizeof(*record), end_ns, true);
	return 0;
}

CALL_PROGRAMS(call, "libamdhip64:" HIP_CALLS(NAME), enter, leave)

char LICENSE[] SEC("license") = "Dual BSD/GPL";
