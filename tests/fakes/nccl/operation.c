/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collectives, messages and batches of messages: who is there since when, and when they end. An operation's
 * name is its kind, an index (of the pair, of the rank) and its number there. Any process can work out an
 * end, since what a side's arrival depends on lies in shared memory too.
 */
#include <stdio.h>
#include <unistd.h>

#include "segment.h"

#define NUMBER_BITS  48
#define INDEX_BITS   14
#define NUMBER(name) ((name) & ((1ULL << NUMBER_BITS) - 1))
#define INDEX(name)  ((name) >> NUMBER_BITS & ((1ULL << INDEX_BITS) - 1))
#define KIND(name)   ((name) >> (NUMBER_BITS + INDEX_BITS))

enum kind { COLLECTIVE, MESSAGE, BATCH };

static uint64_t name_of(enum kind kind, uint64_t index, uint64_t number)
{
	return (uint64_t)kind << (NUMBER_BITS + INDEX_BITS) | index << NUMBER_BITS | number;
}

uint64_t collective_name(uint64_t number)
{
	return name_of(COLLECTIVE, 0, number);
}

uint64_t message_name(int sender, int receiver, uint64_t number)
{
	return name_of(MESSAGE, (uint64_t)sender * RANKS_MAX + (uint64_t)receiver, number);
}

uint64_t batch_name(int rank, uint64_t number)
{
	return name_of(BATCH, (uint64_t)rank, number);
}

static uint64_t places_of(uint64_t name)
{
	return KIND(name) == COLLECTIVE ? COLLECTIVE_PLACES
	       : KIND(name) == MESSAGE	? MESSAGE_PLACES
					: BATCH_PLACES;
}

static unsigned int sides_of(const struct segment *segment, uint64_t name)
{
	return KIND(name) == COLLECTIVE ? segment->ranks : KIND(name) == MESSAGE ? 2 : 1;
}

static struct operation *find(const struct segment *segment, uint64_t name)
{
	uint64_t place = NUMBER(name) % places_of(name), index = INDEX(name);
	char *ring = segment->collectives;

	if (KIND(name) == MESSAGE) {
		index = index / RANKS_MAX * segment->ranks + index % RANKS_MAX;
		ring = segment->messages;
	} else if (KIND(name) == BATCH) {
		ring = segment->batches;
	}
	return (struct operation *)(ring + (index * places_of(name) + place) *
						   operation_bytes(sides_of(segment, name)));
}

void operation_reserve(struct segment *segment, uint64_t name)
{
	struct operation *operation = find(segment, name);
	uint64_t owner, wanted = NUMBER(name) + 1;
	int64_t end_ns;

	for (;;) {
		segment_lock(segment);
		owner = atomic_load(&operation->owner);
		end_ns = atomic_load(&operation->end_ns);
		if (owner < wanted && (!owner || (end_ns && end_ns <= clock_ns()))) {
			*operation = (struct operation){ .owner = wanted };
			owner = wanted;
		}
		segment_unlock(segment);
		if (owner >= wanted || segment_aborted(segment))
			return;
		sleep_until(operation_end(segment->hash, name - places_of(name), true));
	}
}

static void disagree(const struct segment *segment, uint64_t name, uint64_t one, uint64_t other)
{
	fprintf(stderr,
		"NCCL fake: ranks of communicator %016llx disagree on operation %llu: function "
		"%llu of "
		"%llu bytes, function %llu of %llu bytes\n",
		(unsigned long long)segment->hash, (unsigned long long)NUMBER(name),
		(unsigned long long)one >> 56, (unsigned long long)one << 8 >> 8,
		(unsigned long long)other >> 56, (unsigned long long)other << 8 >> 8);
	_exit(3);
}

void operation_arrive(struct segment *segment, uint64_t name, int side, const struct moment *at,
		      int64_t transfer_ns, uint64_t what)
{
	struct operation *operation = find(segment, name);
	unsigned int sides = sides_of(segment, name), arrived;

	segment_lock(segment);
	operation->at[side] = *at;
	operation->unsettled += at->count > 0;
	if (at->ns > operation->latest_ns)
		operation->latest_ns = at->ns;
	if (transfer_ns > operation->transfer_ns)
		operation->transfer_ns = transfer_ns;
	if (operation->arrived && operation->what != what) {
		segment_unlock(segment);
		disagree(segment, name, operation->what, what);
	}
	operation->what = what;
	if (operation->arrived + 1 == sides && !operation->unsettled)
		operation->end_ns = operation->latest_ns + operation->transfer_ns;
	arrived = ++operation->arrived;
	segment_unlock(segment);
	if (arrived == sides && atomic_load(&operation->waiters))
		word_wake(&operation->arrived);
}

void batch_fill(struct segment *segment, uint64_t name, const uint64_t *messages, int count)
{
	struct operation *batch = find(segment, name);

	segment_lock(segment);
	for (int i = 0; i < count; i++)
		batch->messages[i] = messages[i];
	batch->unsettled = (unsigned int)count;
	batch->arrived = 1;
	segment_unlock(segment);
}

/* Copies what the operation waits for of one side; false: it is over. */
static bool read_side(struct segment *segment, struct operation *operation, uint64_t owner,
		      unsigned int side, struct moment *at)
{
	bool there;

	segment_lock(segment);
	there = atomic_load(&operation->owner) == owner;
	if (there)
		*at = operation->at[side];
	segment_unlock(segment);
	return there;
}

static bool read_message(struct segment *segment, struct operation *batch, uint64_t owner,
			 unsigned int index, uint64_t *message)
{
	bool there;

	segment_lock(segment);
	there = atomic_load(&batch->owner) == owner;
	*message = batch->messages[index];
	segment_unlock(segment);
	return there;
}

static int64_t end_of_batch(struct segment *segment, struct operation *batch, uint64_t owner,
			    bool wait)
{
	unsigned int count = atomic_load(&batch->unsettled);
	int64_t end_ns = 1, one_ns;
	uint64_t message;

	for (unsigned int i = 0; i < count; i++) {
		if (!read_message(segment, batch, owner, i, &message))
			return 0;
		one_ns = operation_end(segment->hash, message, wait);
		if (one_ns < 0)
			return -1;
		end_ns = one_ns > end_ns ? one_ns : end_ns;
	}
	return end_ns;
}

static int64_t end_of_sides(struct segment *segment, struct operation *operation, uint64_t owner,
			    unsigned int sides, bool wait)
{
	int64_t end_ns = 0, one_ns;
	struct moment at;

	for (unsigned int side = 0; side < sides; side++) {
		if (!read_side(segment, operation, owner, side, &at))
			return 0;
		one_ns = at.ns;
		for (unsigned int i = 0; i < at.count; i++) {
			int64_t after_ns = operation_end(at.ends[i].where, at.ends[i].which, wait);

			if (after_ns < 0)
				return -1;
			if (after_ns + at.ends[i].plus_ns > one_ns)
				one_ns = after_ns + at.ends[i].plus_ns;
		}
		end_ns = one_ns > end_ns ? one_ns : end_ns;
	}
	return end_ns + operation->transfer_ns;
}

static bool wait_for_sides(struct segment *segment, struct operation *operation, uint64_t owner,
			   unsigned int sides)
{
	unsigned int arrived;

	atomic_fetch_add(&operation->waiters, 1);
	while ((arrived = atomic_load(&operation->arrived)) < sides &&
	       atomic_load(&operation->owner) == owner && !segment_aborted(segment))
		word_wait(&operation->arrived, arrived);
	atomic_fetch_sub(&operation->waiters, 1);
	return atomic_load(&operation->owner) == owner;
}

int64_t operation_end(uint64_t where, uint64_t which, bool wait)
{
	struct segment *segment = segment_open(where, 0);
	uint64_t owner = NUMBER(which) + 1;
	struct operation *operation;
	unsigned int sides;
	int64_t end_ns;

	if (!segment) /* all its ranks have left: they waited for its ends */
		return 0;
	operation = find(segment, which);
	sides = sides_of(segment, which);
	end_ns = atomic_load(&operation->end_ns);
	if (atomic_load(&operation->owner) != owner)
		return 0;
	if (end_ns)
		return end_ns;
	if (segment_aborted(segment))
		return clock_ns();
	if (atomic_load(&operation->arrived) < sides) {
		if (!wait)
			return -1;
		if (!wait_for_sides(segment, operation, owner, sides))
			return 0;
		if (segment_aborted(segment))
			return clock_ns();
	}
	end_ns = KIND(which) == BATCH ? end_of_batch(segment, operation, owner, wait)
				      : end_of_sides(segment, operation, owner, sides, wait);
	if (end_ns > 0 && atomic_load(&operation->owner) == owner)
		atomic_store(&operation->end_ns, end_ns);
	return end_ns;
}
