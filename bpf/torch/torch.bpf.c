// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Family torch: PyTorch's caching allocators. Totals are kept in a map; single allocations and frees are reported only
 * where a profile of memory is taken, and there each allocation's stack too (bpf/lib/call_stacks.h).
 *
 * The allocator holds its device's lock while it reports, so that reports of one device are in order.
 */
#include "torch.h"
#include "../lib/arguments.h"
#include "../lib/call_stacks.h"
#include "../lib/emit.h"

RECORD(torch_memory);
RECORD(torch_levels);
ENUM(torch_kind);
ENUM(call_family);

#define TORCH_DEVICES 4096
#define LARGEST_SIZE  (1ull << 48) /* more than there are addresses */

/* Device of a process -> its totals. Deleted by user space, which reads it last. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, TORCH_DEVICES);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct torch_key);
	__type(value, struct torch_totals);
} levels SEC(".maps");

static const struct torch_totals nothing_yet = {};

static __always_inline struct torch_totals *totals_of(__u32 tgid, __u16 device)
{
	struct torch_key key = { .tgid = tgid, .device = device };
	struct torch_totals *found = bpf_map_lookup_elem(&levels, &key);

	if (found)
		return found;
	bpf_map_update_elem(&levels, &key, &nothing_yet, BPF_NOEXIST);
	found = bpf_map_lookup_elem(&levels, &key);
	if (!found)
		count(COUNTER_ALLOCATOR_TABLE_FULL);
	return found;
}

static __always_inline void see_levels(struct torch_totals *totals, __u64 allocated, __u64 reserved)
{
	if (allocated == TORCH_UNREPORTED || reserved == TORCH_UNREPORTED)
		return;
	totals->allocated = allocated;
	totals->reserved = reserved;
	if (allocated > totals->allocated_peak)
		totals->allocated_peak = allocated;
	if (reserved > totals->reserved_peak)
		totals->reserved_peak = reserved;
}

static __always_inline bool can_be_total(__u64 bytes)
{
	return bytes <= LARGEST_SIZE || bytes == TORCH_UNREPORTED;
}

/* What cannot be a number of bytes: nothing of that report is believed. */
static __always_inline bool is_absurd(__u64 bytes, __u64 allocated, __u64 reserved)
{
	if (bytes <= LARGEST_SIZE && can_be_total(allocated) && can_be_total(reserved))
		return false;
	count(COUNTER_ALLOCATOR_IMPLAUSIBLE);
	return true;
}

static __always_inline void add(__u64 *to, __u64 amount)
{
	__sync_fetch_and_add(to, amount);
}

static __always_inline int report_memory(struct identity who, __u64 address, __s64 bytes,
					 __u64 allocated, __u64 reserved, __u16 device)
{
	__u64 now = bpf_ktime_get_ns();
	struct torch_memory *record = EMIT_BEGIN(torch_memory, TORCH_MEMORY, who, now, now);

	if (!record)
		return 0;
	record->address = address;
	record->bytes = bytes;
	record->allocated = allocated;
	record->reserved = reserved;
	record->device = device;
	submit(record);
	if (bytes < 0) /* it is booked under the stack of what it frees */
		return 0;
	return ask_for_stack(CALL_FAMILY, 0, now, bytes, true, 0);
}

static __always_inline int see_memory(struct pt_regs *regs)
{
	__s64 bytes = ARGUMENT_2(regs);
	__u64 size = bytes < 0 ? -(__u64)bytes : (__u64)bytes;
	__u64 allocated = ARGUMENT_3(regs), reserved = ARGUMENT_4(regs);
	__u16 device = TORCH_DEVICE(ARGUMENT_5(regs));
	struct torch_totals *totals;
	struct identity who;

	if (TORCH_DEVICE_TYPE(device) == TORCH_CPU || !in_scope(&who))
		return 0;
	if (is_absurd(size, allocated, reserved))
		return 0;
	totals = totals_of(who.tgid, device);
	if (totals) {
		see_levels(totals, allocated, reserved);
		add(bytes < 0 ? &totals->frees : &totals->allocations, 1);
		add(bytes < 0 ? &totals->freed_bytes : &totals->allocated_bytes, size);
	}
	if (!wants_stack(STACK_TENSORS))
		return 0;
	return report_memory(who, ARGUMENT_1(regs), bytes, allocated, reserved, device);
}

/*
 * The functions by their exported names, which have the types of what they are given: so a name is a layout, and what
 * has another name is not read. All of these have the same registers.
 *   ...EPvlmmNS_6DeviceE  (void *, int64_t bytes, size_t allocated, size_t reserved, Device)  PyTorch 2.0 and later
 *   ...EPvlllNS_6DeviceE  the same with int64_t totals                                        1.10 to 1.13
 *   ...ElmmNS_6DeviceE    (int64_t bytes, size_t allocated, size_t reserved, Device)          2.0 and later
 *   ...ElllNS_6DeviceE    the same with int64_t totals                                        1.12, 1.13
 * tests/contract/test_torch_libraries.py looks at the libraries themselves.
 */
#define REPORTS                                                         \
	"libc10:_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE," \
	"_ZN3c1027reportMemoryUsageToProfilerEPvlllNS_6DeviceE"
#define REFUSALS                                                      \
	"libc10:_ZN3c1027reportOutOfMemoryToProfilerElmmNS_6DeviceE," \
	"_ZN3c1027reportOutOfMemoryToProfilerElllNS_6DeviceE"

SEC("uprobe/" REPORTS)
int memory_reported(struct pt_regs *regs)
{
	int answer;

	ON_OWN_STACK(regs);
	answer = see_memory(regs);
	HAND_ON(regs, answer);
	return 0;
}

SEC("uprobe/" REFUSALS)
int refusal_reported(struct pt_regs *regs)
{
	__u64 allocated, reserved;
	struct torch_totals *totals;
	struct identity who;
	__u16 device;

	ON_OWN_STACK(regs);
	device = TORCH_DEVICE(ARGUMENT_4(regs));
	if (TORCH_DEVICE_TYPE(device) == TORCH_CPU || !in_scope(&who))
		return 0;
	allocated = ARGUMENT_2(regs);
	reserved = ARGUMENT_3(regs);
	totals = totals_of(who.tgid, device);
	if (!totals)
		return 0;
	/* What is refused may be any size: it is the caller's wish, and often why it is refused. */
	add(&totals->refusals, 1);
	if (!is_absurd(0, allocated, reserved))
		see_levels(totals, allocated, reserved);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
