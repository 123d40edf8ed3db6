/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Where struct ncclComm (src/include/comm.h of NCCL) has what is read. It differs from version to version:
 * user space finds it out, for each file that carries probes (otelgpu/families/nccl/discover/communicators.py).
 */
#ifndef OTELGPU_NCCL_LAYOUTS_H
#define OTELGPU_NCCL_LAYOUTS_H

#include "../lib/types.h"

#define NCCL_LAYOUTS 64 /* copies of the library with probes; 0 is that of none */
#define NCCL_MAGIC   0x0280028002800280ULL /* first word, from 2.21 on, and the last */
#define NCCL_RANKS   (1 << 24)		   /* more are no number of ranks */

/* Offsets in bytes; all zero: not known. Only `sequences`, `graphs_at` and `end_at` may be missing. */
struct nccl_layout {
	__u32 known;
	__u32 hash_at; /* commHash, 8 bytes */
	__u32 rank_at; /* rank, nRanks and cudaDev, 4 bytes each */
	__u32 ranks_at;
	__u32 device_at;
	__u32 end_at;	    /* endMagic; 0: there is none */
	__u32 sequences_at; /* seqNumber, 8 bytes each */
	__u32 sequences;    /* how many; 0: the version does not keep them, or not always */
	__u32 graphs_at;    /* localPersistentRefs, 4 bytes; 0: not known */
	__u32 begin_magic;  /* whether the first word is NCCL_MAGIC */
};

#endif
