/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Records of family torch: what PyTorch's caching allocators report of each tensor's memory, and their totals.
 *
 * c10 (c10/core/Allocator.cpp) has two functions for its own profiler. The caching allocators of devices call them
 * on every allocation and free, whether or not that profiler runs; the CPU's allocator only while it runs, and
 * memory-mapped files once and never again, so that what is said of the CPU is no account of anything: left out.
 */
#ifndef OTELGPU_TORCH_H
#define OTELGPU_TORCH_H

#include "../lib/record.h"

enum torch_kind {
	TORCH_MEMORY = 1, /* an allocation or a free */
	TORCH_LEVELS = 2, /* an entry of map `levels` as user space hands it on */
};

/* c10::Device as it is in a register: DeviceType below (c10/core/DeviceType.h), the index above, 8 bits each. */
#define TORCH_DEVICE(value)	 ((__u16)(value))
#define TORCH_DEVICE_TYPE(value) ((value)&0xff)
#define TORCH_CPU		 0
#define TORCH_UNREPORTED	 (~0ull) /* in place of a total: the allocator keeps none */

/* Whose calls they are, in samples of a profile: lib/call_stacks.h. */
enum call_family { CALL_FAMILY = 4 };

/* One allocation (bytes > 0) or free (bytes < 0). The totals are those after it. */
struct torch_memory {
	struct record_head head;
	__u64 address;
	__s64 bytes;
	__u64 allocated; /* by tensors, on the device, in the process */
	__u64 reserved;	 /* what the allocator has from the driver */
	__u16 device;	 /* TORCH_DEVICE */
	__u8 padding[6];
};

struct torch_key {
	__u32 tgid;
	__u16 device; /* TORCH_DEVICE */
	__u16 padding;
};

/* Of one device and process. The first two as the allocator says, the others since it is observed. */
struct torch_totals {
	__u64 allocated;
	__u64 reserved;
	__u64 allocated_peak;
	__u64 reserved_peak;
	__u64 allocations;
	__u64 allocated_bytes;
	__u64 frees;
	__u64 freed_bytes;
	__u64 refusals; /* out of memory */
};

/* head: of when it was read, kind TORCH_LEVELS. */
struct torch_levels {
	struct record_head head;
	struct torch_key key;
	struct torch_totals totals;
};

#endif
