/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Records of family probe: hits of probes that a user asked for, and how their values are read. */
#ifndef OTELGPU_PROBE_H
#define OTELGPU_PROBE_H

#include "../lib/record.h"

/* The number is that of OperationKind (otelgpu/model/operations.py): a test compares them. */
enum probe_kind {
	PROBE_HIT = 19,
};

/* Numbers are those of ArgumentSource (otelgpu/model/user_probes.py). */
enum argument_source {
	ARGUMENT_NONE = 0,
	ARGUMENT_REGISTER = 1,
	ARGUMENT_MEMORY = 2,   /* at register + offset */
	ARGUMENT_CONSTANT = 3, /* offset itself */
	ARGUMENT_FIELD = 4,    /* of a tracepoint's record, offset bytes into it */
	ARGUMENT_RESULT = 5,
};

#define PROBE_ARGUMENTS 4
#define PROBE_PLACES	1024

/* One value: how it is read. */
struct probe_argument {
	__s64 offset;
	__u8 source;	/* enum argument_source */
	__u8 size;	/* 1, 2, 4 or 8 bytes */
	__u8 is_signed; /* its sign is extended */
	__u8 reg;	/* see words_of() */
	__u8 reserved[4];
};

/* A probe at a place: USDT may keep the same value elsewhere at each. Written before it is placed. */
struct probe_spec {
	struct probe_argument arguments[PROBE_ARGUMENTS];
	__u16 number; /* of the probe, from 1 */
	__u8 count;
	__u8 returns;	/* it lasts until the function returns, or until another place is passed */
	__u32 least_us; /* what lasts for less is no hit */
};

struct probe_hit {
	struct record_head head;
	__u64 values[PROBE_ARGUMENTS];
	__u16 number;
	__u8 read; /* bit i: values[i] could be read */
	__u8 reserved[5];
};

#endif
