/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Records of family sched: which thread of a process handed work to another, by waking it from an idle wait. */
#ifndef OTELGPU_SCHED_H
#define OTELGPU_SCHED_H

#include "../lib/record.h"

enum sched_kind {
	SCHED_HANDOFF = 1,
};

/* What happened to a thread that may be a worker. */
enum sched_event {
	SCHED_WOKEN = 1,     /* another thread of its process ended its idle wait */
	SCHED_TIMED_OUT = 2, /* its idle wait ended by itself */
	SCHED_SIGNALLED = 3, /* it woke another thread: the work that it was given may be done */
	SCHED_MADE =
		4, /* it made a semaphore that one thread at a time may take: a lock, a result */
	SCHED_AWAITS = 5, /* its idle wait begins, at the semaphore that it made last */
};

/*
 * head.tid is the worker; head.time_ns when it was woken, gave up waiting or
 * signalled. Only the first SCHED_TIMED_OUT or SCHED_SIGNALLED after a
 * SCHED_WOKEN is reported. SCHED_AWAITS has the time that SCHED_WOKEN calls idle_ns.
 */
struct sched_handoff {
	struct record_head head;
	__u64 idle_ns; /* the wait that ended began, CLOCK_MONOTONIC; 0 for the others */
	__u32 waker;   /* thread; 0 where none woke it */
	__u16 event;   /* enum sched_event */
	__u8 reserved[2];
};

#endif
