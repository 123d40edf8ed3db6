/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What each process and each container may have waiting in the ring. While three quarters are free nobody is counted:
 * the usual case costs one query.
 */
#ifndef OTELGPU_RING_SHARE_H
#define OTELGPU_RING_SHARE_H

#include "dynamic_share.h"
#include "emit.h"

#define RING_SHARES	   8192
#define RING_SHARE_CROWDED 4 /* the part of the ring from which on bytes are counted */
#define RING_OF_PROCESS	   (1ULL << 63)

struct ring_share {
	__u64 since;   /* the position in the ring from which on bytes are counted */
	__u64 bytes;   /* counted, of records that may wait */
	__u64 refused; /* records, ever */
};

/* cgroup id, or tgid with RING_OF_PROCESS -> what it has. Who wrote nothing for longest has nothing there. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, RING_SHARES);
	__type(key, __u64);
	__type(value, struct ring_share);
} ring_shares SEC(".maps");

static __always_inline struct ring_share *ring_share_of(__u64 owner)
{
	struct ring_share *share = bpf_map_lookup_elem(&ring_shares, &owner);
	__u64 end = bpf_ringbuf_query(&ring, BPF_RB_PROD_POS);

	if (!share) {
		struct ring_share fresh = { .since = end };

		bpf_map_update_elem(&ring_shares, &owner, &fresh, BPF_ANY);
		return bpf_map_lookup_elem(&ring_shares, &owner);
	}
	if (share->since < bpf_ringbuf_query(&ring, BPF_RB_CONS_POS)) { /* all of it was read */
		share->since = end;
		share->bytes = 0;
	}
	return share;
}

/* Whether so much waits in the ring that everybody has only a share of it. */
static __always_inline bool ring_is_crowded(void)
{
	return bpf_ringbuf_query(&ring, BPF_RB_AVAIL_DATA) >=
	       bpf_ringbuf_query(&ring, BPF_RB_RING_SIZE) / RING_SHARE_CROWDED;
}

/* Whether a record of `bytes` is within the shares of its process and container; false: it must be counted as lost. */
static __always_inline bool within_ring_share(__u32 tgid, __u64 cgroup, __u64 bytes)
{
	__u64 size = bpf_ringbuf_query(&ring, BPF_RB_RING_SIZE);
	__u64 waiting = bpf_ringbuf_query(&ring, BPF_RB_AVAIL_DATA), free;
	struct ring_share *process, *container;

	if (waiting < size / RING_SHARE_CROWDED)
		return true;
	free = waiting < size ? size - waiting : 0;
	process = ring_share_of(RING_OF_PROCESS | tgid);
	container = ring_share_of(cgroup);
	if (!process || !container)
		return true;
	if (!within_dynamic_share(process->bytes + bytes, container->bytes + bytes, free, size)) {
		__sync_fetch_and_add(&process->refused, 1);
		return false;
	}
	__sync_fetch_and_add(&process->bytes, bytes);
	__sync_fetch_and_add(&container->bytes, bytes);
	return true;
}

#endif
