/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Records of family profile: samples, which name a stack by number, and stacks, each reported once.
 * Samples of all kinds are one struct, so that a ring full of them is one numpy array.
 */
#ifndef OTELGPU_PROFILE_H
#define OTELGPU_PROFILE_H

#include "../lib/file_paths.h"
#include "../lib/record.h"

/* Up to PROFILE_USER the numbers are those of SampleKind (otelgpu/model/samples.py): a test compares them. */
enum profile_kind {
	PROFILE_CPU = 1, /* value: ns of CPU time that the sample stands for */
	PROFILE_OFF_CPU =
		2, /* head.time_ns: left the CPU; value = head.duration_ns: until it was back */
	PROFILE_WAKER = 3, /* the same, with the stack of who woke it; other: tid that was woken */
	PROFILE_SYSCALL = 4, /* value: ns in the call; other: its number */
	PROFILE_FILE = 5,    /* a slow call on a file: value: ns; bytes; other: enum file_api */
	PROFILE_BLOCK =
		6, /* issued at head.time_ns; value: ns until done; bytes; other: device number */
	PROFILE_CALL =
		7, /* a call of a vendor's library: head.time_ns is the start in that call's record */
	PROFILE_USER = 8,   /* a user's probe; other: its number */
	PROFILE_STACK = 16, /* struct profile_stack */
};

/* Numbers are those of ThreadState (otelgpu/model/samples.py). */
enum profile_state {
	STATE_UNKNOWN = 0,
	STATE_RUNNABLE = 1,
	STATE_INTERRUPTIBLE = 2,
	STATE_UNINTERRUPTIBLE = 3,
	STATE_STOPPED = 4,
};

struct profile_sample {
	struct record_head head;
	__u64 stack; /* 0: none could be taken, which is counted */
	__u64 value;
	__u64 bytes;
	__u64 other;
	char name[16]; /* comm of the thread */
	__u8 state;    /* enum profile_state */
	__u8 reserved[7];
};

/* A slow call on a file: a sample whose `other` is enum file_api, and above 8 bits the number of the file. */
struct profile_file {
	struct record_head head;
	__u64 stack;
	__u64 value;
	__u64 bytes;
	__u64 other;
	char name[16];
	__u8 state;
	__u8 path_end; /* enum path_end: lib/file_paths.h */
	__u8 deleted;
	__u8 reserved;
	__s32 status;	       /* 0, or a negative errno */
	char path[PATH_BYTES]; /* names, the last part first, each with its NUL */
};

/*
 * A request: a sample whose `other` is the device's number (major << 20 | minor), above 32 bits REQ_OP_*, and above 40
 * the number of the control group that a thread of the kernel wrote it back for; 0: the thread made it for itself.
 */
struct profile_block {
	struct record_head head;
	__u64 stack;
	__u64 value;
	__u64 bytes;
	__u64 other;
	char name[16];
	__u8 state;
	__u8 reserved[3];
	__s32 status;	 /* 0, or what blk_status_t the block layer has for the failure */
	char device[32]; /* name of the disk */
	char group[64];	 /* that control group: the last part of its path */
};

/* Why a stack ends before its outermost frame. */
enum stack_end {
	STACK_COMPLETE = 0,
	STACK_TOO_DEEP = 1, /* more frames than are kept */
	STACK_NOT_READY =
		2, /* the file's unwind table is not there yet: walked by frame pointers as far as they go */
	STACK_NO_TABLE = 3,   /* the file has none, or a damaged one */
	STACK_NO_ROW = 4,     /* the table says nothing of this place, or what cannot be followed */
	STACK_UNREADABLE = 5, /* memory of the stack could not be read */
	STACK_UNMAPPED = 6,   /* an address in no known mapping: code that was made at run time */
	STACK_PYTHON_DAMAGED = 7, /* the interpreter's frames could not be followed to their end */
};

#define STACK_PART_WORDS  60
#define MAX_KERNEL_FRAMES 64
#define MAX_USER_FRAMES	  256
#define MAX_PYTHON_FRAMES 128

/*
 * Second word of a Python frame: the byte offset in the code, as f_lasti is meant by the version; and whether the
 * interpreter was entered from C here, so that one native evaluation frame ends.
 */
#define PYTHON_INSTRUCTION(word) ((word)&0xffffffff)
#define PYTHON_ENTRY		 (1ull << 32)

/*
 * A stack in parts, reported before the first sample under it and again after user space has asked for it. Its words are
 * `kernel` addresses, then `user` addresses (the leaf first; callers are return addresses), then two words
 * for each of `python` frames (address of the code object, instruction and flags), the leaf first.
 */
struct profile_stack {
	struct record_head head;
	__u64 stack; /* a hash of the process and all words; never 0 */
	__u16 kernel;
	__u16 user;
	__u16 python;
	__u8 part; /* from 0; words of part p begin at p * STACK_PART_WORDS */
	__u8 end;  /* enum stack_end */
	__u64 words[STACK_PART_WORDS];
};

#endif
