// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Family file: reads, writes and syncs of files that took at least file_slow_ns. */
#include "file.h"
#include "../lib/emit.h"
#include "../lib/file_calls.h"

RECORD(file_call);
ENUM(file_kind);
ENUM(file_api);

SEC(FILE_CALLS_ENTER)
int enter_call(struct syscall_enter *enter)
{
	begin_file_call(enter);
	return 0;
}

SEC(FILE_CALLS_EXIT)
int exit_call(struct syscall_exit *exit)
{
	struct file_call *record;
	struct slow_call slow = {};
	struct file *file;

	if (!end_file_call(exit, &slow))
		return 0;
	record = EMIT_BEGIN(file_call, FILE_CALL, current_identity(), slow.start_ns, slow.end_ns);
	if (!record)
		return 0;
	file = slow.file;
	record->head.returned = 1;
	record->inode = BPF_CORE_READ(file, f_inode, i_ino);
	record->device = BPF_CORE_READ(file, f_inode, i_sb, s_dev);
	record->api = slow.api;
	record->status = slow.status;
	record->bytes = slow.bytes;
	read_file_name(slow.file, record->name, sizeof(record->name));
	submit(record);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
