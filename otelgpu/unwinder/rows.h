/* SPDX-License-Identifier: Apache-2.0 */
/* What is known at an instruction, packed to a row of the table, and the rows' order. */
#ifndef OTELGPU_ROWS_H
#define OTELGPU_ROWS_H

#include "frames.h"

/* state.cfa of a CFA by a register that is not followed: def_cfa_register may still name one that is. */
#define CFA_OTHER 9

/* state.returns */
enum where_return { RETURN_AT_CFA, RETURN_NONE, RETURN_ELSEWHERE };

struct unwind_row pack(u32 pc, const struct state *state, int is_signal);

/* Behind those that there are; what does not come in order is noted (is_unordered), as is that there is no room. */
void add_row(struct table *table, struct unwind_row row);

/* By address, of rows that were all kept. */
void order_rows(struct table *table);

#endif
