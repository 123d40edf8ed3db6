/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Equal rows to one row with a count: what otelgpu/engine/folding.py says, in one pass over each group.
 *
 * Which bits of a row are compared is given by kind. folder.py is the other side of these structs. Memory is
 * taken and given back in a call; nothing is kept. Whoever calls sees to it that columns are as long as rows,
 * that each group is one of `groups`, and that what is written to has room for `n` rows.
 */
#ifndef OTELGPU_SPANWRITER_FOLD_H
#define OTELGPU_SPANWRITER_FOLD_H

#include <stdint.h>

enum {
	ROW_WORDS = 16, /* of eight bytes */
	EVERY_ROW_STAYS = -1,
};

/* What rows are beside the first of their calls. */
struct runs {
	int64_t *count;
	uint64_t *end_ns;
	uint64_t *least_ns;
	uint64_t *most_ns;
	uint8_t *merged;
};

struct folding {
	const uint8_t *rows;
	const int64_t *group;	   /* of each row, below `groups` */
	const struct runs *before; /* NULL: each row is a call */
	const uint64_t *same;	   /* by kind, the last one for all beyond: ROW_WORDS masks */
	const uint64_t *alike;	   /* the same: bits that are in `same` too */
	int64_t n;
	int64_t groups;
	int64_t limit;	   /* rows of a group; what is beyond is merged with what is alike */
	int64_t runs_kept; /* of a group with more, all equal rows become one; or EVERY_ROW_STAYS */
	uint64_t sized;	   /* a bit for each kind with a size that adds up */
	uint32_t kinds;	   /* that have masks of their own */
	uint32_t size_offset;
};

/*
 * Writes a row for each of what is folded, group after group, by start and then as they came, merged ones last:
 * the first call, with sums of durations and sizes; `first`: its position among `rows`.
 * Returns how many; -1 without memory, or where rows are more than 32 bits count.
 */
int64_t fold_rows(const struct folding *folding, uint8_t *rows, int64_t *first,
		  const struct runs *runs);

#endif
