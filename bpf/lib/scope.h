/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Whose events are wanted, and by which numbers processes are called.
 *
 * Process and thread ids in records and maps are those of the agent's own PID
 * namespace, so that they mean the same in /proc as the agent sees it. A
 * process outside that namespace has no such number and is out of scope.
 */
#ifndef OTELGPU_SCOPE_H
#define OTELGPU_SCOPE_H

#include "counters.h"
#include <bpf/bpf_core_read.h>

#define PID_NAMESPACE_LEVELS 8 /* the kernel allows 32; containers nest 1 or 2 deep */
#define SCOPE_PROCESSES	     32768
#define SCOPE_CGROUPS	     16

const volatile bool scope_all = false;	      /* every process but the agent */
const volatile __u32 scope_agent = 0;	      /* the agent's tgid, never observed */
const volatile __u32 scope_cgroup_count = 0;  /* used slots of scope_cgroups */
const volatile __u32 scope_pid_namespace = 0; /* inode number; 0: the initial one */
const volatile bool scope_follow = true;      /* children of listed processes are listed */

/* tgid -> 1. Filled by user space and by fork; emptied by exit. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, SCOPE_PROCESSES);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, __u8);
} scope_processes SEC(".maps");

/* slot -> cgroup (v2) whose processes, at any depth, are wanted. */
struct {
	__uint(type, BPF_MAP_TYPE_CGROUP_ARRAY);
	__uint(max_entries, SCOPE_CGROUPS);
	__type(key, __u32);
	__type(value, __u32);
} scope_cgroups SEC(".maps");

struct identity {
	__u32 tgid;
	__u32 tid;
};

static __always_inline __u32 namespaced(struct task_struct *task)
{
	struct pid *pid = BPF_CORE_READ(task, thread_pid);
	unsigned int level = BPF_CORE_READ(pid, level);

	for (unsigned int i = 0; i < PID_NAMESPACE_LEVELS; i++) {
		struct upid upid;

		if (i > level)
			break;
		if (bpf_core_read(&upid, sizeof(upid), &pid->numbers[i]))
			break;
		if (BPF_CORE_READ(upid.ns, ns.inum) == scope_pid_namespace)
			return upid.nr;
	}
	return 0;
}

/* Zeroes when the task has no number in the agent's namespace. */
static __always_inline struct identity identify(struct task_struct *task)
{
	struct identity who;

	if (scope_pid_namespace) {
		who.tid = namespaced(task);
		who.tgid = namespaced(BPF_CORE_READ(task, group_leader));
	} else {
		who.tid = BPF_CORE_READ(task, pid);
		who.tgid = BPF_CORE_READ(task, tgid);
	}
	return who;
}

static __always_inline struct identity current_identity(void)
{
	struct identity who;
	__u64 both;

	if (scope_pid_namespace)
		return identify((struct task_struct *)bpf_get_current_task());
	both = bpf_get_current_pid_tgid();
	who.tgid = both >> 32;
	who.tid = (__u32)both;
	return who;
}

static __always_inline bool is_listed(__u32 tgid)
{
	return bpf_map_lookup_elem(&scope_processes, &tgid) != NULL;
}

/* Whether the current task, whose identity this is, is wanted. */
static __always_inline bool is_wanted(struct identity who)
{
	if (!who.tgid || who.tgid == scope_agent)
		return false;
	if (scope_all || is_listed(who.tgid))
		return true;
	for (__u32 slot = 0; slot < SCOPE_CGROUPS; slot++) {
		if (slot >= scope_cgroup_count)
			break;
		if (bpf_current_task_under_cgroup(&scope_cgroups, slot) == 1)
			return true;
	}
	return false;
}

/* Whether the current task is wanted; fills in its identity. */
static __always_inline bool in_scope(struct identity *who)
{
	*who = current_identity();
	return is_wanted(*who);
}

#endif
