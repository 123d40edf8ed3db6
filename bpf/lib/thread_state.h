/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What a family keeps of each thread: `struct thread`, which whoever includes this has declared. The kernel frees it
 * with the thread.
 */
#ifndef OTELGPU_THREAD_STATE_H
#define OTELGPU_THREAD_STATE_H

#include "counters.h"

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct thread);
} threads SEC(".maps");

/* The calling thread's, or NULL; one that cannot be had is counted. */
static __always_inline struct thread *this_thread(bool create)
{
	struct thread *thread = bpf_task_storage_get(&threads, bpf_get_current_task_btf(), NULL,
						     create ? BPF_LOCAL_STORAGE_GET_F_CREATE : 0);

	if (create && !thread)
		count(COUNTER_THREAD_STATE_FAILED);
	return thread;
}

#endif
