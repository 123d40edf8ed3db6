/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Sends and receives of PyTorch's groups over gloo: one call begins a transfer, the wait for it is another.
 *
 *     ProcessGroupGloo::ProcessGroupGloo(store, 1, 4)   group_made(): rank 1 of 4
 *     ProcessGroupGloo::recv(tensors, 0, tag) -> work   transfer_began(): the first one from rank 0
 *     RecvWork::wait() of `work`                        transfer_of(): what is recorded
 *
 * Transfers of a pair of ranks are numbered in each direction, from when the group was made: the same on both sides, for
 * those with one tag are received in the order in which they were sent. They are not numbered of groups that were there
 * before the probes, with tags other than 0, with more peers than PEERS, and once a receive took what any rank sent.
 */
#ifndef OTELGPU_GLOO_TRANSFERS_H
#define OTELGPU_GLOO_TRANSFERS_H

#include "gloo.h"
#include "../lib/emit.h"

#define GROUPS	  1024
#define PEERS	  16
#define TRANSFERS 4096

/* An object of a process. */
struct object {
	__u64 address;
	__u32 tgid;
	__u32 reserved;
};

struct peer {
	__u32 rank_and_one; /* 0: free */
	__u32 sent;
	__u32 received;
};

struct group {
	__s32 rank;
	__s32 ranks;
	__u32 any; /* has received from any rank */
	struct peer peers[PEERS];
};

struct transfer {
	__u64 group;
	__s32 rank; /* of the caller; -1: not known */
	__s32 ranks;
	__s32 peer; /* -1: any */
	__u32 number;
	__u16 api;
	__u8 numbered;
	__u8 reserved[5];
};

/* ProcessGroupGloo -> who is in it. The oldest are forgotten, with their numbers. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, GROUPS);
	__type(key, struct object);
	__type(value, struct group);
} groups SEC(".maps");

/* Work -> the transfer, until it is waited for. The oldest are forgotten: nobody waits for some. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, TRANSFERS);
	__type(key, struct object);
	__type(value, struct transfer);
} transfers SEC(".maps");

static const struct group new_group;

/* At the entry of its constructor. */
static __always_inline void group_made(__u32 tgid, __u64 address, __s32 rank, __s32 ranks)
{
	struct object key = { .address = address, .tgid = tgid };
	struct group *made;

	if (ranks < 1 || ranks > MOST_RANKS || rank < 0 || rank >= ranks) {
		count(COUNTER_COMMUNICATOR_IMPLAUSIBLE);
		return;
	}
	bpf_map_update_elem(&groups, &key, &new_group, BPF_ANY);
	made = bpf_map_lookup_elem(&groups, &key);
	if (!made)
		return;
	made->rank = rank;
	made->ranks = ranks;
}

/* The next number of the pair, in this direction; whether there is one. */
static __always_inline bool number_of(struct group *group, __s32 peer, bool sends, __u32 *number)
{
	for (__u32 i = 0; i < PEERS; i++) {
		struct peer *other = &group->peers[i];

		if (!other->rank_and_one)
			__sync_val_compare_and_swap(&other->rank_and_one, 0, (__u32)peer + 1);
		if (other->rank_and_one != (__u32)peer + 1)
			continue;
		*number = __sync_fetch_and_add(sends ? &other->sent : &other->received, 1);
		return true;
	}
	return false;
}

/* What is known of a send or receive when it is called; its peer and api are known before. */
__attribute__((noinline)) int read_transfer(struct transfer *transfer, __u32 tgid, bool sends,
					    bool tagged)
{
	struct object key = { .tgid = tgid };
	struct group *group;

	if (!transfer)
		return 0;
	transfer->rank = transfer->ranks = -1;
	transfer->number = transfer->numbered = 0;
	key.address = transfer->group;
	group = bpf_map_lookup_elem(&groups, &key);
	if (!group)
		return 0;
	if (transfer->peer >= group->ranks) {
		count(COUNTER_COMMUNICATOR_IMPLAUSIBLE);
		return 0;
	}
	transfer->rank = group->rank;
	transfer->ranks = group->ranks;
	if (transfer->peer < 0)
		group->any = 1;
	else if (!tagged && (sends || !group->any))
		transfer->numbered = number_of(group, transfer->peer, sends, &transfer->number);
	return 0;
}

/* When the call has returned: `work` is what is waited for. */
static __always_inline void transfer_began(__u32 tgid, __u64 work, const struct transfer *transfer)
{
	struct object key = { .address = work, .tgid = tgid };

	if (work)
		bpf_map_update_elem(&transfers, &key, transfer, BPF_ANY);
}

/* What the wait for `work` is for, once, where it is known. */
static __always_inline void transfer_of(__u32 tgid, __u64 work, struct transfer *transfer)
{
	struct object key = { .address = work, .tgid = tgid };
	struct transfer *begun = bpf_map_lookup_elem(&transfers, &key);

	if (!begun)
		return;
	*transfer = *begun;
	bpf_map_delete_elem(&transfers, &key);
}

#endif
