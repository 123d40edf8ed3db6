/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Slow calls on files, by stack. */
#ifndef OTELGPU_PROFILE_FILES_H
#define OTELGPU_PROFILE_FILES_H

#include "stack.h"
#include "../lib/file_calls.h"

#define FILE_NUMBER_SHIFT 8

/*
 * Of a file by its path: equal for equal inodes of one name in one directory, seen through one mount, in 56 bits. A
 * deleted file's inode is used again; what is mounted at two places has two paths.
 */
static __always_inline __u64 file_number(struct file *file)
{
	__u64 inode = BPF_CORE_READ(file, f_inode, i_ino);
	__u64 device = BPF_CORE_READ(file, f_inode, i_sb, s_dev);
	__u64 name = BPF_CORE_READ(file, f_path.dentry, d_name.hash);
	__u64 folder = BPF_CORE_READ(file, f_path.dentry, d_parent, d_inode, i_ino);
	__u64 mount = (__u64)BPF_CORE_READ(file, f_path.mnt);
	__u64 mixed = mix(mix(mix(HASH_PRIME, device), inode), name);

	return mix(mix(mixed, folder), mount) >> FILE_NUMBER_SHIFT;
}

SEC(FILE_CALLS_ENTER)
int file_enter(struct syscall_enter *enter)
{
	begin_file_call(enter);
	return 0;
}

SEC(FILE_CALLS_EXIT)
int file_exit(struct syscall_exit *exit)
{
	struct profile_file *record;
	struct slow_call slow = {};
	struct identity who;
	__u64 stack;

	if (!end_file_call(exit, &slow))
		return 0;
	who = current_identity();
	stack = take_stack(exit, NULL, who, LEVEL_TASK);
	record = EMIT_BEGIN(profile_file, PROFILE_FILE, who, slow.start_ns, slow.end_ns);
	if (!record)
		return 0;
	record->head.returned = 1;
	record->stack = stack;
	record->value = slow.end_ns - slow.start_ns;
	record->bytes = slow.bytes;
	record->other = file_number(slow.file) << FILE_NUMBER_SHIFT | slow.api;
	record->status = slow.status;
	bpf_get_current_comm(record->name, sizeof(record->name));
	record->path_end = read_file_path(slow.file, (struct path_names *)record->path);
	record->deleted = is_deleted(slow.file);
	if (record->path_end == PATH_UNREADABLE)
		count(COUNTER_FILE_UNREADABLE);
	submit(record);
	return 0;
}

RECORD(profile_file);
ENUM(file_api);
ENUM(path_end);

#endif
