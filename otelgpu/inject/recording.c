// SPDX-License-Identifier: Apache-2.0
/*
 * From a call to a record in its thread's ring: what runs at every call. No lock,
 * no allocation and no system call, and nothing that another thread writes but the
 * reader's position.
 *
 * The record is filled from the table by the code that the BPF programs use, and
 * means the same: what is called inside another call is not reported, but for names,
 * and for what it does to the current device.
 */
#include "inject.h"
#include "cuda/slots.h"
#include "cupti.h"

#include <string.h>

static __thread __attribute__((tls_model("initial-exec"))) struct thread this_thread;

static bool is_launch(__u8 shape)
{
	return shape >= SHAPE_LAUNCH && shape <= SHAPE_LAUNCH_DRIVER_DEVICES;
}

void count_many(enum inject_counter which, __u64 amount)
{
	__u64 *counter;

	if (!is_current(&this_thread))
		return;
	counter = &this_thread.control->counters[which];
	/* Only this thread writes it; the agent must not see half of it. */
	__atomic_store_n(counter, *counter + amount, __ATOMIC_RELAXED);
}

/* -- Current devices ------------------------------------------------------------------------ */

/* context -> device. Contexts are few; one that finds no room has an unknown device. */
#define CONTEXTS 64
static struct {
	__u64 context;
	__s32 device;
} contexts[CONTEXTS];

static __s16 device_of(__u64 context)
{
	for (int i = 0; i < CONTEXTS; i++)
		if (__atomic_load_n(&contexts[i].context, __ATOMIC_ACQUIRE) == context)
			return (__s16)contexts[i].device;
	return CUDA_DEVICE_UNKNOWN;
}

static void learn_context(__u64 context, __s32 device)
{
	for (int i = 0; i < CONTEXTS; i++) {
		__u64 seen = 0;

		if (__atomic_compare_exchange_n(&contexts[i].context, &seen, context, 0,
						__ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE) ||
		    seen == context) {
			contexts[i].device = device;
			return;
		}
	}
	count_many(INJECT_CONTEXT_TABLE_FULL, 1);
}

/* What a call that succeeded means for the thread's current device. */
static void follow_call(const struct cuda_call *record, __u8 shape)
{
	if (reports_context(shape))
		learn_context(record->object, (__s32)record->other);
	follow_device(&this_thread.contexts, record, shape, device_of(record->object));
}

/* -- The ring ------------------------------------------------------------------------------- */

static void put_header(struct thread *thread, __u64 position, __u32 length)
{
	*(__u64 *)(thread->ring + (position & thread->mask)) = length;
}

/* Room for a record in one piece, or NULL with the loss counted; nobody sees it before publish(). */
static void *reserve(struct thread *thread, __u32 bytes)
{
	__u64 whole = INJECT_RECORD_HEADER + bytes, ring_bytes = thread->mask + 1;
	__u64 rest = ring_bytes - (thread->position & thread->mask);
	__u64 skipped = rest < whole ? rest : 0;

	if (unlikely(thread->position + skipped + whole - thread->consumer > ring_bytes)) {
		thread->consumer = __atomic_load_n(&thread->control->consumer, __ATOMIC_ACQUIRE);
		if (thread->position + skipped + whole - thread->consumer > ring_bytes) {
			count_many(INJECT_RING_FULL, 1);
			return NULL;
		}
	}
	if (skipped) {
		put_header(thread, thread->position,
			   (__u32)(skipped - INJECT_RECORD_HEADER) | INJECT_DISCARD);
		thread->position += skipped;
	}
	put_header(thread, thread->position, bytes);
	return thread->ring + (thread->position & thread->mask) + INJECT_RECORD_HEADER;
}

static void publish(struct thread *thread, __u32 bytes)
{
	thread->position += INJECT_RECORD_HEADER + bytes;
	count_many(INJECT_SUBMITTED, 1);
	__atomic_store_n(&thread->control->producer, thread->position, __ATOMIC_RELEASE);
}

/*
 * Which of the device's activities the call has caused: CORRELATION in cupti.h. In a
 * field that its kind has no other use for.
 */
static void correlate(struct cuda_call *record, __u64 end_ns)
{
	__u64 correlation = cupti_call_end(record->head.kind, end_ns);

	if (likely(!correlation))
		return;
	if (record->head.kind == CUDA_LAUNCH)
		record->other = correlation;
	else
		record->caller = correlation;
}

/* -- Calls ---------------------------------------------------------------------------------- */

/* memset(), for which compilers take an instruction that costs more than all the rest. */
static inline void clear(struct cuda_call *record)
{
	typedef __u64 pair __attribute__((vector_size(16), may_alias));
	pair *at = (pair *)record;

	for (size_t i = 0; i < sizeof(*record) / sizeof(pair); i++) {
		at[i] = (pair){ 0, 0 };
		__asm__ volatile("" : : : "memory"); /* or it becomes one again */
	}
}

/*
 * void otelgpu_call_began(__u64 start_ns, __u64 kind, __u64 function): does nothing, and is there for a probe that takes
 * the stack of the call (bpf/profile/calls.h). It is called only while one is there: its first byte is another then.
 */
void otelgpu_call_began(__u64 start_ns, __u64 kind, __u64 function);
__asm__(".text\n.globl otelgpu_call_began\n.type otelgpu_call_began, "
	"@function\notelgpu_call_began:\n"
	"\t.cfi_startproc\n\tnop\n\tret\n\t.cfi_endproc\n.size otelgpu_call_began, "
	".-otelgpu_call_began\n");
#define NOP 0x90

static bool is_probed(void)
{
	return *(const volatile __u8 *)otelgpu_call_began != NOP;
}

void call_begin(struct call *call, __u16 api, struct pt_regs *regs)
{
	const struct spec *spec = &specs[api];
	struct cuda_call *record = &call->record;
	struct thread *thread = &this_thread;
	struct words words;

	call->recorded = NOT_RECORDED;
	call->is_outermost = 0;
	if (unlikely(thread->outermost)) {
		/* The stack grows down: what began above this call has not returned yet. */
		if (thread->outermost > call) {
			if (!(KINDS_NAMING >> spec->kind & 1) && !follows_device(spec->shape))
				return;
			call->recorded = KINDS_NAMING >> spec->kind & 1 ? RECORDED : FOLLOWED;
		} else {
			thread->outermost = NULL;
			count_many(INJECT_CALL_ABANDONED, 1);
		}
	}
	if (unlikely(!is_current(thread)) && !thread_open(thread)) {
		call->recorded = NOT_RECORDED;
		return;
	}
	if (call->recorded == NOT_RECORDED) {
		call->recorded = RECORDED;
		call->is_outermost = 1;
		thread->outermost = call;
		cupti_call_begin();
	}
	call->generation = thread->generation;
	clear(record);
	record->head.tgid = thread->tgid;
	record->head.tid = thread->tid;
	record->head.kind = spec->kind;
	record->api = api;
	record->device = thread->contexts.device;
	if (is_launch(spec->shape)) {
		fill_launch(record, regs, spec->shape);
	} else {
		read_words(&words, regs, spec->stack);
		fill_slots(record, &words, spec);
		fill_shape(record, &words, spec->shape);
		if (spec->kind == CUDA_ALLOCATION)
			record->caller = (__u64)call->caller;
	}
	/* Last thing before the call itself: the clock is read as late as can be. */
	record->head.time_ns = clock_now(&thread->clock);
	call->spent_ns = 0;
	if (unlikely(is_probed()) && call->is_outermost) {
		otelgpu_call_began(record->head.time_ns, spec->kind, CALL_NUMBER(CALL_FAMILY, api));
		call->spent_ns = clock_now(&thread->clock) - record->head.time_ns;
	}
}

static void submit_call(struct thread *thread, const struct cuda_call *reported)
{
	struct cuda_call *record = reserve(thread, sizeof(*record));

	if (!record)
		return;
	memcpy(record, reported, sizeof(*record));
	publish(thread, sizeof(*record));
}

static void submit_name(struct thread *thread, const struct cuda_call *reported)
{
	struct cuda_name *record = reserve(thread, sizeof(*record));
	const char *text = (const char *)reported->extra;

	if (!record)
		return;
	memset(record, 0, sizeof(*record));
	record->head = reported->head;
	record->object = reported->object;
	record->other = reported->other;
	record->status = reported->status;
	record->api = reported->api;
	if (text && !reported->status) {
		size_t length = strnlen(text, CUDA_NAME_BYTES);

		/* As a BPF program leaves it: the last byte is zero, and a name that was cut says so. */
		record->length = (__u16)(length < CUDA_NAME_BYTES ? length : CUDA_NAME_BYTES + 1);
		memcpy(record->text, text, length < CUDA_NAME_BYTES ? length : CUDA_NAME_BYTES - 1);
	}
	publish(thread, sizeof(*record));
}

static void record_result(struct thread *thread, struct call *call, __u64 result, __u64 end_ns)
{
	struct cuda_call *record = &call->record;
	const struct spec *spec = &specs[record->api];

	record->head.duration_ns = end_ns - record->head.time_ns - call->spent_ns;
	record->head.returned = 1;
	record->status = (__s32)result;
	if (!is_launch(spec->shape)) {
		finish_slots(record, spec, !record->status);
		if (!record->status && follows_device(spec->shape))
			follow_call(record, spec->shape);
	}
	if (call->is_outermost)
		correlate(record, end_ns);
	if (call->recorded == FOLLOWED)
		return;
	if (unlikely(spec->kind == CUDA_NAME))
		submit_name(thread, record);
	else
		submit_call(thread, record);
}

void call_end(struct call *call, __u64 result)
{
	struct thread *thread = &this_thread;
	__u64 end_ns;

	if (call->recorded == NOT_RECORDED)
		return;
	end_ns = clock_now(&thread->clock);
	/* Within the call the process may have forked, and this be the child: what began is the parent's. */
	if (likely(call->generation == thread->generation && is_current(thread)))
		record_result(thread, call, result, end_ns);
	if (call->is_outermost) {
		/* Until here, what a signal handler calls is inside this call, and leaves the ring alone. */
		__atomic_signal_fence(__ATOMIC_SEQ_CST);
		thread->outermost = NULL;
	}
}

/* -- What others record -------------------------------------------------------------------- */

/* Of the device's work: see cupti.h. Any thread, which gets a ring if it has none. */
bool inject_emit(const void *record, size_t bytes)
{
	struct thread *thread = &this_thread;
	struct record_head *head;

	if (!is_current(thread) && !thread_open(thread))
		return false;
	head = reserve(thread, (__u32)bytes);
	if (!head)
		return false;
	memcpy(head, record, bytes);
	head->tgid = thread->tgid;
	publish(thread, (__u32)bytes);
	return true;
}

/* -- Calls that CUPTI reports ------------------------------------------------------------------ */

uint16_t inject_reported_function(const char *name)
{
	return api_number(name);
}

uint16_t inject_reported_kind(uint16_t function)
{
	return specs[function].kind;
}

void inject_reported_begin(struct reported_call *call)
{
	struct thread *thread = &this_thread;

	if (!is_current(thread) && !thread_open(thread))
		return;
	call->began_ns = clock_now(&thread->clock);
	if (unlikely(is_probed())) {
		otelgpu_call_began(call->began_ns, specs[call->function].kind,
				   CALL_NUMBER(CALL_FAMILY, call->function));
		call->spent_ns = clock_now(&thread->clock) - call->began_ns;
	}
}

/*
 * What generated_cuda_runtime_api_meta.h and generated_cuda_meta.h have in the first words of launches: the function, then
 * grid and block of three numbers each; or the configuration, then the function.
 */
static void fill_reported(struct cuda_call *record, __u8 shape, const void *parameters)
{
	const __u64 *words = parameters;

	switch (parameters ? shape : 0) {
	case SHAPE_LAUNCH:
	case SHAPE_LAUNCH_DRIVER:
		record->function = words[0];
		memcpy(record->grid, &words[1], sizeof(record->grid));
		memcpy(record->block, (const __u8 *)&words[1] + sizeof(record->grid),
		       sizeof(record->block));
		break;
	case SHAPE_LAUNCH_CONFIG:
	case SHAPE_LAUNCH_DRIVER_CONFIG:
		record->function = words[1];
		break;
	}
}

void inject_reported_end(const struct reported_call *call, uint64_t now_ns)
{
	struct thread *thread = &this_thread;
	struct cuda_call record;

	if (!call->began_ns || !is_current(thread))
		return;
	clear(&record);
	record.head.time_ns = call->began_ns;
	record.head.duration_ns = now_ns - call->began_ns - call->spent_ns;
	record.head.tgid = thread->tgid;
	record.head.tid = thread->tid;
	record.head.kind = specs[call->function].kind;
	record.head.returned = 1;
	record.api = call->function;
	record.device = CUDA_DEVICE_UNKNOWN;
	record.status = (__s32)call->status;
	fill_reported(&record, specs[call->function].shape, call->parameters);
	if (record.head.kind == CUDA_LAUNCH)
		record.other = call->correlation;
	else
		record.caller = call->correlation;
	submit_call(thread, &record);
}
