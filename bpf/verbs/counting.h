/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What is counted in maps and not reported call by call: by queue pair what was posted and what completed, by
 * process how often it was trapped for that.
 */
#ifndef OTELGPU_VERBS_COUNTING_H
#define OTELGPU_VERBS_COUNTING_H

#include "layouts.h"
#include "verbs.h"
#include "../lib/calls.h"

#define QUEUE_PAIRS 16384
#define PROCESSES   4096

/*
 * Where returns are not probed (entry_only, COOKIE_ENTRY_ONLY), every post is taken to succeed, what a call made is not
 * known, and completions are not seen.
 */

/* The number of the window in which polls are observed too; 0: no window. Posts are timed while there is one. */
volatile __u32 window = 0;
/* Whether each completed work request is reported, while there is a window. */
volatile __u32 transfers = 0;

/* Queue pair -> what it did. Deleted by user space, which reads it last. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, QUEUE_PAIRS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct verbs_counted_key);
	__type(value, struct verbs_counted);
} counted SEC(".maps");

static const struct verbs_counted uncounted_yet = {};

struct verbs_calls {
	__u64 posts;
	__u64 polls;
};

/* tgid -> how often probes of the data path ran for it: what they cost it. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, PROCESSES);
	__type(key, __u32);
	__type(value, struct verbs_calls);
} calls SEC(".maps");

struct address_key {
	__u64 address;
	__u32 tgid;
	__u32 reserved;
};

/* Queue pair -> what was last reported of it; deleted when it is destroyed. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, QUEUE_PAIRS);
	__type(key, struct address_key);
	__type(value, struct verbs_queue_pair);
} queue_pairs SEC(".maps");

struct number_key {
	__u64 context;
	__u32 tgid;
	__u32 number;
};

/* Number of a queue pair, which is its device's own -> its address. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, QUEUE_PAIRS);
	__type(key, struct number_key);
	__type(value, __u64);
} numbers SEC(".maps");

#define SEVERAL (~0ULL)

/* Completion queue -> the one queue pair that uses it, or SEVERAL. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, QUEUE_PAIRS);
	__type(key, struct address_key);
	__type(value, __u64);
} pair_of_queue SEC(".maps");

struct posted_key {
	__u64 queue_pair;
	__u64 id; /* wr_id, which programs may give to many */
	__u32 tgid;
	__u32 reserved;
};

/* Of the work requests with one id, one is timed: a send queue completes in order. */
struct posted {
	__u64 time_ns; /* of the timed one; 0: none */
	__u64 bytes;
	__u32 window;	   /* in which these are counted */
	__u32 outstanding; /* of the id */
	__u32 ahead;	   /* of the timed one */
	__u8 operation;
	__u8 reserved[3];
};

/* Signalled work requests on their way. What falls out is not timed. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct posted_key);
	__type(value, struct posted);
} on_their_way SEC(".maps");

static __always_inline void add(__u64 *to, __u64 amount)
{
	if (amount)
		__sync_fetch_and_add(to, amount);
}

static __always_inline struct address_key address_of(__u32 tgid, __u64 address)
{
	struct address_key key = { .address = address, .tgid = tgid };

	return key;
}

static __always_inline struct verbs_counted *counted_of(const struct verbs_counted_key *key)
{
	struct verbs_counted *found = bpf_map_lookup_elem(&counted, key);

	if (found)
		return found;
	bpf_map_update_elem(&counted, key, &uncounted_yet, BPF_NOEXIST);
	found = bpf_map_lookup_elem(&counted, key);
	if (!found)
		count(COUNTER_QUEUE_PAIR_TABLE_FULL);
	return found;
}

static __always_inline struct verbs_calls *calls_of(__u32 tgid)
{
	struct verbs_calls none = {}, *found = bpf_map_lookup_elem(&calls, &tgid);

	if (found)
		return found;
	bpf_map_update_elem(&calls, &tgid, &none, BPF_NOEXIST);
	return bpf_map_lookup_elem(&calls, &tgid);
}

/* A completion names its queue pair by number, and the extended API not at all. */
static __always_inline void index_pair(__u32 tgid, __u64 address, const struct pair *pair)
{
	struct number_key key = { .context = pair->context, .tgid = tgid, .number = pair->number };
	__u64 queues[2] = { pair->send_queue, pair->receive_queue }, several = SEVERAL;

	if (bpf_map_update_elem(&numbers, &key, &address, BPF_ANY))
		count(COUNTER_QUEUE_PAIR_TABLE_FULL);
	for (int i = 0; i < 2; i++) {
		struct address_key queue = address_of(tgid, queues[i]);
		__u64 *known = bpf_map_lookup_elem(&pair_of_queue, &queue);

		if (!known)
			bpf_map_update_elem(&pair_of_queue, &queue, &address, BPF_ANY);
		else if (*known != address)
			bpf_map_update_elem(&pair_of_queue, &queue, &several, BPF_ANY);
	}
}

static __always_inline struct verbs_counted *counted_of_pair(__u32 tgid, __u64 address,
							     const struct pair *pair)
{
	struct verbs_counted_key key = {
		.queue_pair = address,
		.tgid = tgid,
		.number = pair->number,
	};
	struct verbs_counted *found = bpf_map_lookup_elem(&counted, &key);

	if (found)
		return found;
	index_pair(tgid, address, pair);
	return counted_of(&key);
}

static __always_inline __u32 logarithm(__u64 value)
{
	__u32 result = 0;

	for (int shift = 32; shift; shift >>= 1)
		if (value >> shift) {
			value >>= shift;
			result += shift;
		}
	return result < VERBS_LATENCIES ? result : VERBS_LATENCIES - 1;
}

#endif
