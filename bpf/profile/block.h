/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Requests to block devices: from when a thread in scope makes one until it is done.
 *
 * What the kernel writes back by itself, its own threads ask for. Where it charges control groups for that, the request
 * is of a process in that group, has no stack, and says so; elsewhere it is nobody's, and not reported. Where a kernel
 * does not report of requests as they are made (before Linux 6.5), they begin as they are given to the driver.
 */
#ifndef OTELGPU_BLOCK_H
#define OTELGPU_BLOCK_H

#include "stack.h"
#include <bpf/bpf_tracing.h>

#define BLOCK_REQUESTS	16384
#define OPERATION_MASK	0xff /* include/linux/blk_types.h: REQ_OP_MASK */
#define OPERATION_SHIFT 32
#define OPERATION_WRITE 1 /* include/linux/blk_types.h: REQ_OP_WRITE */
#define GROUP_SHIFT	40
#define BLOCK_GROUPS	255 /* as many as the number of a group has values, less 0 */
#define MINOR_BITS	20  /* include/linux/kdev_t.h */

/* struct request * -> its record so far. Deleted when it is done; the kernel uses each struct again. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, BLOCK_REQUESTS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, struct profile_block);
} block_requests SEC(".maps");

/* In whose name a control group's pages are written back. */
struct block_owner {
	__u32 tgid;
	__u32 number; /* of the group, from 1 on */
};

/* Control group (its id) -> a process in scope that is charged with it. Filled and emptied by user space. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, BLOCK_GROUPS);
	__type(key, __u64);
	__type(value, struct block_owner);
} block_owners SEC(".maps");

/* The control group that a request is charged to; NULL where the kernel charges none. */
static __always_inline struct kernfs_node *group_of(struct request___block *request)
{
	struct bio *bio = BPF_CORE_READ(request, bio);

	if (!bpf_core_field_exists(bio->bi_blkg))
		return NULL;
	return BPF_CORE_READ(bio, bi_blkg, blkcg, css.cgroup, kn);
}

/* Its id, of what a thread of the kernel writes; else 0, which is no group's. */
static __always_inline __u64 charged_group(struct request___block *request)
{
	struct kernfs_node *group;

	if ((BPF_CORE_READ(request, cmd_flags) & OPERATION_MASK) != OPERATION_WRITE ||
	    !is_kernel_thread())
		return 0;
	group = group_of(request);
	return BPF_CORE_READ(group, id);
}

static __always_inline void name_group(struct request___block *request,
				       struct profile_block *record)
{
	struct kernfs_node *group = group_of(request);
	const char *name = BPF_CORE_READ(group, name);

	bpf_core_read_str(record->group, sizeof(record->group), name);
}

const struct profile_block
	no_request = {}; /* what is filled in its place: no stack has room for it */

static __always_inline void begin_request(void *ctx, struct request___block *request, __u64 flags)
{
	struct gendisk *disk = BPF_CORE_READ(request, q, disk);
	__u64 key = (__u64)request, now = bpf_ktime_get_ns(), id = charged_group(request);
	struct block_owner *owner = bpf_map_lookup_elem(&block_owners, &id);
	struct profile_block *record;
	struct identity who;

	if (!in_scope(&who) && !owner)
		return;
	if (owner)
		who.tgid = owner->tgid;
	if (bpf_map_update_elem(&block_requests, &key, &no_request, flags)) {
		count(COUNTER_BLOCK_TABLE_FULL);
		return;
	}
	record = bpf_map_lookup_elem(&block_requests, &key);
	if (!record)
		return;
	fill_head(&record->head, PROFILE_BLOCK, who, now, now);
	if (!owner)
		record->stack = take_stack(ctx, NULL, who, LEVEL_TASK);
	record->bytes = BPF_CORE_READ(request, __data_len);
	record->other =
		((__u64)(BPF_CORE_READ(request, cmd_flags) & OPERATION_MASK) << OPERATION_SHIFT) |
		((__u64)BPF_CORE_READ(disk, major) << MINOR_BITS) |
		BPF_CORE_READ(disk, first_minor);
	if (owner) {
		record->other |= (__u64)owner->number << GROUP_SHIFT;
		name_group(request, record);
	}
	bpf_get_current_comm(record->name, sizeof(record->name));
	bpf_core_read_str(record->device, sizeof(record->device), &disk->disk_name);
}

SEC("?tp_btf/block_io_start")
int BPF_PROG(block_made, struct request___block *request)
{
	begin_request(ctx, request, BPF_ANY);
	return 0;
}

/* Given to the driver, by whichever thread; other I/O may have been merged into it meanwhile. */
SEC("tp_btf/block_rq_issue")
int BPF_PROG(block_issued, struct request___block *request)
{
	__u64 key = (__u64)request;
	struct profile_block *record = bpf_map_lookup_elem(&block_requests, &key);

	if (record)
		record->bytes = BPF_CORE_READ(request, __data_len);
	else
		begin_request(ctx, request, BPF_NOEXIST);
	return 0;
}

SEC("tp_btf/block_rq_complete")
int BPF_PROG(block_completed, struct request___block *request, __u8 status)
{
	__u64 key = (__u64)request, now = bpf_ktime_get_ns();
	struct profile_block *record = bpf_map_lookup_elem(&block_requests, &key);

	(void)ctx;
	if (!record)
		return 0;
	record->head.duration_ns = now - record->head.time_ns;
	record->head.returned = 1;
	record->value = record->head.duration_ns;
	record->status = status;
	output(record, sizeof(*record));
	bpf_map_delete_elem(&block_requests, &key);
	return 0;
}

RECORD(profile_block);

#endif
