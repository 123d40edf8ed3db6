/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The arguments of a probed function as an array, so that a row of a family's table names one by its index. The
 * in-process source (otelgpu/inject) reads its own with it.
 */
#ifndef OTELGPU_WORDS_H
#define OTELGPU_WORDS_H

#include "arguments.h"

#define WORDS	   16
#define WORD_STACK 8 /* the first one on the stack */

/* 0 and 7 are zero: no argument. Registers at 1 to 6; from 8 on what lies above the return address. */
struct words {
	__u64 at[WORDS];
};

/* `stack`: some argument that is wanted is there. */
static __always_inline void read_words(struct words *words, struct pt_regs *regs, bool stack)
{
	words->at[0] = 0;
	words->at[1] = ARGUMENT_1(regs);
	words->at[2] = ARGUMENT_2(regs);
	words->at[3] = ARGUMENT_3(regs);
	words->at[4] = ARGUMENT_4(regs);
	words->at[5] = ARGUMENT_5(regs);
	words->at[6] = ARGUMENT_6(regs);
	words->at[7] = 0;
	if (stack)
		read_user(&words->at[WORD_STACK], (WORDS - WORD_STACK) * sizeof(__u64),
			  (void *)(regs->sp + sizeof(__u64)));
}

#endif
