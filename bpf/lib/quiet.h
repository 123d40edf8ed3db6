/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Processes of which nothing is to be found out before they do something: user space has seen all files that they have
 * mapped, and nothing in them concerns it. What begins and ends every few milliseconds is as a rule of this kind (a
 * shell and what it calls, a probe of a container), and to look at each would cost what it takes to start it.
 */
#ifndef OTELGPU_QUIET_H
#define OTELGPU_QUIET_H

#include "emit.h"

/* tgid -> 1. What does not fit is looked at like any other. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, SCOPE_PROCESSES);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, __u8);
} quiet_processes SEC(".maps");

static __always_inline bool is_quiet(__u32 tgid)
{
	return bpf_map_lookup_elem(&quiet_processes, &tgid) != NULL;
}

/* As submit(), of a process that may have been quiet: its first record wakes user space, which looks at it. */
static __always_inline void submit_of(__u32 tgid, void *record)
{
	__u64 flags = wake_flags();

	if (is_quiet(tgid)) {
		bpf_map_delete_elem(&quiet_processes, &tgid);
		flags = BPF_RB_FORCE_WAKEUP;
	}
	count(COUNTER_SUBMITTED);
	bpf_ringbuf_submit(record, flags);
}

#endif
