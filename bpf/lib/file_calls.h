/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Reads, writes and syncs of files that took at least file_slow_ns.
 *
 * Quick ones cost two looks at the thread's own state; what the descriptor is, is asked of slow ones alone, at
 * their end. Page faults of mapped files and io_uring make no such calls and are not seen.
 */
#ifndef OTELGPU_FILE_CALLS_H
#define OTELGPU_FILE_CALLS_H

#include "counters.h"
#include "files.h"
#include "scope.h"
#include <bpf/bpf_tracing.h>

const volatile __u64 file_slow_ns = 1000000;

enum file_api {
	API_NONE = 0,
	API_READ = 1,
	API_WRITE = 2,
	API_SYNC = 3,
	API_COUNT = 4,
};

#define FILE_CALLS                                                                        \
	"read,pread64,readv,preadv,preadv2,write,pwrite64,writev,pwritev,pwritev2,fsync," \
	"fdatasync"
#define FILE_CALLS_ENTER "tracepoint/syscalls/sys_enter_" FILE_CALLS
#define FILE_CALLS_EXIT	 "tracepoint/syscalls/sys_exit_" FILE_CALLS

/* include/uapi/linux/stat.h */
#define FILE_TYPE    0170000
#define FILE_REGULAR 0100000
#define FILE_BLOCK   0060000

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

/* A slow call on a file of a file system or a block device, as it returns. */
struct slow_call {
	struct file *file;
	__u64 start_ns;
	__u64 end_ns;
	__u64 bytes;  /* that it moved */
	__s32 status; /* 0, or a negative errno */
	__u16 api;    /* enum file_api */
	__u8 reserved[2];
};

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

static __always_inline void begin_file_call(const struct syscall_enter *enter)
{
	struct call_under_way *call;
	struct identity who;

	if (!in_scope(&who))
		return;
	call = bpf_task_storage_get(&calls_under_way, bpf_get_current_task_btf(), NULL,
				    BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!call) {
		count(COUNTER_THREAD_STATE_FAILED);
		return;
	}
	call->fd = (__s32)enter->args[0];
	call->number = enter->number;
	call->start_ns = bpf_ktime_get_ns();
}

/* Whether the call that returns was slow and on a file; `slow` is filled then. */
static __always_inline bool end_file_call(const struct syscall_exit *exit, struct slow_call *slow)
{
	__u64 start_ns, now = bpf_ktime_get_ns();
	struct call_under_way *call;
	unsigned short type;
	struct file *file;

	call = bpf_task_storage_get(&calls_under_way, bpf_get_current_task_btf(), NULL, 0);
	if (!call || !call->start_ns)
		return false;
	start_ns = call->start_ns;
	call->start_ns = 0;
	if (now - start_ns < file_slow_ns)
		return false;
	file = file_of(call->fd);
	if (!file)
		return false; /* it failed for that */
	type = BPF_CORE_READ(file, f_inode, i_mode) & FILE_TYPE;
	if (type != FILE_REGULAR && type != FILE_BLOCK)
		return false;
	slow->file = file;
	slow->start_ns = start_ns;
	slow->end_ns = now;
	slow->api = api_of(call->number);
	slow->status = exit->ret < 0 ? (__s32)exit->ret : 0;
	slow->bytes = exit->ret > 0 && slow->api != API_SYNC ? (__u64)exit->ret : 0;
	return true;
}

/* The last part of a file's path, cut. */
static __always_inline void read_file_name(struct file *file, char *into, __u32 size)
{
	const unsigned char *name = BPF_CORE_READ(file, f_path.dentry, d_name.name);

	if (bpf_probe_read_kernel_str(into, size, name) < 0)
		count(COUNTER_FILE_UNREADABLE);
}

#endif
