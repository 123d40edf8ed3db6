/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef OTELGPU_FILES_H
#define OTELGPU_FILES_H

#include "types.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

/* The open file behind a descriptor of the current process, or NULL. */
static __always_inline struct file *file_of(__s32 fd)
{
	struct task_struct *task = (struct task_struct *)bpf_get_current_task();
	struct fdtable *table = BPF_CORE_READ(task, files, fdt);
	struct file **files = BPF_CORE_READ(table, fd);
	struct file *file = NULL;

	if (fd < 0 || (__u32)fd >= BPF_CORE_READ(table, max_fds))
		return NULL;
	bpf_probe_read_kernel(&file, sizeof(file), &files[fd]);
	return file;
}

#endif
