// SPDX-License-Identifier: Apache-2.0
#include "rows.h"

#include "sort.h"

static int is_end(struct unwind_row row)
{
	return (row.rule & 15) == UNWIND_NONE;
}

static int is_same(struct unwind_row a, struct unwind_row b)
{
	return a.cfa == b.cfa && a.rule == b.rule && a.rbp == b.rbp;
}

/*
 * Where several begin at one address the last that a function has counts, and a function's begin before another's end;
 * one that says what the one before says is left out.
 */
static u32 append(struct unwind_row *rows, u32 count, struct unwind_row row)
{
	if (count && rows[count - 1].pc == row.pc) {
		if (is_end(row) && !is_end(rows[count - 1]))
			return count;
		count--;
	}
	if (!count || !is_same(rows[count - 1], row))
		rows[count++] = row;
	return count;
}

void add_row(struct table *table, struct unwind_row row)
{
	if (table->rows_count >= table->rows_limit) {
		table->is_full = 1;
		return;
	}
	if (table->keeps_all) { /* functions overlap */
		table->rows[table->rows_count++] = row;
		return;
	}
	if (table->rows_count && table->rows[table->rows_count - 1].pc > row.pc)
		table->is_unordered = 1;
	table->rows_count = append(table->rows, table->rows_count, row);
}

struct unwind_row pack(u32 pc, const struct state *state, int is_signal)
{
	int saved = state->rbp != UNWIND_RBP_SAME;
	struct unwind_row row = { .pc = pc, .rule = state->cfa };

	if (state->offset % 8 || state->offset >= 8 << 15 || state->offset <= -(8 << 15) ||
	    state->cfa == CFA_OTHER || state->returns == RETURN_ELSEWHERE)
		row.rule = UNWIND_UNSUPPORTED;
	if (saved &&
	    (state->rbp_offset % 8 || state->rbp_offset < -8 * 128 || state->rbp_offset > 8 * 127))
		row.rule = UNWIND_UNSUPPORTED;
	if (state->returns == RETURN_NONE)
		row.rule = UNWIND_END;
	if (row.rule != UNWIND_UNSUPPORTED && row.rule != UNWIND_END) {
		row.cfa = state->offset / 8;
		if (saved) {
			row.rule |= state->rbp << 4;
			row.rbp = state->rbp_offset / 8;
		}
	}
	if (is_signal)
		row.rule = UNWIND_SIGNAL;
	return row;
}

void order_rows(struct table *table)
{
	u32 count = 0;

	sort(table->rows, table->rows_spare, table->rows_count, sizeof(*table->rows));
	for (u32 i = 0; i < table->rows_count; i++)
		count = append(table->rows, count, table->rows[i]);
	table->rows_count = count;
}
