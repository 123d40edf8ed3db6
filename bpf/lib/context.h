/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The trace context under which the current thread works, as somebody published it: the process itself
 * (OpenTelemetry OTEP 4947, "Thread Context"), or OpenTelemetry eBPF Instrumentation for it. Where nobody did, the
 * task that the thread runs (a goroutine, an asyncio task's context), if its runtime keeps several: lib/tasks.h.
 *
 * A thread's context is a record that a thread-local pointer, otel_thread_ctx_v1, leads to. Only the thread
 * itself writes either, so that a program that runs in its place sees both whole. Where the pointer lies is
 * found by user space (otelgpu/processes/thread_context.py), once for each process.
 */
#ifndef OTELGPU_CONTEXT_H
#define OTELGPU_CONTEXT_H

#include "tasks.h"
#include <bpf/bpf_core_read.h>

#define CONTEXT_PROCESSES 16384
#define CONTEXT_PLACES	  2 /* publishers in one process: two tracers at most */

/* How a thread's copy of a variable is reached from its thread pointer. */
enum context_access {
	CONTEXT_ACCESS_NONE = 0,
	CONTEXT_ACCESS_STATIC = 1, /* at a fixed distance */
	CONTEXT_ACCESS_GLIBC = 2,  /* through the dynamic thread vector, as glibc lays it out */
	CONTEXT_ACCESS_MUSL = 3,   /* ... as musl does */
};
ENUM(context_access);
ENUM(context_source);

struct context_place {
	__s64 offset;	  /* from the thread pointer, or in the module's block */
	__u64 generation; /* glibc: a vector that is older does not know the module; 0: not reported */
	__u32 module;	  /* its number in the vector */
	__u32 access;	  /* enum context_access */
};

struct context_places {
	struct context_place place[CONTEXT_PLACES];
};

/* tgid -> where its threads publish. Filled by user space and by fork; emptied by exec and exit. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, CONTEXT_PROCESSES);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct context_places);
} context_processes SEC(".maps");

/* What anybody has: where nobody publishes, nobody pays. */
enum context_kinds {
	CONTEXT_KIND_PUBLISHED = 1, /* context_processes ever had an entry */
	CONTEXT_KIND_TASKS = 2,	    /* ... task_processes */
};
ENUM(context_kinds);

/* 0 -> bits of enum context_kinds. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} context_published SEC(".maps");

/* -- OpenTelemetry eBPF Instrumentation ------------------------------------------------------- */

const volatile bool context_obi = false; /* its map was there at load */

struct obi_context {
	__u8 trace_id[16];
	__u8 span_id[8];
};

/*
 * Thread, by bpf_get_current_pid_tgid(), -> the context of the request that it works for. OBI's, pinned by it
 * (devdocs/trace-profile-correlation.md); without one, the map is not created and not looked at.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1 << 14);
	__type(key, __u64);
	__type(value, struct obi_context);
} traces_ctx_v1 SEC(".maps");

/* -- The record of a thread ------------------------------------------------------------------- */

/* OTEP 4947: what begins a record; attributes follow. Aligned to 2 bytes. */
struct thread_context {
	__u8 trace_id[16];
	__u8 span_id[8];
	__u8 valid; /* 1: the rest is */
	__u8 trace_flags;
	__u16 attributes_bytes;
};

#define THREAD_CONTEXT_VALID 1
#define SAMPLED		     1 /* W3C Trace Context */

/* The dynamic thread vector is the second word behind the thread pointer, in both libraries. */
#define VECTOR_AT	  8
#define BLOCK_UNALLOCATED (~0ULL) /* glibc: TLS_DTV_UNALLOCATED */

/* glibc (sysdeps/generic/dl-dtv.h): entries are pairs; [-1] holds how many there are, [0] the generation. */
struct glibc_vector {
	__u64 modules;
	__u64 unused;
	__u64 generation;
};

static __always_inline bool read_published(void *into, __u32 size, __u64 address)
{
	if (bpf_probe_read_user(into, size, (void *)address)) {
		count(COUNTER_CONTEXT_UNREADABLE);
		return false;
	}
	return true;
}

static __always_inline __u64 read_word(__u64 address)
{
	__u64 word = 0;

	read_published(&word, sizeof(word), address);
	return word;
}

/* A module's block of the thread, or 0 where it has none yet: then it has published nothing. */
static __always_inline __u64 block_of(const struct context_place *place, __u64 thread_pointer)
{
	__u64 vector = read_word(thread_pointer + VECTOR_AT);
	struct glibc_vector head = {};
	__u64 block;

	if (!vector)
		return 0;
	if (place->access == CONTEXT_ACCESS_MUSL)
		/* src/internal/pthread_impl.h: pointers; [0] holds how many there are. */
		return place->module <= read_word(vector) ? read_word(vector + 8ULL * place->module)
							  : 0;
	if (!read_published(&head, sizeof(head), vector - 16))
		return 0;
	if (place->module > head.modules || head.generation < place->generation)
		return 0;
	block = read_word(vector + 16ULL * place->module);
	return block == BLOCK_UNALLOCATED ? 0 : block;
}

/* Where the thread's record lies; 0: it works under no context. */
static __always_inline __u64 published_at(const struct context_place *place, __u64 thread_pointer)
{
	__u64 block = thread_pointer;

	if (place->access == CONTEXT_ACCESS_NONE)
		return 0;
	if (place->access != CONTEXT_ACCESS_STATIC)
		block = block_of(place, thread_pointer);
	return block ? read_word(block + place->offset) : 0;
}

static __always_inline bool is_zero(const __u8 *id, __u32 size)
{
	const __u64 *word = (const __u64 *)id;

	return size == 8 ? !word[0] : !(word[0] | word[1]);
}

static __always_inline bool take_thread_context(struct record_head *head)
{
	struct task_struct *task = (struct task_struct *)bpf_get_current_task();
	struct context_places *places;
	__u64 thread_pointer;
	__u32 tgid = head->tgid; /* Linux 6.1 refuses a key in the ring's memory */

	places = bpf_map_lookup_elem(&context_processes, &tgid);
	if (!places)
		return false;
	thread_pointer = BPF_CORE_READ(task, thread.fsbase);
	for (int i = 0; i < CONTEXT_PLACES; i++) {
		struct thread_context context __attribute__((aligned(8))) = {};
		__u64 address = published_at(&places->place[i], thread_pointer);

		if (!address || !read_published(&context, sizeof(context), address))
			continue;
		if (context.valid != THREAD_CONTEXT_VALID || is_zero(context.trace_id, 16) ||
		    is_zero(context.span_id, 8))
			continue;
		__builtin_memcpy(head->trace_id, context.trace_id, 16);
		__builtin_memcpy(head->span_id, context.span_id, 8);
		head->trace_flags = context.trace_flags;
		head->context_source = CONTEXT_THREAD_CONTEXT;
		return true;
	}
	return false;
}

static __always_inline bool take_obi_context(struct record_head *head)
{
	__u64 thread = bpf_get_current_pid_tgid();
	struct obi_context *context = bpf_map_lookup_elem(&traces_ctx_v1, &thread);

	if (!context || is_zero(context->trace_id, 16) || is_zero(context->span_id, 8))
		return false;
	__builtin_memcpy(head->trace_id, context->trace_id, 16);
	__builtin_memcpy(head->span_id, context->span_id, 8);
	head->trace_flags = SAMPLED; /* the map does not report */
	head->context_source = CONTEXT_OBI;
	return true;
}

/*
 * At a probe, on the thread that is probed: its context into a head whose tgid is filled and whose context
 * is zero. A function of its own for the verifier, which then looks at it once for all its callers.
 */
__attribute__((noinline)) int fill_context(struct record_head *head)
{
	__u32 zero = 0, *published = bpf_map_lookup_elem(&context_published, &zero);

	if (!head || !published)
		return 0;
	if (*published & CONTEXT_KIND_PUBLISHED && take_thread_context(head))
		return 0;
	if (context_obi && take_obi_context(head))
		return 0;
	if (*published & CONTEXT_KIND_TASKS)
		take_task(head);
	return 0;
}

static __always_inline void copy_context(struct record_head *into, const struct record_head *from)
{
	__builtin_memcpy(into->trace_id, from->trace_id, sizeof(into->trace_id));
	__builtin_memcpy(into->span_id, from->span_id, sizeof(into->span_id));
	into->trace_flags = from->trace_flags;
	into->context_source = from->context_source;
}

/* A child has its parent's memory and publishes where it does. */
static __always_inline void inherit_context(__u32 parent, __u32 child)
{
	struct context_places *places = bpf_map_lookup_elem(&context_processes, &parent);

	if (places && bpf_map_update_elem(&context_processes, &child, places, BPF_ANY))
		count(COUNTER_PUBLISHERS_FULL);
	inherit_task_path(parent, child);
}

/* Its memory is gone: it has ended, or is another program. */
static __always_inline void forget_context(__u32 tgid)
{
	bpf_map_delete_elem(&context_processes, &tgid);
	bpf_map_delete_elem(&task_processes, &tgid);
}

#endif
