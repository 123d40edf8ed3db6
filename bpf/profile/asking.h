/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Programs that user space runs when it wants to know what has not been reported yet: families/profiles/discover/unsent.py. */
#ifndef OTELGPU_ASKING_H
#define OTELGPU_ASKING_H

/* Context of SEC("iter/task"): struct bpf_iter__task of include/linux/bpf.h. `task` is NULL after the last. */
struct iterated_task {
	void *meta;
	struct task_struct *task;
};

#endif
