/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Records that are lost because the ring, or the share of it that a process has, is full: counted by reason like all
 * losses, and by process.
 */
#ifndef OTELGPU_LOST_RECORDS_H
#define OTELGPU_LOST_RECORDS_H

#include "counters.h"

#define LOSING_PROCESSES 1024

/* tgid -> its records that were lost, ever. Of more processes, the one that lost nothing for longest has no entry. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, LOSING_PROCESSES);
	__type(key, __u32);
	__type(value, __u64);
} records_lost SEC(".maps");

/* A record of a process is lost for the reason `which`. */
static __always_inline void lose_record_here(__u32 tgid, __u32 which)
{
	__u64 none = 0, *lost;

	count(which);
	lost = bpf_map_lookup_elem(&records_lost, &tgid);
	if (!lost) {
		bpf_map_update_elem(&records_lost, &tgid, &none, BPF_NOEXIST);
		lost = bpf_map_lookup_elem(&records_lost, &tgid);
	}
	if (lost)
		__sync_fetch_and_add(lost, 1);
}

/* Out of line: what has no room is rare, and in many places. */
static __noinline void lose_record(__u32 tgid, __u32 which)
{
	lose_record_here(tgid, which);
}

#endif
