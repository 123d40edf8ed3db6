/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Calls that are counted instead of recorded, while a ring cannot hold all: by process and function, so that user
 * space (otelgpu/kernel/overload.py) still says how many there were. A family that can do with less has an enum
 * <family>_detail, from everything to the least, and keeps to `detail`.
 */
#ifndef OTELGPU_CALLS_COUNTED_H
#define OTELGPU_CALLS_COUNTED_H

#include "counters.h"

/* How much is recorded, set by user space as the load allows. 0: everything. */
volatile __u32 detail = 0;

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

/* To be named in a family that counts, with how many functions it has: the same for processes that found no room. */
#define CALLS_COUNTED_FOR_OTHERS(functions)              \
	struct {                                         \
		__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY); \
		__uint(max_entries, functions);          \
		__type(key, __u32);                      \
		__type(value, __u64);                    \
	} calls_counted_for_others SEC(".maps")

static __always_inline void count_call(__u32 tgid, __u32 api, void *for_others)
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
		counted = bpf_map_lookup_elem(for_others, &api);
	}
	if (counted)
		__sync_fetch_and_add(counted, 1);
}

#endif
