/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What every ring record starts with. Written once, here: user space takes
 * offsets and sizes from this struct's BTF.
 */
#ifndef OTELGPU_RECORD_H
#define OTELGPU_RECORD_H

#include "types.h"

enum context_source {
	CONTEXT_NONE = 0,
	CONTEXT_THREAD_CONTEXT = 1, /* OTEP 4947, read by the probe */
	CONTEXT_OBI = 2,	    /* traces_ctx_v1 */
	/*
	 * None was published: span_id is the task that the thread runs. Where that one wrote for another, it is the
	 * other one, and trace_id is a struct asked: http/go_client.h.
	 */
	CONTEXT_TASK = 7,
};

struct record_head {
	__u64 time_ns;	   /* CLOCK_MONOTONIC, start */
	__u64 duration_ns; /* 0: instantaneous, or the return was not probed */
	__u32 tgid;	   /* in the initial PID namespace */
	__u32 tid;
	__u64 cgroup_id;
	__u8 trace_id[16]; /* zero: no context was published */
	__u8 span_id[8];
	__u16 kind; /* the family's enum <family>_kind */
	__u16 cpu;
	__u8 trace_flags;
	__u8 context_source; /* enum context_source */
	__u8 returned;	     /* 1: duration and status are known */
	__u8 reserved;
};

_Static_assert(sizeof(struct record_head) == 64, "record head is one cache line");

/* A function among those of all families, as a profile's samples of calls name it: lib/call_stacks.h. */
#define CALL_NUMBER(family, function) ((__u64)(family) << 32 | (function))

/*
 * A struct that is only ever a ring record, and an enum that is only ever
 * compared, are dropped from BTF. Naming them through a global keeps them.
 */
#define RECORD(type) __attribute__((used)) struct type *record_##type
#define ENUM(type)   __attribute__((used)) enum type enum_##type

#endif
