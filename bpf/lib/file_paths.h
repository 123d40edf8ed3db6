/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The path of an open file, as the thread that has it open sees it: from its root directory, over all mounts (d_path()
 * in fs/d_path.c). Names are read as they lie in the kernel, the last one first, without its locks: a directory that
 * is renamed meanwhile may be there by either name.
 *
 * Example: /srv/a/checkpoint.bin is "checkpoint.bin", "a", "srv", each with its NUL.
 */
#ifndef OTELGPU_FILE_PATHS_H
#define OTELGPU_FILE_PATHS_H

#include "types.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

#define PATH_BYTES	904 /* of names: at least PATH_BYTES - PATH_NAME_BYTES, and a name, are kept */
#define PATH_NAME_BYTES 256 /* NAME_MAX and its NUL, include/uapi/linux/limits.h */
#define PATH_STEPS	300 /* directories and mounts */

enum path_end {
	PATH_WHOLE = 0,
	PATH_CUT = 1,	   /* more names than there is room for: those nearest to the root lack */
	PATH_DETACHED = 2, /* it leads to no root: memory that has a name, a mount that is gone */
	PATH_UNREADABLE = 3,
};

struct path_names {
	char text[PATH_BYTES];
};

/* Where it is, and where it ends well: at the root directory of the thread. `used`: bytes of names. */
struct path_walk {
	struct dentry *dentry, *root;
	struct vfsmount *mount, *root_mount;
	__u32 used;
	__u32 end; /* enum path_end */
};

static __always_inline struct mount *mount_of(struct vfsmount *mount)
{
	return (void *)mount - bpf_core_field_offset(struct mount, mnt);
}

/* From the root directory of a mount to where it is mounted; false where that is nowhere. */
static __always_inline bool leave_mount(struct path_walk *walk)
{
	struct mount *mount = mount_of(walk->mount);
	struct mount *parent = BPF_CORE_READ(mount, mnt_parent);

	if (!parent || parent == mount) {
		walk->end = BPF_CORE_READ(mount, mnt_ns) ? PATH_WHOLE : PATH_DETACHED;
		return false;
	}
	walk->dentry = BPF_CORE_READ(mount, mnt_mountpoint);
	walk->mount = (void *)parent + bpf_core_field_offset(struct mount, mnt);
	return true;
}

/*
 * One directory or mount up; 0: `end` says how it ended. A function of its own to the verifier, which then looks at it
 * once and not at each step: 300 of them are 270,000 instructions in line.
 */
__noinline int walk_path(struct path_walk *walk, struct path_names *names)
{
	struct dentry *dentry, *parent;
	struct vfsmount *mount;
	const unsigned char *name;
	__u32 used;
	long size;

	if (!walk || !names)
		return 0;
	dentry = walk->dentry;
	mount = walk->mount;
	walk->end = PATH_UNREADABLE;
	if (!dentry || !mount)
		return 0;
	if (dentry == walk->root && mount == walk->root_mount) {
		walk->end = PATH_WHOLE;
		return 0;
	}
	if (dentry == BPF_CORE_READ(mount, mnt_root))
		return leave_mount(walk);
	name = BPF_CORE_READ(dentry, d_name.name);
	used = walk->used; /* after all other reads: Linux 6.1 knows no bounds of what a call has pushed to the stack */
	if (used > PATH_BYTES - PATH_NAME_BYTES) {
		walk->end = PATH_CUT;
		return 0;
	}
	size = bpf_probe_read_kernel_str(names->text + used, PATH_NAME_BYTES, name);
	if (size <= 0 || size > PATH_NAME_BYTES)
		return 0;
	walk->used = used + size;
	parent = BPF_CORE_READ(dentry, d_parent);
	if (parent == dentry) {
		walk->end = PATH_DETACHED;
		return 0;
	}
	walk->dentry = parent;
	return 1;
}

/* Fills `names`, which are zero. */
static __always_inline enum path_end read_file_path(struct file *file, struct path_names *names)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct path_walk walk = {
		.dentry = BPF_CORE_READ(file, f_path.dentry),
		.mount = BPF_CORE_READ(file, f_path.mnt),
		.root = BPF_CORE_READ(task, fs, root.dentry),
		.root_mount = BPF_CORE_READ(task, fs, root.mnt),
	};

	for (int step = 0; step < PATH_STEPS; step++)
		if (!walk_path(&walk, names))
			return walk.end;
	return PATH_CUT;
}

/* Whether its name was taken from it: it has been deleted, or another file was given that name. */
static __always_inline bool is_deleted(struct file *file)
{
	struct dentry *dentry = BPF_CORE_READ(file, f_path.dentry);

	return !BPF_CORE_READ(dentry, d_hash.pprev) && BPF_CORE_READ(dentry, d_parent) != dentry;
}

#endif
