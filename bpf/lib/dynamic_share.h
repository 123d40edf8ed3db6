/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What each process and each container may hold of something that all share: a process as much as is free, a container
 * twice as much, so that there is room for others however much somebody takes (Choudhury and Hahne, Dynamic Queue
 * Length Thresholds, 1998); a process with little, as long as its container has not four times what is free. The same
 * in user space: otelgpu/model/shares.py.
 */
#ifndef OTELGPU_DYNAMIC_SHARE_H
#define OTELGPU_DYNAMIC_SHARE_H

#include "types.h"

#define SHARE_OF_CONTAINER 2
#define SHARE_LITTLE	   64 /* the part of the whole that is little */
#define SHARE_WITH_LITTLE  4

/* Whether a process may hold `own`, and its container `all`, where `free` of `size` are free. */
static __always_inline bool within_dynamic_share(__u64 own, __u64 all, __u64 free, __u64 size)
{
	return (own <= free && all <= SHARE_OF_CONTAINER * free) ||
	       (own <= size / SHARE_LITTLE && all <= SHARE_WITH_LITTLE * free);
}

#endif
