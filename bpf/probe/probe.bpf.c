/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Probes that a user asked for: uprobes, USDT, tracepoints, kprobes. Which one fired is its cookie.
 * User space attaches the programs itself: their sections name no place.
 */
#include "probe.h"

#include "../lib/arguments.h"
#include "../lib/emit.h"
#include "../lib/own_stack.h"

RECORD(probe_hit);
ENUM(probe_kind);
ENUM(argument_source);

#define CALLS_DEEPEST 8

/* place, which is the cookie -> what to read there */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, PROBE_PLACES);
	__type(key, __u32);
	__type(value, struct probe_spec);
} probes SEC(".maps");

/* A call of a probed function that has not returned. */
struct open_call {
	__u64 sp; /* at entry */
	__u64 start_ns;
	__u64 values[PROBE_ARGUMENTS];
	__u16 number; /* of the probe */
	__u8 read;
	__u8 reserved[5];
};

struct open_calls {
	struct open_call calls[CALLS_DEEPEST];
	__u32 depth;
	__u32 reserved;
};

/* thread -> calls it is in; freed with the thread */
struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct open_calls);
} open_calls SEC(".maps");

struct words {
	__u64 at[16];
};

/* In the order of REGISTERS in otelgpu/model/user_probes.py. */
static __always_inline void words_of(struct words *words, struct pt_regs *regs)
{
	words->at[0] = regs->di;
	words->at[1] = regs->si;
	words->at[2] = regs->dx;
	words->at[3] = regs->cx;
	words->at[4] = regs->r8;
	words->at[5] = regs->r9;
	words->at[6] = regs->ax;
	words->at[7] = regs->bx;
	words->at[8] = regs->bp;
	words->at[9] = regs->sp;
	words->at[10] = regs->r10;
	words->at[11] = regs->r11;
	words->at[12] = regs->r12;
	words->at[13] = regs->r13;
	words->at[14] = regs->r14;
	words->at[15] = regs->r15;
}

static __always_inline __u64 narrowed(__u64 value, const struct probe_argument *argument)
{
	__u32 unused = 64 - 8 * (argument->size & 15);

	if (unused >= 64 || !unused)
		return value;
	value <<= unused;
	return argument->is_signed ? (__u64)((__s64)value >> unused) : value >> unused;
}

static __always_inline bool read_argument(__u64 *value, const struct probe_argument *argument,
					  const struct words *words)
{
	__u32 index = argument->reg;
	__u64 word;

	asm volatile("%0 &= 15" : "+r"(index)); /* for the verifier of Linux 6.1 */
	word = words->at[index];
	switch (argument->source) {
	case ARGUMENT_REGISTER:
		break;
	case ARGUMENT_CONSTANT:
		word = (__u64)argument->offset;
		break;
	case ARGUMENT_MEMORY: {
		void *place = (void *)(word + (__u64)argument->offset);

		word = 0;
		if (bpf_probe_read_user(&word, sizeof(word), place) &&
		    bpf_probe_read_user(&word, argument->size & 7, place)) {
			count(COUNTER_ARGUMENT_UNREADABLE);
			return false;
		}
		break;
	}
	default:
		return false;
	}
	*value = narrowed(word, argument);
	return true;
}

/* Those of `spec` that are known at the entry; returns which. */
static __always_inline __u8 read_arguments(__u64 values[PROBE_ARGUMENTS],
					   const struct probe_spec *spec, const struct words *words)
{
	__u8 read = 0;

	for (__u32 i = 0; i < PROBE_ARGUMENTS; i++) {
		values[i] = 0;
		if (i < spec->count && read_argument(&values[i], &spec->arguments[i], words))
			read |= 1 << i;
	}
	return read;
}

static __always_inline struct probe_hit *
begin_hit(const struct probe_spec *spec, struct identity who, __u64 start_ns, __u64 end_ns)
{
	struct probe_hit *hit = EMIT_BEGIN(probe_hit, PROBE_HIT, who, start_ns, end_ns);

	if (hit)
		hit->number = spec->number;
	return hit;
}

static __always_inline void enter_call(const struct probe_spec *spec, __u64 sp,
				       const struct words *words)
{
	struct open_calls *open = bpf_task_storage_get(&open_calls, bpf_get_current_task_btf(),
						       NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);
	struct open_call *call;
	__u32 depth;

	if (!open) {
		count(COUNTER_THREAD_STATE_FAILED);
		return;
	}
	depth = open->depth;
	/* What has its frame below this one's has ended without returning here. */
	for (__u32 i = 0; i < CALLS_DEEPEST; i++) {
		if (!depth || depth > CALLS_DEEPEST || open->calls[(depth - 1) & 7].sp > sp)
			break;
		/* Two probes at one function have one frame. */
		if (open->calls[(depth - 1) & 7].sp == sp &&
		    open->calls[(depth - 1) & 7].number != spec->number)
			break;
		depth--;
		if (open->calls[depth & 7].sp)
			count(COUNTER_CALL_ABANDONED);
	}
	if (depth >= CALLS_DEEPEST) {
		count(COUNTER_CALLS_NESTED_TOO_DEEP);
		open->depth = depth;
		return;
	}
	call = &open->calls[depth & 7];
	call->sp = sp;
	call->number = spec->number;
	call->read = read_arguments(call->values, spec, words);
	open->depth = depth + 1;
	call->start_ns = bpf_ktime_get_ns();
}

static __always_inline int hit(struct pt_regs *regs)
{
	__u32 place = (__u32)bpf_get_attach_cookie(regs);
	struct probe_spec *spec = bpf_map_lookup_elem(&probes, &place);
	struct probe_hit *record;
	struct identity who;
	struct words words;
	__u64 now;

	if (!spec || !in_scope(&who))
		return 0;
	words_of(&words, regs);
	if (spec->returns) {
		enter_call(spec, regs->sp, &words);
		return 0;
	}
	now = bpf_ktime_get_ns();
	record = begin_hit(spec, who, now, now);
	if (!record)
		return 0;
	record->read = read_arguments(record->values, spec, &words);
	submit(record);
	return 0;
}

/* `sp`: what it was at entry. */
static __always_inline int leave(struct pt_regs *regs, __u64 sp)
{
	__u64 now = bpf_ktime_get_ns();
	__u32 place = (__u32)bpf_get_attach_cookie(regs);
	struct probe_spec *spec = bpf_map_lookup_elem(&probes, &place);
	struct open_call *call = NULL;
	struct probe_hit *record;
	struct open_calls *open;
	struct identity who;
	__u32 depth;

	if (!spec || !in_scope(&who))
		return 0;
	open = bpf_task_storage_get(&open_calls, bpf_get_current_task_btf(), NULL, 0);
	depth = open ? open->depth : 0;
	for (__u32 i = 0; i < CALLS_DEEPEST; i++) {
		if (!open || !depth || depth > CALLS_DEEPEST)
			break;
		call = &open->calls[(depth - 1) & 7];
		if (call->sp > sp)
			break;
		depth--;
		if (call->sp == sp && call->number == spec->number)
			goto found;
		if (call->sp && call->sp < sp)
			count(COUNTER_CALL_ABANDONED);
	}
	count(COUNTER_RETURN_WITHOUT_ENTRY);
	return 0;
found:
	/* The call of another probe of this function may lie above: it returns now, too. Zero: it has ended. */
	call->sp = 0;
	if (depth + 1 == open->depth)
		open->depth = depth;
	if (now - call->start_ns < spec->least_us * 1000ULL)
		return 0;
	record = begin_hit(spec, who, call->start_ns, now);
	if (!record)
		return 0;
	record->head.returned = 1;
	record->read = call->read;
	for (__u32 i = 0; i < PROBE_ARGUMENTS; i++) {
		record->values[i] = call->values[i];
		if (i < spec->count && spec->arguments[i].source == ARGUMENT_RESULT) {
			record->values[i] = narrowed(regs->ax, &spec->arguments[i]);
			record->read |= 1 << i;
		}
	}
	submit(record);
	return 0;
}

SEC("uprobe")
int user_entry(struct pt_regs *regs)
{
	ON_OWN_STACK(regs);
	return hit(regs);
}

SEC("uretprobe")
int user_return(struct pt_regs *regs)
{
	ON_OWN_STACK(regs);
	return leave(regs, regs->sp - sizeof(__u64));
}

/* At a USDT of the same function as the one where it began. */
SEC("uprobe")
int user_until(struct pt_regs *regs)
{
	ON_OWN_STACK(regs);
	return leave(regs, regs->sp);
}

SEC("?kprobe")
int user_kprobe(struct pt_regs *regs)
{
	return hit(regs);
}

/* Fields lie behind the tracepoint's context. */
SEC("tp")
int user_tracepoint(void *fields)
{
	__u32 place = (__u32)bpf_get_attach_cookie(fields);
	struct probe_spec *spec = bpf_map_lookup_elem(&probes, &place);
	struct probe_hit *record;
	struct identity who;
	__u64 now;

	if (!spec || !in_scope(&who))
		return 0;
	now = bpf_ktime_get_ns();
	record = begin_hit(spec, who, now, now);
	if (!record)
		return 0;
	for (__u32 i = 0; i < PROBE_ARGUMENTS; i++) {
		const struct probe_argument *argument = &spec->arguments[i];
		__u64 word = 0;

		if (i >= spec->count || argument->source != ARGUMENT_FIELD)
			continue;
		if (bpf_probe_read_kernel(&word, argument->size == 8 ? 8 : argument->size & 7,
					  fields + (argument->offset & 0xffff))) {
			count(COUNTER_ARGUMENT_UNREADABLE);
			continue;
		}
		record->values[i] = narrowed(word, argument);
		record->read |= 1 << i;
	}
	submit(record);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
