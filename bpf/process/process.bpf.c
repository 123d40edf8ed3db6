// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Family process: exec, fork, exit and executable mappings, so that a library
 * loaded at any time is known at once, without polling.
 */
#include "process.h"
#include "../lib/call_stacks.h" /* its maps are this object's: it is there for as long as any family is */
#include "../lib/emit.h"
#include "../lib/files.h"
#include "../lib/share.h"
#include "quiet.h"
#include <bpf/bpf_tracing.h>

RECORD(process_exec);
RECORD(process_fork);
RECORD(process_exit);
RECORD(process_mapping);
RECORD(process_context);
ENUM(process_kind);
ENUM(process_counter);

#define SIGSTOP	      19
#define PROT_EXEC     4
#define MAP_ANONYMOUS 0x20
#define PAGE_MASK     4095ULL

/*
 * Stop a process that maps a file user space has not looked at, before the
 * file's code can run; user space continues it once the probes are in place.
 */
const volatile bool hold_on_load = false;

/* When user space last said it is alive, CLOCK_MONOTONIC ns: a dead agent holds nobody. */
__u64 hold_heartbeat_ns = 0;
#define HOLD_HEARTBEAT_LIMIT_NS 2000000000ULL

/* Each hold by itself: of a thread that was let go early and is held again at once, both are there. */
struct hold {
	__u64 thread;	/* tgid << 32 | tid */
	__u64 since_ns; /* CLOCK_MONOTONIC: the end of its mmap call */
};

/*
 * Holds, whose process is stopped, until user space takes them out and lets the process go; or, when it does
 * not come round to that or was killed, its guard. What does not fit is not held.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct hold);
	__type(value, __u8);
} holds SEC(".maps");

/*
 * Files that user space has examined; those that nobody has mapped for longest make room, and are held once more.
 * An LRU hash has all its memory from the start: about 1.5 MB.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct file_identity);
	__type(value, __u8);
} known_files SEC(".maps");

/* An mmap call under way. The kernel frees it with the thread. */
struct mapping_call {
	__u64 start_ns;
	__u64 bytes;
	__u64 offset;
	__s32 fd; /* -1: none */
	__u32 reserved;
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct mapping_call);
} mapping_calls SEC(".maps");

/*
 * Processes with events that user space did not get (1 << kind of each): it looks at them in /proc instead. What does not fit makes it look
 * at all of them.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, __u8);
} missed_processes SEC(".maps");

static __always_inline void miss(__u32 tgid, __u8 kind)
{
	__u8 kinds = 1U << kind, *before = bpf_map_lookup_elem(&missed_processes, &tgid);

	if (before)
		*before |= kinds;
	else if (bpf_map_update_elem(&missed_processes, &tgid, &kinds, BPF_ANY))
		count(COUNTER_MISSED_PROCESSES_FULL);
}

/*
 * The ring is one for all. A container may have this many events in it at once and this many a second, so that nobody
 * fills it who maps, forks or execs all the time.
 */
#define SHARE_EVENTS   2048ULL
#define SHARE_EVENT_NS 500000ULL
#define PROCESS_EVENTS 1024ULL

static __always_inline bool within_share(__u32 tgid, __u8 kind, __u64 now)
{
	if (take_share(SHARE_OF_PROCESS | tgid, now, SHARE_EVENT_NS, PROCESS_EVENTS) &&
	    take_share(bpf_get_current_cgroup_id(), now, SHARE_EVENT_NS, SHARE_EVENTS))
		return true;
	lose_record(tgid, COUNTER_PROCESS_SHARE_SPENT);
	miss(tgid, kind);
	return false;
}

/* As EMIT_BEGIN, within the share of who makes the event. */
#define EMIT_BEGIN_OF_SHARE(type, kind, who, start_ns, end_ns)                   \
	({                                                                       \
		struct type *_shared = NULL;                                     \
		if (within_share((who).tgid, kind, end_ns)) {                    \
			_shared = EMIT_BEGIN(type, kind, who, start_ns, end_ns); \
			if (!_shared)                                            \
				miss((who).tgid, kind);                          \
		}                                                                \
		_shared;                                                         \
	})

/* Whether a program that is out of scope may come into it, by what it is called: user space sets it. */
__u8 execs_of_others = 0;

SEC("tp_btf/sched_process_exec")
int BPF_PROG(on_exec, struct task_struct *task)
{
	struct identity who = identify(task);
	struct process_exec *record;
	struct file *program;
	bool scoped, quiet;
	__u64 now;

	(void)ctx;
	if (!who.tgid || who.tgid == scope_agent)
		return 0;
	forget_context(who.tgid);
	scoped = in_scope(&who);
	program = BPF_CORE_READ(task, mm, exe_file);
	quiet = quiet_allowed && scoped && is_quiet_file(program) && become_quiet(who.tgid);
	if (!quiet)
		become_loud(who.tgid);
	if (!scoped && !execs_of_others)
		return 0;
	now = bpf_ktime_get_ns();
	record = EMIT_BEGIN_OF_SHARE(process_exec, PROCESS_EXEC, who, now, now);
	if (!record)
		return 0;
	record->inode = BPF_CORE_READ(program, f_inode, i_ino);
	record->device = BPF_CORE_READ(program, f_inode, i_sb, s_dev);
	record->in_scope = scoped;
	submit_event(record, quiet);
	return 0;
}

SEC("tp_btf/sched_process_fork")
int BPF_PROG(on_fork, struct task_struct *parent, struct task_struct *child)
{
	struct identity from, who;
	struct process_fork *record;
	bool quiet, executes;
	__u8 one = 1;
	__u64 now;

	(void)ctx;
	if (BPF_CORE_READ(parent, tgid) == BPF_CORE_READ(child, tgid))
		return 0; /* a thread */
	if (!in_scope(&from))
		return 0;
	who = identify(child);
	if (!who.tgid)
		return 0;
	if (scope_follow && is_listed(from.tgid) &&
	    bpf_map_update_elem(&scope_processes, &who.tgid, &one, BPF_ANY))
		count(COUNTER_SCOPE_TABLE_FULL);
	inherit_context(from.tgid, who.tgid);
	/* One that shares its parent's memory (vfork, posix_spawn) is about to become another program, and does nothing else. */
	executes = BPF_CORE_READ(parent, mm) == BPF_CORE_READ(child, mm);
	quiet = quiet_allowed && (executes || is_quiet(from.tgid)) && become_quiet(who.tgid);
	if (!quiet)
		become_loud(who.tgid);
	now = bpf_ktime_get_ns();
	record = EMIT_BEGIN_OF_SHARE(process_fork, PROCESS_FORK, who, now, now);
	if (!record)
		return 0;
	record->parent = from.tgid;
	submit_event(record, quiet || executes);
	return 0;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(on_exit, struct task_struct *task)
{
	struct process_exit *record;
	struct identity who;
	bool scoped, quiet;
	__u64 now;

	(void)ctx;
	if (BPF_CORE_READ(task, signal, live.counter) != 0)
		return 0; /* other threads live on */
	scoped = in_scope(&who);
	quiet = become_loud(who.tgid);
	if (!scoped)
		return 0;
	forget_context(who.tgid);
	now = bpf_ktime_get_ns();
	record = EMIT_BEGIN_OF_SHARE(process_exit, PROCESS_EXIT, who, now, now);
	if (record) {
		record->quiet = quiet;
		submit_event(record, quiet);
	}
	bpf_map_delete_elem(&scope_processes, &who.tgid);
	return 0;
}

SEC("tracepoint/syscalls/sys_enter_mmap")
int on_mmap_enter(struct syscall_enter *call)
{
	struct mapping_call *mapping;
	struct identity who;

	if (!(call->args[2] & PROT_EXEC) || call->args[3] & MAP_ANONYMOUS)
		return 0;
	if (!in_scope(&who))
		return 0;
	mapping = bpf_task_storage_get(&mapping_calls, bpf_get_current_task_btf(), NULL,
				       BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!mapping) {
		count(COUNTER_THREAD_STATE_FAILED);
		return 0;
	}
	mapping->start_ns = bpf_ktime_get_ns();
	mapping->bytes = (call->args[1] + PAGE_MASK) & ~PAGE_MASK;
	mapping->fd = (__s32)call->args[4];
	mapping->offset = call->args[5];
	return 0;
}

static __always_inline bool stop(struct identity who, __u64 now)
{
	struct hold hold = { .thread = (__u64)who.tgid << 32 | who.tid, .since_ns = now };
	__u8 one = 1;

	if (bpf_map_update_elem(&holds, &hold, &one, BPF_ANY))
		return false;
	if (bpf_send_signal(SIGSTOP) == 0)
		return true;
	bpf_map_delete_elem(&holds, &hold);
	return false;
}

SEC("tracepoint/syscalls/sys_exit_mmap")
int on_mmap_exit(struct syscall_exit *call)
{
	__u64 now = bpf_ktime_get_ns();
	struct file_identity identity = {};
	struct process_mapping *record;
	struct mapping_call *mapping;
	const unsigned char *name;
	struct identity who;
	struct file *file;
	__u64 start_ns;
	bool hold, quiet;
	__s32 fd;

	mapping = bpf_task_storage_get(&mapping_calls, bpf_get_current_task_btf(), NULL, 0);
	if (!mapping || !mapping->start_ns)
		return 0;
	start_ns = mapping->start_ns;
	fd = mapping->fd;
	mapping->start_ns = 0;
	if (call->ret < 0 && call->ret > -4096)
		return 0;
	who = current_identity();
	file = file_of(fd);
	if (!file) {
		count(COUNTER_FILE_UNREADABLE);
		return 0;
	}
	identity.inode = BPF_CORE_READ(file, f_inode, i_ino);
	identity.device = BPF_CORE_READ(file, f_inode, i_sb, s_dev);
	hold = hold_on_load && now - hold_heartbeat_ns < HOLD_HEARTBEAT_LIMIT_NS &&
	       !bpf_map_lookup_elem(&known_files, &identity);
	quiet = is_quiet(who.tgid) && is_quiet_file(file);
	if (!quiet)
		become_loud(who.tgid);
	record = EMIT_BEGIN_OF_SHARE(process_mapping, PROCESS_MAPPING, who, start_ns, now);
	if (!record)
		return 0; /* not held either: nobody would let it go */
	record->address = (__u64)call->ret;
	record->bytes = mapping->bytes;
	record->offset = mapping->offset;
	record->inode = identity.inode;
	record->device = identity.device;
	name = BPF_CORE_READ(file, f_path.dentry, d_name.name);
	if (bpf_probe_read_kernel_str(record->name, sizeof(record->name), name) < 0)
		count(COUNTER_FILE_UNREADABLE);
	if (hold)
		record->held = stop(who, now);
	submit_event(record, quiet);
	return 0;
}

/* -- Process contexts ------------------------------------------------------------------------- */

/* include/uapi/linux/prctl.h */
#define PR_SET_VMA	     0x53564d41
#define PR_SET_VMA_ANON_NAME 0

#define CONTEXT_NAME 0x5854435f4c45544fULL /* "OTEL_CTX", in little-endian order */

/*
 * A process gives its process context a name each time it has published one (OTEP 4719), whether or not its
 * kernel can name memory.
 */
SEC("tracepoint/syscalls/sys_enter_prctl")
int on_prctl(struct syscall_enter *call)
{
	__u64 name[2] = {}; /* with the zero at its end */
	struct process_context *record;
	struct identity who;
	__u64 now;

	if (call->args[0] != PR_SET_VMA || call->args[1] != PR_SET_VMA_ANON_NAME)
		return 0;
	if (!in_scope(&who))
		return 0;
	if (bpf_probe_read_user_str(name, sizeof(name), (void *)call->args[4]) != 9 ||
	    name[0] != CONTEXT_NAME)
		return 0;
	now = bpf_ktime_get_ns();
	record = EMIT_BEGIN_OF_SHARE(process_context, PROCESS_CONTEXT, who, now, now);
	if (!record)
		return 0;
	record->address = call->args[2];
	become_loud(who.tgid);
	submit_event(record, false);
	return 0;
}

/* Does nothing: attached as a return probe to a throwaway child, to learn whether this
 * kernel's return probes survive a seccomp filter. */
SEC("uretprobe/trial")
int on_trial(void *regs __attribute__((unused)))
{
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
