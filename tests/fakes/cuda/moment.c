/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>

#include "driver.h"

#ifdef FAKE_STANDALONE
static const struct fake_collective_hooks *const fake_collective_hooks;
#else
__attribute__((visibility("default"))) const struct fake_collective_hooks *fake_collective_hooks;
#endif

void moment_raise_ns(struct moment *moment, int64_t ns)
{
	if (ns > moment->ns)
		moment->ns = ns;
}

void moment_add_ns(struct moment *moment, int64_t ns)
{
	moment->ns += ns;
	for (uint32_t i = 0; i < moment->count; i++)
		moment->ends[i].plus_ns += ns;
}

/* Makes times of the ends that are known by now. */
static void settle(struct moment *moment)
{
	uint32_t left = 0;

	for (uint32_t i = 0; i < moment->count; i++) {
		struct collective_end end = moment->ends[i];
		int64_t ns = fake_collective_hooks->end(end.where, end.which, false);

		if (ns < 0)
			moment->ends[left++] = end;
		else
			moment_raise_ns(moment, ns + end.plus_ns);
	}
	moment->count = left;
}

static struct collective_end *find(struct moment *moment, const struct collective_end *end)
{
	for (uint32_t i = 0; i < moment->count; i++)
		if (moment->ends[i].where == end->where && moment->ends[i].which == end->which)
			return &moment->ends[i];
	return NULL;
}

void moment_raise(struct moment *moment, const struct moment *other)
{
	struct collective_end *same;

	moment_raise_ns(moment, other->ns);
	if (!other->count)
		return;
	settle(moment);
	for (uint32_t i = 0; i < other->count; i++) {
		same = find(moment, &other->ends[i]);
		if (same) {
			if (other->ends[i].plus_ns > same->plus_ns)
				same->plus_ns = other->ends[i].plus_ns;
			continue;
		}
		if (moment->count == MOMENT_ENDS_MAX) {
			fprintf(stderr, "CUDA fake: a stream waits for more than %d collectives\n",
				MOMENT_ENDS_MAX);
			abort();
		}
		moment->ends[moment->count++] = other->ends[i];
	}
}

void moment_forget(struct moment *moment, const struct moment *other)
{
	for (uint32_t i = 0; i < other->count; i++) {
		struct collective_end *same = find(moment, &other->ends[i]);

		if (same)
			*same = moment->ends[--moment->count];
	}
}

int64_t moment_ns(const struct moment *moment, bool wait)
{
	int64_t ns = moment->ns;

	for (uint32_t i = 0; i < moment->count; i++) {
		const struct collective_end *end = &moment->ends[i];
		int64_t end_ns = fake_collective_hooks->end(end->where, end->which, wait);

		if (end_ns < 0)
			return -1;
		if (end_ns + end->plus_ns > ns)
			ns = end_ns + end->plus_ns;
	}
	return ns;
}

const struct fake_collective_hooks *moment_hooks(void)
{
	return fake_collective_hooks;
}
