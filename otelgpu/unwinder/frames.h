/* SPDX-License-Identifier: Apache-2.0 */
/* What is read, what is made of it, and the room for both, which main.c gets: frames.c asks nobody for anything. */
#ifndef OTELGPU_FRAMES_H
#define OTELGPU_FRAMES_H

#include <linux/types.h>

#include "profile/unwind_row.h"

typedef __u8 u8;
typedef __u32 u32;
typedef __u64 u64;
typedef __s32 s32;
typedef __s64 s64;

#define SECTION_LIMIT (96u << 20) /* bytes; libtorch_cpu.so has 20 MB */
#define ROWS_LIMIT    (1u << 24)
#define SHARED_LIMIT  (1u << 14) /* linkers merge equal ones; libraries have a handful */
#define FDE_BYTES     12	 /* of the shortest that makes sense */

/* .eh_frame, which is loaded at `address` of its file. */
struct section {
	const u8 *bytes;
	u64 size;
	u64 address;
};

/* What is known at some instruction. Offsets are in bytes. */
struct state {
	s64 offset;
	s64 rbp_offset;
	u8 cfa; /* enum unwind_cfa, or CFA_OTHER */
	u8 rbp; /* enum unwind_rbp */
	u8 returns;
};

/* A CIE: what functions have in common. `initial`: after its instructions. */
struct shared {
	u32 at;
	s32 scale;
	s32 factor;
	u8 encoding;
	u8 augmented;
	u8 signal;
	u8 damaged;
	struct state initial;
};

/* An FDE: where it begins in the file, and where its instructions lie in the section. */
struct function {
	u32 begin;
	u32 length;
	u32 code;
	u32 code_end;
	u32 owner; /* number of its CIE */
};

/* Both spares are as long as what they are for. */
struct table {
	struct shared *shared;			      /* SHARED_LIMIT */
	struct function *functions, *functions_spare; /* as many as the section has room for */
	struct unwind_row *rows, *rows_spare;	      /* rows_limit */
	u32 shared_count, functions_count, rows_count;
	u32 rows_limit;
	u32 damaged; /* functions that are unknown from some place on, and entries that were left out */
	u32 last; /* CIE that a function had */
	u8 keeps_all;
	u8 is_unordered;
	u8 is_full; /* there are more rows than have room */
};

/* Fill the table; what it held before does not matter but for its places and its limit. */
void make_table(const struct section *section, struct table *table);

#endif
