/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows as they came into parts that are alike, and into what is of one owner. ingest.py is the other side.
 *
 * Whoever calls sees to it that columns are as long as rows, and that there is room for as many parts and owners.
 * Memory is taken and given back in a call; nothing is kept.
 */
#ifndef OTELGPU_SPANWRITER_INGEST_H
#define OTELGPU_SPANWRITER_INGEST_H

#include <stdint.h>

enum source_flags {
	SOURCE_OWNS_NOTHING = 1, /* whatever its thread held, it is not of that */
	SOURCE_IS_SPECIAL = 2,	 /* the row is not only its owner's */
};

/* Rows of one process and kind, of which all failed or none is known to have. */
struct part {
	uint32_t tgid;
	uint16_t kind;
	uint8_t failed;
	uint8_t unused;
	int64_t count;
};

struct owner {
	int64_t key;
	int64_t first; /* its first row */
	int64_t count;
	uint64_t last_ns; /* when the newest of them started */
};

struct split {
	const uint8_t *rows;
	int64_t n;
	int64_t *owners;       /* of each row; put in the order of `out` */
	const uint8_t *source; /* flags of each source of a context */
	uint8_t *out;	       /* the rows, part after part and in each as they came */
	struct part *parts;    /* by process, kind and outcome */
	uint8_t family;	       /* that all get */
	uint8_t special;       /* set to 1 where a row is special, or has no owner above 0 */
	uint8_t unused[6];
};

/* Returns how many parts there are; -1 without memory, or where rows are more than 31 bits count. */
int64_t split_rows(struct split *split);

/*
 * The distinct ones of `n` owners, ascending, and which of them each row is of.
 * Returns how many; -1 without memory, or where rows are more than 31 bits count.
 */
int64_t group_owners(const uint8_t *rows, const int64_t *owners, int64_t n, int64_t *codes,
		     struct owner *found);

#endif
