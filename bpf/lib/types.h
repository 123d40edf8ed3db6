/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The kernel types this project touches, and no more. Field offsets come from
 * the running kernel's BTF at load (CO-RE), so a struct here names only the
 * fields that are read, in any order.
 */
#ifndef OTELGPU_TYPES_H
#define OTELGPU_TYPES_H

#ifndef __TARGET_ARCH_x86
#error "argument registers are known for x86-64 only; add the architecture's accessors in lib/arguments.h"
#endif

typedef unsigned char __u8;
typedef signed char __s8;
typedef unsigned short __u16;
typedef short __s16;
typedef unsigned int __u32;
typedef int __s32;
typedef unsigned long long __u64;
typedef long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u32 __wsum;
typedef _Bool bool;
#define true 1
#define false 0
#define NULL ((void *)0)

/* include/uapi/linux/bpf.h */
enum {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PERCPU_HASH = 5,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_PROG_ARRAY = 3,
	BPF_MAP_TYPE_CGROUP_ARRAY = 8,
	BPF_MAP_TYPE_LRU_HASH = 9,
	BPF_MAP_TYPE_HASH_OF_MAPS = 13,
	BPF_MAP_TYPE_RINGBUF = 27,
	BPF_MAP_TYPE_TASK_STORAGE = 29,
};

/*
 * On an LRU hash of what is under way at once: it has all its memory from the start, and as many entries as it says
 * only where there are many processors to fill them (otelgpu/kernel/loader.py).
 */
#define BY_PROCESSORS __attribute__((btf_decl_tag("by_processors")))

enum { BPF_ANY = 0, BPF_NOEXIST = 1 };
enum { BPF_F_NO_PREALLOC = 1 };
enum { BPF_LOCAL_STORAGE_GET_F_CREATE = 1 };
enum { BPF_RB_NO_WAKEUP = 1, BPF_RB_FORCE_WAKEUP = 2 };
enum { BPF_RB_AVAIL_DATA = 0, BPF_RB_RING_SIZE = 1, BPF_RB_CONS_POS = 2, BPF_RB_PROD_POS = 3 };

#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wpadded"

/* What a uprobe gets: arch/x86/include/asm/ptrace.h, fixed by the user ABI. */
struct pt_regs {
	unsigned long r15, r14, r13, r12, bp, bx;
	unsigned long r11, r10, r9, r8, ax, cx, dx, si, di;
	unsigned long orig_ax, ip, cs, flags, sp, ss;
};

/* Syscall tracepoints: /sys/kernel/tracing/events/syscalls/<name>/format. */
struct syscall_enter {
	__u64 common;
	__s32 number;
	__u32 reserved; /* not zeroed */
	__u64 args[6];
};
struct syscall_exit {
	__u64 common;
	__s32 number;
	__u32 reserved; /* not zeroed */
	__s64 ret;
};

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct ns_common {
	unsigned int inum;
};
struct pid_namespace {
	struct ns_common ns;
};
struct upid {
	int nr;
	struct pid_namespace *ns;
};
struct pid {
	unsigned int level;
	struct upid numbers[1];
};
typedef struct {
	int counter;
} atomic_t;
struct signal_struct {
	atomic_t live;
};
struct qstr {
	__u32 hash; /* of the name */
	const unsigned char *name;
};
struct super_block {
	__u32 s_dev;
};
struct timespec64 {
	__s64 tv_sec;
	long tv_nsec;
};
struct inode {
	unsigned long i_ino;
	struct super_block *i_sb;
	unsigned short i_mode;
	__s64 i_size;
	__s64 i_ctime_sec;
	__u32 i_ctime_nsec;
};
struct inode___before_6_11 {
	struct timespec64 __i_ctime;
};
struct inode___before_6_6 {
	struct timespec64 i_ctime;
};
struct hlist_bl_node {
	struct hlist_bl_node **pprev;
};
struct dentry {
	struct hlist_bl_node d_hash; /* pprev is NULL: nobody finds it by its name */
	struct dentry *d_parent;
	struct qstr d_name;
	struct inode *d_inode;
};
struct vfsmount {
	struct dentry *mnt_root;
};
struct mnt_namespace;
struct mount {
	struct mount *mnt_parent;
	struct dentry *mnt_mountpoint;
	struct vfsmount mnt;
	struct mnt_namespace *mnt_ns;
};
struct path {
	struct vfsmount *mnt;
	struct dentry *dentry;
};
struct fs_struct {
	struct path root;
};
struct file {
	struct path f_path;
	struct inode *f_inode;
	void *private_data;
	unsigned int f_flags;
};
struct fdtable {
	unsigned int max_fds;
	struct file **fd;
};
struct files_struct {
	struct fdtable *fdt;
};
struct thread_struct {
	unsigned long fsbase; /* x86-64: the thread pointer */
};
struct xol_area {
	unsigned long
		vaddr; /* begins with the trampoline that probed functions return to; then copies */
};
struct uprobes_state {
	struct xol_area *xol_area;
};
struct mm_struct {
	struct file *exe_file;
	struct uprobes_state uprobes_state;
};
struct return_instance {
	unsigned long stack; /* where the return address lay */
	unsigned long orig_ret_vaddr;
	struct return_instance *next;
};
struct uprobe;
struct uprobe_task {
	struct return_instance *return_instances;
	struct uprobe *active_uprobe; /* whose instruction is executed in a copy, or NULL */
	unsigned long vaddr;	      /* of the instruction itself ... */
	unsigned long xol_vaddr;      /* ... and of the copy */
};
struct task_struct {
	struct mm_struct *mm;
	struct uprobe_task *utask;
	unsigned int __state;
	void *stack;
	unsigned int flags;
	int pid;
	int tgid;
	struct task_struct *group_leader;
	struct pid *thread_pid;
	struct signal_struct *signal;
	struct fs_struct *fs;
	struct files_struct *files;
	struct thread_struct thread;
	char comm[16];
	__u64 start_time;
	__u32 self_exec_id; /* of 64 bits since Linux 5.7: the lower half */
};
struct in6_addr {
	__u8 bytes[16];
};
struct sock_common {
	__be32 skc_daddr;
	__be32 skc_rcv_saddr;
	__be16 skc_dport;
	__u16 skc_num;
	unsigned short skc_family;
	unsigned char skc_state;
	struct in6_addr skc_v6_daddr;
	struct in6_addr skc_v6_rcv_saddr;
};
struct socket;
struct sock {
	struct sock_common __sk_common;
	struct socket *sk_socket;
	__u16 sk_type;
};
struct socket {
	struct file *file;
	struct sock *sk;
};
struct tcp_sock {
	__u32 copied_seq;
	__u32 write_seq;
};
struct unix_sock {
	struct sock *peer;
};
struct sk_buff {
	char cb[48];
};
struct tcp_skb_cb {
	__u32 seq;
	__u32 end_seq;
};

struct gendisk {
	int major;
	int first_minor;
	char disk_name[32];
};
struct request_queue {
	struct gendisk *disk;
};
struct kernfs_node {
	__u64 id;
	const char *name;
};
struct cgroup {
	struct kernfs_node *kn;
};
struct cgroup_subsys_state {
	struct cgroup *cgroup;
};
struct blkcg {
	struct cgroup_subsys_state css;
};
struct blkcg_gq {
	struct blkcg *blkcg;
};
struct bio {
	struct blkcg_gq *bi_blkg; /* only with CONFIG_BLK_CGROUP */
};
struct request___block { /* not the struct of that name in bpf/verbs */
	struct request_queue *q;
	struct bio *bio;
	unsigned int cmd_flags;
	unsigned int __data_len;
};

#pragma clang attribute pop
#pragma clang diagnostic pop

#endif
