/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every exported function of a fake does first: count the call, and fail it when that was asked
 * for. Each function brings its own entry of the section fake_calls, so that there is no list to keep.
 *
 * The settings begin with FAKE_PREFIX of the build, FAKE_CUDART or FAKE_CUDA:
 *   <prefix>_FAIL=FUNCTION:NTH:CODE[,…]   the Nth call of FUNCTION answers CODE and does nothing else
 *   <prefix>_LEDGER=FILE                  at exit a line {"pid": …, "calls": {function: count}} is added
 */
#ifndef FAKE_CALLS_H
#define FAKE_CALLS_H

#include <stdatomic.h>
#include <stdbool.h>

struct call {
	const char *name;
	void *address;
	atomic_ulong count;
	bool can_fail;
} __attribute__((aligned(32)));
_Static_assert(sizeof(struct call) == 32, "the section is an array of them");

/* noipa: what a uprobe sits on must be called with its full ABI, and never be inlined or merged. */
#define EXPORTED __attribute__((visibility("default"), noipa))

#define CALL_ENTRY(function, fallible)                                                             \
	static struct call call_##function                                                         \
		__attribute__((section("fake_calls"), used)) = { #function, (void *)(function), 0, \
								 fallible }

/* Counts one call. The result is the failure to answer with, or 0. */
static inline int call_begin(struct call *call);

/* The exported function of this name, NULL if there is none. */
void *calls_find(const char *name);

/*
 * Reads the settings; an unreadable value ends the process with a line on stderr, since a test would
 * otherwise test nothing.
 */
void calls_configure(void);

/* Writes the ledger line, once. */
void calls_report(void);

/* Forgets the counts: a child of fork() has made no call yet. */
void calls_reset(void);

extern int calls_failing; /* how many failures were asked for */
int call_failure(const struct call *call, unsigned long nth);

static inline int call_begin(struct call *call)
{
	unsigned long nth = atomic_fetch_add_explicit(&call->count, 1, memory_order_relaxed) + 1;

	return calls_failing ? call_failure(call, nth) : 0;
}

#endif
