/* SPDX-License-Identifier: Apache-2.0 */
#include "cupti_slices.h"

#define SECOND_NS   1000000000ull
#define PATIENCE_NS 100000000ull /* how long a boundary is waited for */
#define ONE	    256		 /* of per_call */

static uint64_t spent(const struct slices *slices)
{
	uint64_t expected = slices->calls * slices->per_call / ONE;

	return expected > slices->activities ? expected : slices->activities;
}

/* What accrues in a time, at most a second's worth of it. */
static int64_t accrued(const struct slices *slices, uint64_t elapsed_ns)
{
	if (elapsed_ns > SECOND_NS)
		elapsed_ns = SECOND_NS;
	return (int64_t)(slices->per_second * elapsed_ns / SECOND_NS);
}

/* What a slice may cost until now: the whole time that it lasts counts. */
static int64_t allowed(const struct slices *slices, uint64_t now_ns)
{
	uint64_t elapsed_ns = now_ns - slices->began_ns;
	uint64_t earned = elapsed_ns / SECOND_NS * slices->per_second +
			  elapsed_ns % SECOND_NS * slices->per_second / SECOND_NS;

	return slices->budget + (int64_t)earned;
}

static void end(struct slices *slices, uint64_t now_ns)
{
	int64_t enough = (int64_t)(slices->per_second / 2);
	uint64_t pause_ns = PATIENCE_NS;

	slices->charged = spent(slices);
	slices->budget = allowed(slices, now_ns) - (int64_t)slices->charged;
	if (slices->budget < enough) {
		uint64_t missing = (uint64_t)(enough - slices->budget);

		pause_ns = missing / slices->per_second * SECOND_NS +
			   missing % slices->per_second * SECOND_NS / slices->per_second;
	}
	slices->on_ns += now_ns - slices->began_ns;
	slices->on = false;
	slices->began_ns = now_ns;
	slices->next_ns = now_ns + (pause_ns > PATIENCE_NS ? pause_ns : PATIENCE_NS);
}

static void begin(struct slices *slices, uint64_t now_ns)
{
	int64_t full = (int64_t)slices->per_second;
	uint64_t off_ns = now_ns - slices->began_ns;
	int64_t budget = slices->budget + (int64_t)(off_ns / SECOND_NS * slices->per_second) +
			 accrued(slices, off_ns % SECOND_NS);

	slices->budget = budget > full ? full : budget;
	slices->on = true;
	slices->began_ns = now_ns;
	slices->next_ns = 0;
	slices->calls = slices->activities = slices->charged = 0;
}

void slices_start(struct slices *slices, uint64_t per_second, uint64_t now_ns)
{
	*slices = (struct slices){
		.per_second = per_second,
		.first_ns = now_ns,
		.began_ns = now_ns,
		.next_ns = now_ns,
		.budget = (int64_t)per_second,
		.per_call = ONE,
	};
}

enum slice_step slices_at(struct slices *slices, uint64_t now_ns, bool boundary)
{
	if (now_ns < slices->began_ns)
		return SLICE_KEEP; /* another thread's later time was reported first */
	if (!slices->on) {
		if (now_ns < slices->next_ns)
			return SLICE_KEEP;
		if (!boundary && now_ns - slices->next_ns < PATIENCE_NS)
			return SLICE_KEEP;
		begin(slices, now_ns);
		return boundary ? SLICE_BEGIN : SLICE_BEGIN_UNALIGNED;
	}
	if ((int64_t)spent(slices) < allowed(slices, now_ns))
		return SLICE_KEEP;
	if (!slices->next_ns)
		slices->next_ns = now_ns;
	/* Twice the budget, or a step that does not end: what is whole is no longer worth it. */
	if (!boundary && now_ns - slices->next_ns < PATIENCE_NS &&
	    (int64_t)spent(slices) < 2 * allowed(slices, now_ns))
		return SLICE_KEEP;
	end(slices, now_ns);
	return boundary ? SLICE_END : SLICE_CUT;
}

uint32_t slices_sampled(const struct slices *slices)
{
	uint64_t elapsed_ns = slices->began_ns - slices->first_ns;

	if (!slices->on_ns || !elapsed_ns)
		return 1000000;
	return (uint32_t)(1e6 * (double)slices->on_ns / (double)elapsed_ns);
}

void slices_settle(struct slices *slices)
{
	if (slices->on || !slices->charged)
		return;
	if (slices->activities > slices->charged) {
		uint64_t more = slices->activities - slices->charged;

		slices->budget -= (int64_t)more;
		slices->next_ns += more / slices->per_second * SECOND_NS +
				   more % slices->per_second * SECOND_NS / slices->per_second;
	}
	if (slices->calls && slices->activities > slices->calls)
		slices->per_call = slices->activities * ONE / slices->calls;
	else
		slices->per_call = ONE;
	slices->charged = 0;
}
