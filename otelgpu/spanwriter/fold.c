// SPDX-License-Identifier: Apache-2.0
/*
 * See fold.h. Groups are gathered by counting, put in the order of time, and walked once: a row finds the call
 * that it is equal to in a table of its group, and its thread's latest run by that call.
 */
#include "fold.h"

#include "row.h"
#include "spanwriter.h"

#include <stdbool.h>
#include <stdlib.h>

enum {
	AHEAD = 8, /* rows that are fetched before they are looked at */
};

struct entry {
	uint64_t start_ns;
	uint32_t at; /* position among all rows */
	uint32_t hash;
};

/* Rows that are folded into one so far. */
struct call {
	uint64_t duration_ns;
	uint64_t size;
	uint64_t end_ns;
	uint64_t least_ns;
	uint64_t most_ns;
	int64_t count;
	uint32_t at; /* of the first */
	uint32_t hash;
	uint32_t thread;
	bool merged;
};

/* One that made calls of the group at hand: the latest of them, and its run. */
struct thread {
	uint32_t tid;
	uint32_t call;
	uint32_t run;
};

/* Numbers by hash, open addressing: number + 1, 0: free. Cleared for each group, as far as that one needs it. */
struct table {
	uint32_t *buckets;
	uint32_t mask;
	uint32_t shift; /* of a hash, whose highest bits are its best */
};

struct work {
	const struct folding *folding;
	struct entry *entries; /* of all groups, one's after the other's */
	int64_t *ends;	       /* by group */
	struct entry *spare;   /* this and what follows: for one group */
	struct call *calls;
	struct call *runs;
	struct thread *threads;
	struct table calls_by_hash;
	struct table threads_by_tid;
	uint64_t factors[ROW_WORDS];
	uint8_t words[ROW_WORDS]; /* those of which any bit is compared */
	uint32_t word_count;
};

/* Tables. */

static uint32_t table_bits(int64_t numbers)
{
	uint32_t bits = 3;

	while (1LL << bits < 2 * numbers)
		bits++;
	return bits;
}

static void clear(struct table *table, int64_t numbers)
{
	uint32_t bits = table_bits(numbers);

	memset(table->buckets, 0, sizeof(*table->buckets) << bits);
	table->mask = (uint32_t)((1ULL << bits) - 1);
	table->shift = 32 - bits;
}

/* Comparing rows. */

static const uint64_t *masks_of(const struct work *work, const uint64_t *by_kind,
				const uint8_t *row)
{
	uint32_t kind = u16_at(row + KIND_AT), kinds = work->folding->kinds;

	return by_kind + ROW_WORDS * (size_t)(kind < kinds ? kind : kinds);
}

static uint32_t hash_of(const struct work *work, const uint8_t *row, const uint64_t *masks)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < work->word_count; i++) {
		uint32_t word = work->words[i];

		sum += (u64_at(row + 8 * word) & masks[word]) * work->factors[word];
	}
	return (uint32_t)(sum >> 32);
}

static bool is_equal(const struct work *work, const uint8_t *one, const uint8_t *other,
		     const uint64_t *masks)
{
	uint64_t differs = 0;

	for (uint32_t i = 0; i < work->word_count; i++) {
		uint32_t at = 8 * (uint32_t)work->words[i];

		differs |= (u64_at(one + at) ^ u64_at(other + at)) & masks[work->words[i]];
	}
	return !differs;
}

static const uint8_t *row_at(const struct work *work, uint32_t at)
{
	return work->folding->rows + (size_t)at * ROW_BYTES;
}

/* The order of time. */

static struct entry *put_merged(const struct entry *left, const struct entry *right,
				const struct entry *end, struct entry *out)
{
	const struct entry *left_end = right;

	while (left < left_end && right < end) {
		bool later = right->start_ns < left->start_ns;

		*out++ = later ? *right : *left;
		right += later;
		left += !later;
	}
	while (left < left_end)
		*out++ = *left++;
	while (right < end)
		*out++ = *right++;
	return out;
}

static struct entry *stretch_end(struct entry *at, struct entry *end)
{
	for (at++; at < end; at++)
		if (at->start_ns < at[-1].start_ns)
			break;
	return at;
}

/* Stable; `entries` or `spare`, whichever has the result. Calls come in few stretches that are in order. */
static struct entry *in_time(struct entry *entries, struct entry *spare, int64_t count)
{
	while (stretch_end(entries, entries + count) < entries + count) {
		struct entry *end = entries + count, *out = spare, *before = entries;

		for (struct entry *left = entries; left < end;) {
			struct entry *right = stretch_end(left, end);
			struct entry *next = right < end ? stretch_end(right, end) : end;

			out = put_merged(left, right, next, out);
			left = next;
		}
		entries = spare;
		spare = before;
	}
	return entries;
}

/* Folding. */

static bool is_sized(const struct folding *folding, const uint8_t *row)
{
	uint16_t kind = u16_at(row + KIND_AT);

	return kind < 64 && folding->sized >> kind & 1;
}

static struct call call_of(const struct work *work, const struct entry *entry)
{
	const struct runs *before = work->folding->before;
	const uint8_t *row = row_at(work, entry->at);
	uint64_t duration_ns = u64_at(row + DURATION_AT);
	struct call call = {
		.duration_ns = duration_ns,
		.size = u64_at(row + work->folding->size_offset),
		.end_ns = entry->start_ns + duration_ns,
		.least_ns = duration_ns,
		.most_ns = duration_ns,
		.count = 1,
		.at = entry->at,
		.hash = entry->hash,
	};

	if (before) {
		call.end_ns = before->end_ns[entry->at];
		call.least_ns = before->least_ns[entry->at];
		call.most_ns = before->most_ns[entry->at];
		call.count = before->count[entry->at];
		call.merged = before->merged[entry->at];
	}
	return call;
}

/* Of one that is equal, and merged or not as it is. */
static void add(struct call *call, const struct call *other)
{
	call->duration_ns += other->duration_ns;
	call->size += other->size;
	call->count = (int64_t)((uint64_t)call->count + (uint64_t)other->count);
	if (other->end_ns > call->end_ns)
		call->end_ns = other->end_ns;
	if (other->least_ns < call->least_ns)
		call->least_ns = other->least_ns;
	if (other->most_ns > call->most_ns)
		call->most_ns = other->most_ns;
}

/* The thread with this id, which is the next one if there is none yet. */
static uint32_t thread_with(struct work *work, uint32_t tid, uint32_t *count)
{
	struct table *table = &work->threads_by_tid;
	uint32_t at = (uint32_t)(tid * work->factors[0] >> 32) >> table->shift;

	for (; table->buckets[at]; at = (at + 1) & table->mask)
		if (work->threads[table->buckets[at] - 1].tid == tid)
			return table->buckets[at] - 1;
	work->threads[*count] = (struct thread){ .tid = tid, .call = UINT32_MAX };
	table->buckets[at] = ++*count;
	return *count - 1;
}

/* The place in the table of what is equal to `one` among `calls`, or where it goes. */
static uint32_t *find(struct work *work, const struct call *calls, const struct call *one,
		      const uint64_t *by_kind)
{
	struct table *table = &work->calls_by_hash;
	const uint8_t *row = row_at(work, one->at);
	const uint64_t *masks = masks_of(work, by_kind, row);
	uint32_t at = one->hash >> table->shift;

	for (; table->buckets[at]; at = (at + 1) & table->mask) {
		const struct call *other = &calls[table->buckets[at] - 1];

		if (other->hash == one->hash && other->merged == one->merged &&
		    is_equal(work, row_at(work, other->at), row, masks))
			break;
	}
	return &table->buckets[at];
}

/* One row each. */
static int64_t keep_all(struct work *work, const struct entry *entries, int64_t count)
{
	for (int64_t i = 0; i < count; i++)
		work->calls[i] = call_of(work, &entries[i]);
	return count;
}

/* Rows of a group into `work->calls`: runs if they are few, else one for all that are equal. */
static int64_t fold_equal(struct work *work, const struct entry *entries, int64_t count)
{
	int64_t runs = 0, most_runs = work->folding->runs_kept;
	uint32_t calls = 0, threads = 0;

	clear(&work->calls_by_hash, count);
	clear(&work->threads_by_tid, count);
	for (int64_t i = 0; i < count; i++) {
		struct call one = call_of(work, &entries[i]);
		uint32_t *bucket = find(work, work->calls, &one, work->folding->same), call;
		struct thread *thread;

		if (i + AHEAD < count) {
			__builtin_prefetch(row_at(work, entries[i + AHEAD].at));
			__builtin_prefetch(row_at(work, entries[i + AHEAD].at) + ROW_BYTES / 2);
		}
		if (*bucket) {
			call = *bucket - 1;
			add(&work->calls[call], &one);
		} else {
			call = calls++;
			*bucket = calls;
			one.thread =
				thread_with(work, u32_at(row_at(work, one.at) + TID_AT), &threads);
			work->calls[call] = one;
		}
		if (runs > most_runs)
			continue;
		thread = &work->threads[work->calls[call].thread];
		if (thread->call == call) {
			add(&work->runs[thread->run], &one);
		} else {
			thread->call = call;
			thread->run = (uint32_t)runs++;
			if (runs <= most_runs)
				work->runs[thread->run] = one;
		}
	}
	if (runs > most_runs)
		return calls;
	memcpy(work->calls, work->runs, (size_t)runs * sizeof(*work->runs));
	return runs;
}

/* Of `count` rows of a group those beyond the limit into one for what is alike; how many there are then. */
static int64_t merge_beyond(struct work *work, int64_t count)
{
	int64_t limit = work->folding->limit, merged = 0;
	struct call *beyond;

	if (count <= limit)
		return count;
	beyond = work->calls + limit;
	clear(&work->calls_by_hash, count - limit);
	for (int64_t i = 0; i < count - limit; i++) {
		struct call one = beyond[i];
		const uint8_t *row = row_at(work, one.at);
		uint32_t *bucket;

		one.merged = true;
		one.hash = hash_of(work, row, masks_of(work, work->folding->alike, row));
		bucket = find(work, beyond, &one, work->folding->alike);
		if (*bucket) {
			add(&beyond[*bucket - 1], &one);
		} else {
			beyond[merged++] = one;
			*bucket = (uint32_t)merged;
		}
	}
	return limit + merged;
}

static void put(const struct work *work, const struct call *call, int64_t at, uint8_t *rows,
		int64_t *first, const struct runs *runs)
{
	const uint8_t *row = row_at(work, call->at);
	uint8_t *out = rows + at * ROW_BYTES;

	memcpy(out, row, ROW_BYTES);
	memcpy(out + DURATION_AT, &call->duration_ns, sizeof(call->duration_ns));
	if (is_sized(work->folding, row))
		memcpy(out + work->folding->size_offset, &call->size, sizeof(call->size));
	first[at] = call->at;
	runs->count[at] = call->count;
	runs->end_ns[at] = call->end_ns;
	runs->least_ns[at] = call->least_ns;
	runs->most_ns[at] = call->most_ns;
	runs->merged[at] = call->merged;
}

/* Before the groups. */

static void prepare_hash(struct work *work)
{
	const struct folding *folding = work->folding;

	draw_factors(work->factors, ROW_WORDS);
	for (uint32_t word = 0; word < ROW_WORDS; word++) {
		uint64_t compared = 0;

		for (size_t kind = 0; kind <= folding->kinds; kind++)
			compared |= folding->same[kind * ROW_WORDS + word];
		if (compared)
			work->words[work->word_count++] = (uint8_t)word;
	}
}

/* Rows to entries, group after group; how many the largest group has. */
static int64_t gather(struct work *work)
{
	const struct folding *folding = work->folding;
	int64_t largest = 0, begin = 0;

	for (int64_t i = 0; i < folding->n; i++)
		work->ends[folding->group[i]]++;
	for (int64_t group = 0; group < folding->groups; group++) {
		int64_t count = work->ends[group];

		largest = count > largest ? count : largest;
		work->ends[group] = begin; /* for as long as it is filled */
		begin += count;
	}
	for (int64_t i = 0; i < folding->n; i++) {
		const uint8_t *row = row_at(work, (uint32_t)i);

		work->entries[work->ends[folding->group[i]]++] = (struct entry){
			.start_ns = u64_at(row + START_AT),
			.at = (uint32_t)i,
			.hash = hash_of(work, row, masks_of(work, folding->same, row)),
		};
	}
	return largest;
}

static bool make_room(struct work *work, int64_t largest)
{
	size_t rows = (size_t)largest, buckets = (size_t)1 << table_bits(largest);
	size_t runs = rows;

	if (work->folding->runs_kept < largest)
		runs = work->folding->runs_kept > 0 ? (size_t)work->folding->runs_kept : 1;
	work->spare = malloc(rows * sizeof(*work->spare));
	work->calls = malloc(rows * sizeof(*work->calls));
	work->runs = malloc(runs * sizeof(*work->runs));
	work->threads = malloc(rows * sizeof(*work->threads));
	work->calls_by_hash.buckets = malloc(buckets * sizeof(uint32_t));
	work->threads_by_tid.buckets = malloc(buckets * sizeof(uint32_t));
	return work->spare && work->calls && work->runs && work->threads &&
	       work->calls_by_hash.buckets && work->threads_by_tid.buckets;
}

int64_t fold_rows(const struct folding *folding, uint8_t *rows, int64_t *first,
		  const struct runs *runs)
{
	struct work work = { .folding = folding };
	int64_t written = -1, begin = 0;

	if (folding->n > INT32_MAX) /* tables are twice as large */
		goto out;
	work.entries = malloc(((size_t)folding->n + 1) * sizeof(*work.entries));
	work.ends = calloc((size_t)folding->groups + 1, sizeof(*work.ends));
	if (!work.entries || !work.ends)
		goto out;
	prepare_hash(&work);
	if (!make_room(&work, gather(&work) + 1))
		goto out;
	written = 0;
	for (int64_t group = 0; group < folding->groups; begin = work.ends[group++]) {
		int64_t count = work.ends[group] - begin;
		struct entry *entries = in_time(work.entries + begin, work.spare, count);

		if (folding->runs_kept == EVERY_ROW_STAYS)
			count = keep_all(&work, entries, count);
		else
			count = fold_equal(&work, entries, count);
		count = merge_beyond(&work, count);
		for (int64_t i = 0; i < count; i++)
			put(&work, &work.calls[i], written++, rows, first, runs);
	}
out:
	free(work.entries);
	free(work.ends);
	free(work.spare);
	free(work.calls);
	free(work.runs);
	free(work.threads);
	free(work.calls_by_hash.buckets);
	free(work.threads_by_tid.buckets);
	return written;
}
