/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Records of family process: which programs there are and what code they map. */
#ifndef OTELGPU_PROCESS_H
#define OTELGPU_PROCESS_H

#include "../lib/counters.h"

enum process_kind {
	PROCESS_EXEC = 1,
	PROCESS_FORK = 2,
	PROCESS_EXIT = 3,
	PROCESS_MAPPING = 4,
	PROCESS_CONTEXT = 5,
};

enum process_counter {
	COUNTER_PROCESS_SHARE_SPENT =
		COUNTER_COUNT,	       /* an event beyond the share of its process or container */
	COUNTER_MISSED_PROCESSES_FULL, /* too many processes with such events: all are looked at */
};

/* A new program image. In scope or not: user space decides what matches. */
struct process_exec {
	struct record_head head;
	__u64 inode; /* of the program's file */
	__u32 device;
	__u8 in_scope;
	__u8 reserved[3];
};

/* A new process (not a thread); head.tgid is the child. */
struct process_fork {
	struct record_head head;
	__u32 parent;
	__u32 reserved;
};

/* The last thread of a process ended. */
struct process_exit {
	struct record_head head;
	__u8 quiet; /* and it has no record of any other family */
	__u8 reserved[7];
};

#define MAPPING_NAME_BYTES 64

/* A file was mapped executable. */
struct process_mapping {
	struct record_head head; /* the mmap call */
	__u64 address;
	__u64 bytes;  /* whole pages */
	__u64 offset; /* in the file */
	__u64 inode;
	__u32 device; /* kernel encoding: major << 20 | minor */
	__u8 held;    /* the process was stopped here (--hold-on-load) */
	__u8 reserved[3];
	char name[MAPPING_NAME_BYTES]; /* last path component, cut */
};

/* A process context was published, or published anew: OTEP 4719. */
struct process_context {
	struct record_head head;
	__u64 address; /* of its header */
};

/* Key of known_files and quiet_files. */
struct file_identity {
	__u64 inode;
	__u32 device;
	__u32 reserved;
};

/* Value of quiet_files. */
struct file_state {
	__u64 bytes;
	__u64 changed_ns; /* st_ctim */
};

#endif
