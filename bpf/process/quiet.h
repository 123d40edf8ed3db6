/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Which events of processes wake user space, and which it comes to when it comes round. */
#ifndef OTELGPU_PROCESS_QUIET_H
#define OTELGPU_PROCESS_QUIET_H

#include "../lib/quiet.h"
#include "process.h"

/* User space sets it while nobody wants to know at once of every process. */
__u8 quiet_allowed = 0;

#define QUIET_FILES 4096

/*
 * Files that user space has seen, and in which nothing concerns it, as they were then: one that was written since, or
 * another one of that number, is not among them.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, QUIET_FILES);
	__type(key, struct file_identity);
	__type(value, struct file_state);
} quiet_files SEC(".maps");

#define NS_PER_SECOND	1000000000ULL
#define CTIME_WAS_ASKED (1U << 31) /* fs.h: I_CTIME_QUERIED, since Linux 6.13 */

static __always_inline __u64 changed_ns(struct inode *inode)
{
	struct inode___before_6_11 *before = (void *)inode;
	struct inode___before_6_6 *first = (void *)inode;

	if (bpf_core_field_exists(inode->i_ctime_sec))
		return BPF_CORE_READ(inode, i_ctime_sec) * NS_PER_SECOND +
		       (BPF_CORE_READ(inode, i_ctime_nsec) & ~CTIME_WAS_ASKED);
	if (bpf_core_field_exists(before->__i_ctime))
		return BPF_CORE_READ(before, __i_ctime.tv_sec) * NS_PER_SECOND +
		       BPF_CORE_READ(before, __i_ctime.tv_nsec);
	return BPF_CORE_READ(first, i_ctime.tv_sec) * NS_PER_SECOND +
	       BPF_CORE_READ(first, i_ctime.tv_nsec);
}

static __always_inline bool is_quiet_file(struct file *file)
{
	struct inode *inode = BPF_CORE_READ(file, f_inode);
	struct file_identity identity = {
		.inode = BPF_CORE_READ(inode, i_ino),
		.device = BPF_CORE_READ(inode, i_sb, s_dev),
	};
	struct file_state *seen = bpf_map_lookup_elem(&quiet_files, &identity);

	return seen && seen->bytes == (__u64)BPF_CORE_READ(inode, i_size) &&
	       seen->changed_ns == changed_ns(inode);
}

static __always_inline bool become_quiet(__u32 tgid)
{
	__u8 one = 1;

	return bpf_map_update_elem(&quiet_processes, &tgid, &one, BPF_ANY) == 0;
}

/* Whether it was. */
static __always_inline bool become_loud(__u32 tgid)
{
	return bpf_map_delete_elem(&quiet_processes, &tgid) == 0;
}

/* A record that wakes user space, or with those before it waits until it comes round or a quarter of the ring is full. */
static __always_inline void submit_event(void *record, bool quiet)
{
	__u64 flags = 0;

	/* Who was not woken by those before would not be by this one either. */
	if (quiet_allowed)
		flags = quiet && bpf_ringbuf_query(&ring, BPF_RB_AVAIL_DATA) <
						bpf_ringbuf_query(&ring, BPF_RB_RING_SIZE) / 4
				? BPF_RB_NO_WAKEUP
				: BPF_RB_FORCE_WAKEUP;
	count(COUNTER_SUBMITTED);
	bpf_ringbuf_submit(record, flags);
}

#endif
