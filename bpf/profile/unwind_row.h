/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * How a caller's registers are found, from an address of a file on. Rows are made in user space
 * (otelgpu/unwinder/frames.c) and read by the BPF programs (unwind.h).
 */
#ifndef OTELGPU_UNWIND_ROW_H
#define OTELGPU_UNWIND_ROW_H

/* How the CFA is found: the address above the return address. */
enum unwind_cfa {
	UNWIND_NONE = 0, /* no function is known here */
	UNWIND_RSP = 1,
	UNWIND_RBP = 2,
	UNWIND_PLT = 3,
	UNWIND_AT_RBP = 4,
	UNWIND_AT_RSP = 5,
	UNWIND_SIGNAL = 6,
	UNWIND_END = 7,
	UNWIND_UNSUPPORTED = 8,
};

/* Where the caller's rbp is. */
enum unwind_rbp {
	UNWIND_RBP_SAME = 0,
	UNWIND_RBP_AT_CFA = 1,
	UNWIND_RBP_AT_RBP = 2,
};

/* Offsets count 8 bytes. */
struct unwind_row {
	__u32 pc;  /* from this address of the file on */
	__s16 cfa; /* offset */
	__u8 rule; /* enum unwind_cfa, enum unwind_rbp << 4 */
	__s8 rbp;  /* offset */
};

#endif
