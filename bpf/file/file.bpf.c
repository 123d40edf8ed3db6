// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Family file: reads, writes and syncs of files that took at least file_slow_ns.
 *
 * Quick ones cost two looks at the thread's own state; what the descriptor is, is asked of slow ones alone, at
 * their end. Page faults of mapped files and io_uring make no such calls and are not seen.
 */
#include "file.h"
#include "../lib/emit.h"
#include "../lib/files.h"
#include <bpf/bpf_tracing.h>

RECORD(file_call);
ENUM(file_kind);
ENUM(file_api);

const volatile __u64 file_slow_ns = 1000000;

/* include/uapi/linux/stat.h */
#define MODE_TYPE    0170000
#define MODE_REGULAR 0100000
#define MODE_BLOCK   0060000

struct call_under_way {
	__u64 start_ns; /* 0: none is */
	__s32 fd;
	__s32 number;
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct call_under_way);
} calls_under_way SEC(".maps");

/* arch/x86/entry/syscalls/syscall_64.tbl */
static __always_inline __u16 api_of(__s32 number)
{
	switch (number) {
	case 0:	  /* read */
	case 17:  /* pread64 */
	case 19:  /* readv */
	case 295: /* preadv */
	case 327: /* preadv2 */
		return API_READ;
	case 1:	  /* write */
	case 18:  /* pwrite64 */
	case 20:  /* writev */
	case 296: /* pwritev */
	case 328: /* pwritev2 */
		return API_WRITE;
	default:
		return API_SYNC;
	}
}

SEC("tracepoint/syscalls/"
    "sys_enter_read,pread64,readv,preadv,preadv2,write,pwrite64,writev,pwritev,pwritev2,fsync,"
    "fdatasync")
int enter_call(struct syscall_enter *enter)
{
	struct call_under_way *call;
	struct identity who;

	if (!in_scope(&who))
		return 0;
	call = bpf_task_storage_get(&calls_under_way, bpf_get_current_task_btf(), NULL,
				    BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!call) {
		count(COUNTER_THREAD_STATE_FAILED);
		return 0;
	}
	call->fd = (__s32)enter->args[0];
	call->number = enter->number;
	call->start_ns = bpf_ktime_get_ns();
	return 0;
}

SEC("tracepoint/syscalls/"
    "sys_exit_read,pread64,readv,preadv,preadv2,write,pwrite64,writev,pwritev,pwritev2,fsync,"
    "fdatasync")
int exit_call(struct syscall_exit *exit)
{
	__u64 start_ns, now = bpf_ktime_get_ns();
	struct call_under_way *call;
	struct file_call *record;
	const unsigned char *name;
	unsigned short type;
	struct file *file;

	call = bpf_task_storage_get(&calls_under_way, bpf_get_current_task_btf(), NULL, 0);
	if (!call || !call->start_ns)
		return 0;
	start_ns = call->start_ns;
	call->start_ns = 0;
	if (now - start_ns < file_slow_ns)
		return 0;
	file = file_of(call->fd);
	if (!file)
		return 0; /* it failed for that */
	type = BPF_CORE_READ(file, f_inode, i_mode) & MODE_TYPE;
	if (type != MODE_REGULAR && type != MODE_BLOCK)
		return 0;
	record = EMIT_BEGIN(file_call, FILE_CALL, current_identity(), start_ns, now);
	if (!record)
		return 0;
	record->head.returned = 1;
	record->inode = BPF_CORE_READ(file, f_inode, i_ino);
	record->device = BPF_CORE_READ(file, f_inode, i_sb, s_dev);
	record->api = api_of(call->number);
	record->status = exit->ret < 0 ? (__s32)exit->ret : 0;
	if (exit->ret > 0 && record->api != API_SYNC)
		record->bytes = (__u64)exit->ret;
	name = BPF_CORE_READ(file, f_path.dentry, d_name.name);
	if (bpf_probe_read_kernel_str(record->name, sizeof(record->name), name) < 0)
		count(COUNTER_FILE_UNREADABLE);
	submit(record);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
