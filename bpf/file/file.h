/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Records of family file: calls that read, wrote or synced a file and took long. */
#ifndef OTELGPU_FILE_H
#define OTELGPU_FILE_H

#include "../lib/record.h"

enum file_kind {
	FILE_CALL = 1,
};

/* A thread waits in it: a file of a file system or a block device, never a pipe or a socket. */
struct file_call {
	struct record_head head;
	__u64 inode;
	__u64 bytes; /* that it moved */
	__u32 device;
	__s32 status; /* 0, or a negative errno */
	__u16 api;    /* enum file_api: lib/file_calls.h */
	__u8 reserved[6];
	char name[64]; /* the last part of its path, cut */
};

#endif
