/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The task that the current thread runs, where its runtime keeps several on a thread: of Go the goroutine's number, of
 * CPython the address of the contextvars.Context that is entered (every asyncio task and every callback of a loop has
 * its own). A number that is given to another task once this one has ended, of CPython: it says who did two things
 * only together with when.
 *
 * How it is reached from the thread pointer is found by user space (otelgpu/processes/task_runtimes.py), once for each
 * process; of Go at the first function that is probed, too (http/go_streams.h).
 */
#ifndef OTELGPU_TASKS_H
#define OTELGPU_TASKS_H

#include "counters.h"
#include <bpf/bpf_core_read.h>

#define TASK_PROCESSES 16384
#define TASK_STEPS     5

/* From the thread pointer: add an offset and read the word there, so many times. The last word is the task. */
struct task_path {
	__s64 offset[TASK_STEPS];
	__u64 steps;
};

/* tgid -> how its threads' tasks are reached. Filled by user space and by fork; emptied by exec and exit. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, TASK_PROCESSES);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct task_path);
} task_processes SEC(".maps");

/* The one that the current thread, of that process, runs. 0: none, also where a word on the way is zero, or not known. */
static __always_inline __u64 current_task(__u32 tgid)
{
	struct task_struct *thread = (struct task_struct *)bpf_get_current_task();
	struct task_path *path = bpf_map_lookup_elem(&task_processes, &tgid);
	__u64 word;

	if (!path)
		return 0;
	word = BPF_CORE_READ(thread, thread.fsbase);
	for (__u64 i = 0; i < TASK_STEPS; i++) {
		if (i >= path->steps)
			break;
		if (!word)
			return 0;
		if (bpf_probe_read_user(&word, sizeof(word), (void *)(word + path->offset[i]))) {
			count(COUNTER_TASK_UNREADABLE);
			return 0;
		}
	}
	return word;
}

/* It into a head whose context is zero. */
static __always_inline void take_task(struct record_head *head)
{
	__u64 task = current_task(head->tgid); /* Linux 6.1 refuses a key in the ring's memory */

	if (!task)
		return;
	__builtin_memcpy(head->span_id, &task, sizeof(task));
	head->context_source = CONTEXT_TASK;
}

/* A child has its parent's memory, and its runtime there. */
static __always_inline void inherit_task_path(__u32 parent, __u32 child)
{
	struct task_path *path = bpf_map_lookup_elem(&task_processes, &parent);

	if (path && bpf_map_update_elem(&task_processes, &child, path, BPF_ANY))
		count(COUNTER_TASK_PROCESSES_FULL);
}

#endif
