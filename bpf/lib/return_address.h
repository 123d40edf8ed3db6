/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Where a function returns to, as it lies on the stack while the function runs: its caller's address, or, where
 * anybody on this host probes the return, the kernel's trampoline, which lies on the last page of the address space.
 */
#ifndef OTELGPU_RETURN_ADDRESS_H
#define OTELGPU_RETURN_ADDRESS_H

#include "types.h"
#include <bpf/bpf_helpers.h>

#define TRAMPOLINE_SHIFT 16 /* arch/x86: TASK_SIZE_MAX is 47 bits less a page */
#define TRAMPOLINE_AREA	 0x7fffffffULL

static __always_inline bool is_trampoline(__u64 address)
{
	return address >> TRAMPOLINE_SHIFT == TRAMPOLINE_AREA;
}

/* Whether what lay at `sp` when a function was entered, `before`, does so still: then it has not returned. */
static __always_inline bool is_still_there(__u64 sp, __u64 before)
{
	__u64 address = 0;

	if (bpf_probe_read_user(&address, sizeof(address), (void *)sp))
		return false;
	return address == before || is_trampoline(address);
}

#endif
