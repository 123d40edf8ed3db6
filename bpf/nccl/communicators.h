/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What is known of communicators: read from the library's own structure by its layout, never guessed.
 * One that cannot be read, or reads as no communicator does, has no hash.
 */
#ifndef OTELGPU_NCCL_COMMUNICATORS_H
#define OTELGPU_NCCL_COMMUNICATORS_H

#include "layouts.h"
#include "nccl.h"
#include "../lib/emit.h"

/* Layout's index, in the attach cookie -> where what is. Filled by user space. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, NCCL_LAYOUTS);
	__type(key, __u32);
	__type(value, struct nccl_layout);
} layouts SEC(".maps");

struct communicator_key {
	__u64 address;
	__u32 tgid;
	__u32 reserved;
};

struct communicator_known {
	__u64 hash;
	__u64 parent;
	__u64 identity;
	__s32 rank;
	__s32 ranks;
	__s32 device;
	__s32 color;
	__s32 async_error;
	__u16 api; /* that made it, or that it was first seen in */
	__u8 created;
	__u8 reserved;
};

/*
 * (process, address) -> what was reported. One that falls out is reported again when it is next used, then as one
 * that was not seen being made; deleted when it ends.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct communicator_key);
	__type(value, struct communicator_known);
} communicators SEC(".maps");

static __always_inline struct communicator_key communicator_key(__u32 tgid, __u64 address)
{
	struct communicator_key key = { .address = address, .tgid = tgid };

	return key;
}

/* -- Identity ------------------------------------------------------------------------------ */

/* Random, of this session, set by user space: what it digests cannot be found again from a capture. */
volatile __u64 identity_key_0 = 0;
volatile __u64 identity_key_1 = 0;

#define ROTATE(word, bits) ((word) << (bits) | (word) >> (64 - (bits)))

static __always_inline void sip_round(__u64 v[4])
{
	v[0] += v[1];
	v[1] = ROTATE(v[1], 13) ^ v[0];
	v[0] = ROTATE(v[0], 32);
	v[2] += v[3];
	v[3] = ROTATE(v[3], 16) ^ v[2];
	v[0] += v[3];
	v[3] = ROTATE(v[3], 21) ^ v[0];
	v[2] += v[1];
	v[1] = ROTATE(v[1], 17) ^ v[2];
	v[2] = ROTATE(v[2], 32);
}

/* SipHash-2-4 of one word. 0: of no word, or without a key. */
static __always_inline __u64 digest(__u64 word)
{
	__u64 key[2] = { identity_key_0, identity_key_1 };
	const __u64 length = 8ULL << 56;
	__u64 v[4] = {
		key[0] ^ 0x736f6d6570736575ULL,
		key[1] ^ 0x646f72616e646f6dULL,
		key[0] ^ 0x6c7967656e657261ULL,
		key[1] ^ 0x7465646279746573ULL,
	};

	if (!word || !(key[0] | key[1]))
		return 0;
	v[3] ^= word;
	sip_round(v);
	sip_round(v);
	v[0] ^= word;
	v[3] ^= length;
	sip_round(v);
	sip_round(v);
	v[0] ^= length;
	v[2] ^= 0xff;
	sip_round(v);
	sip_round(v);
	sip_round(v);
	sip_round(v);
	return v[0] ^ v[1] ^ v[2] ^ v[3];
}

/* -- The library's structure ----------------------------------------------------------------- */

/* What a communicator says of itself. */
struct communicator_read {
	__u64 hash; /* 0: not known, and then nothing is */
	__s32 rank;
	__s32 ranks;
	__s32 device;
	__u32 reserved;
};

static __always_inline bool read_at(void *into, __u32 size, __u64 address)
{
	return !bpf_probe_read_user(into, size, (void *)address);
}

/* How reading ended. */
enum reading { READ_WELL, READ_UNREADABLE, READ_IMPLAUSIBLE };

static __always_inline enum reading read_structure(struct communicator_read *found, __u64 address,
						   const struct nccl_layout *layout, bool whole)
{
	__u64 magic = NCCL_MAGIC;

	if (layout->begin_magic && !read_at(&magic, sizeof(magic), address))
		return READ_UNREADABLE;
	if (magic != NCCL_MAGIC)
		return READ_IMPLAUSIBLE;
	if (whole && layout->end_at && !read_at(&magic, sizeof(magic), address + layout->end_at))
		return READ_UNREADABLE;
	if (magic != NCCL_MAGIC)
		return READ_IMPLAUSIBLE;
	if (!read_at(&found->hash, sizeof(found->hash), address + layout->hash_at) ||
	    !read_at(&found->rank, sizeof(found->rank), address + layout->rank_at) ||
	    !read_at(&found->ranks, sizeof(found->ranks), address + layout->ranks_at) ||
	    !read_at(&found->device, sizeof(found->device), address + layout->device_at))
		return READ_UNREADABLE;
	if (!found->hash || found->ranks < 1 || found->ranks > NCCL_RANKS || found->rank < 0 ||
	    found->rank >= found->ranks || found->device < 0 || found->device > 0x7fff)
		return READ_IMPLAUSIBLE;
	return READ_WELL;
}

/*
 * `young`: it may be under construction, which is no failure. `whole`: look at its end too.
 * Of its own for the verifier.
 */
__attribute__((noinline)) int read_communicator(struct communicator_read *found, __u64 address,
						__u32 index, __u32 whole, __u32 young)
{
	const struct nccl_layout *layout = bpf_map_lookup_elem(&layouts, &index);
	enum reading how;

	if (!found)
		return 0;
	if (!layout || !layout->known || !index) {
		if (!young)
			count(COUNTER_COMMUNICATOR_LAYOUT_UNKNOWN);
		how = READ_IMPLAUSIBLE;
	} else {
		how = read_structure(found, address, layout, whole);
		if (how == READ_UNREADABLE)
			count(COUNTER_COMMUNICATOR_UNREADABLE);
		else if (how == READ_IMPLAUSIBLE && !young)
			count(COUNTER_COMMUNICATOR_IMPLAUSIBLE);
	}
	if (how != READ_WELL) {
		found->hash = 0;
		found->rank = -1;
		found->ranks = -1;
		found->device = -1;
	}
	return how == READ_WELL;
}

/* -- SignalSettings ----------------------------------------------------------------------------------- */

struct reporting {
	__u64 address;
	__u64 time_ns;
	__u64 begun_ns; /* when the call began that made it; 0: another reports */
	struct identity who;
	__s32 status;
	__u16 api;
	__u8 layout;
	__u8 ended;
};

__attribute__((noinline)) int report_communicator(const struct reporting *reporting,
						  const struct communicator_known *known)
{
	struct nccl_communicator *record;

	if (!reporting || !known)
		return 0;
	record = EMIT_BEGIN(nccl_communicator, NCCL_COMMUNICATOR, reporting->who,
			    reporting->begun_ns ?: reporting->time_ns, reporting->time_ns);
	if (!record)
		return 0;
	record->communicator = reporting->address;
	record->hash = known->hash;
	record->parent = known->parent;
	record->identity = known->identity;
	record->rank = known->rank;
	record->ranks = known->ranks;
	record->device = known->device;
	record->color = known->color;
	record->async_error = known->async_error;
	record->status = reporting->status;
	record->api = reporting->api;
	record->ended = reporting->ended;
	record->layout = reporting->layout;
	record->created = known->created;
	submit(record);
	return 0;
}

/*
 * A communicator is being used: what it says of itself, reported if it was not known or has changed. `found` is
 * then what is known of it.
 */
static __always_inline void see_communicator(struct communicator_read *found,
					     const struct reporting *reporting)
{
	struct communicator_key key = communicator_key(reporting->who.tgid, reporting->address);
	struct communicator_known *known = bpf_map_lookup_elem(&communicators, &key);
	struct communicator_known fresh = {};

	read_communicator(found, reporting->address, reporting->layout, !known || !known->hash, 0);
	if (known && !found->hash) {
		/* as its maker said, which stays true; its hash was never known, or no longer is its own */
		if (!known->hash) {
			found->rank = known->rank;
			found->ranks = known->ranks;
		}
		return;
	}
	if (known && known->hash == found->hash && known->rank == found->rank)
		return;
	if (known && !known->hash)
		fresh = *known;
	fresh.hash = found->hash;
	fresh.rank = found->rank;
	fresh.ranks = found->ranks;
	fresh.device = found->device;
	if (!fresh.api)
		fresh.api = reporting->api;
	if (bpf_map_update_elem(&communicators, &key, &fresh, BPF_ANY))
		count(COUNTER_COMMUNICATOR_TABLE_FULL);
	report_communicator(reporting, &fresh);
}

/* It was made: `known` is what its maker said of it. */
static __always_inline void see_made(const struct reporting *reporting,
				     struct communicator_known *known)
{
	struct communicator_key key = communicator_key(reporting->who.tgid, reporting->address);
	struct communicator_read found = {};

	known->created = 1;
	known->api = reporting->api;
	known->device = -1;
	if (read_communicator(&found, reporting->address, reporting->layout, 1, 1)) {
		known->hash = found.hash;
		known->rank = found.rank;
		known->ranks = found.ranks;
		known->device = found.device;
	}
	if (bpf_map_update_elem(&communicators, &key, known, BPF_ANY))
		count(COUNTER_COMMUNICATOR_TABLE_FULL);
	report_communicator(reporting, known);
}

/* It is about to be freed: reported before that, for afterwards its address may be another's. */
static __always_inline void see_ended(const struct reporting *reporting,
				      const struct communicator_read *found)
{
	struct communicator_key key = communicator_key(reporting->who.tgid, reporting->address);
	struct communicator_known *known = bpf_map_lookup_elem(&communicators, &key);
	struct communicator_known last = {};

	if (known)
		last = *known;
	if (found->hash) {
		last.hash = found->hash;
		last.rank = found->rank;
		last.ranks = found->ranks;
		last.device = found->device;
	} else if (!known) {
		last.rank = -1;
		last.ranks = -1;
		last.device = -1;
	}
	bpf_map_delete_elem(&communicators, &key);
	report_communicator(reporting, &last);
}

/* ncclCommGetAsyncError was answered. It is asked all the time: reported once for each answer that is an error. */
static __always_inline void see_async_error(const struct reporting *reporting, __s32 error)
{
	struct communicator_key key = communicator_key(reporting->who.tgid, reporting->address);
	struct communicator_known *known = bpf_map_lookup_elem(&communicators, &key);
	struct communicator_read found = {};
	struct communicator_known last = {};

	if (!known) {
		see_communicator(&found, reporting);
		known = bpf_map_lookup_elem(&communicators, &key);
		if (!known)
			return;
	}
	if (known->async_error == error)
		return;
	known->async_error = error;
	last = *known;
	report_communicator(reporting, &last);
}

#endif
