/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The one way into a ring: reserve, zero, head, (caller fills), submit, count. */
#ifndef OTELGPU_EMIT_H
#define OTELGPU_EMIT_H

#include "context.h"
#include "lost_records.h"
#include "scope.h"

/*
 * User space drains on a timer; a wake-up is worth its cost only when the ring
 * fills faster than that. 0: wake at every record.
 */
const volatile __u32 ring_wake_bytes = 0;

/* The family's records; user space sets the size before loading. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} ring SEC(".maps");

static __always_inline void fill_head(struct record_head *head, __u16 kind, struct identity who,
				      __u64 start_ns, __u64 end_ns)
{
	__builtin_memset(head, 0, sizeof(*head));
	head->time_ns = start_ns;
	head->duration_ns = end_ns - start_ns;
	head->tgid = who.tgid;
	head->tid = who.tid;
	head->cgroup_id = bpf_get_current_cgroup_id();
	head->kind = kind;
	head->cpu = (__u16)bpf_get_smp_processor_id();
	fill_context(head);
}

/*
 * Where its reader was, and one more, when it was woken last. Until it has read on, waking it again changes nothing,
 * and costs an interrupt for each record: 1 µs, and many times that in a virtual machine.
 */
__u64 ring_woken_at = 0;

/* Its reader has nothing else to do, and no time set to come round: the first record of an empty ring wakes it. */
__u64 ring_awaited = 0;

static __always_inline __u64 wake_flags(void)
{
	__u64 read;

	if (!ring_wake_bytes || ring_awaited)
		return 0;
	if (bpf_ringbuf_query(&ring, BPF_RB_AVAIL_DATA) < ring_wake_bytes)
		return BPF_RB_NO_WAKEUP;
	read = bpf_ringbuf_query(&ring, BPF_RB_CONS_POS) + 1;
	if (ring_woken_at == read)
		return BPF_RB_NO_WAKEUP;
	ring_woken_at = read;
	return BPF_RB_FORCE_WAKEUP;
}

static __always_inline void submit(void *record)
{
	count(COUNTER_SUBMITTED);
	bpf_ringbuf_submit(record, wake_flags());
}

/* The same for a record that was made elsewhere, head and all. */
static __always_inline void output(void *record, __u64 size)
{
	if (bpf_ringbuf_output(&ring, record, size, wake_flags()))
		lose_record(((struct record_head *)record)->tgid, COUNTER_RING_FULL);
	else
		count(COUNTER_SUBMITTED);
}

/*
 * A zeroed record of `type` with its head filled, or NULL with the loss counted. `who` is looked up once: with two calls
 * of it clang asks again whether the record is NULL, and Linux 6.1 takes that for a record that may never be submitted.
 */
#define EMIT_BEGIN(type, kind, who, start_ns, end_ns)                                           \
	({                                                                                      \
		struct type *_record = bpf_ringbuf_reserve(&ring, sizeof(*_record), 0);         \
		struct identity _who = who;                                                     \
		if (_record) {                                                                  \
			__builtin_memset(_record, 0, sizeof(*_record));                         \
			fill_head((struct record_head *)_record, kind, _who, start_ns, end_ns); \
		} else {                                                                        \
			lose_record(_who.tgid, COUNTER_RING_FULL);                              \
		}                                                                               \
		_record;                                                                        \
	})

#endif
