// SPDX-License-Identifier: Apache-2.0
/*
 * See ingest.h. Both number what they find as they first meet it, by a table of hashes, and then put it in order: of
 * thousands of rows there are few parts, and few owners.
 */
#include "ingest.h"

#include "row.h"
#include "spanwriter.h"

#include <stdbool.h>
#include <stdlib.h>

/* Keys by number, as they were first met. */
struct numbers {
	uint64_t *keys;
	uint32_t *buckets; /* number + 1; 0: free */
	uint32_t count;
	uint32_t bits;
	uint64_t factor;
};

struct ranked {
	uint64_t key;
	uint32_t number;
};

static bool open_numbers(struct numbers *numbers, int64_t n)
{
	*numbers = (struct numbers){ .bits = 3 };
	if (n > INT32_MAX / 2)
		return false;
	while (1LL << numbers->bits < 2 * n)
		numbers->bits++;
	draw_factors(&numbers->factor, 1);
	numbers->keys = malloc(((size_t)n + 1) * sizeof(*numbers->keys));
	numbers->buckets = calloc((size_t)1 << numbers->bits, sizeof(*numbers->buckets));
	return numbers->keys && numbers->buckets;
}

static void close_numbers(struct numbers *numbers)
{
	free(numbers->keys);
	free(numbers->buckets);
}

static uint32_t number_of(struct numbers *numbers, uint64_t key)
{
	uint64_t mask = (1ULL << numbers->bits) - 1;
	uint64_t at = mix(key ^ numbers->factor) >> (64 - numbers->bits);

	for (; numbers->buckets[at]; at = (at + 1) & mask)
		if (numbers->keys[numbers->buckets[at] - 1] == key)
			return numbers->buckets[at] - 1;
	numbers->keys[numbers->count] = key;
	numbers->buckets[at] = ++numbers->count;
	return numbers->count - 1;
}

static int by_key(const void *left, const void *right)
{
	uint64_t one = ((const struct ranked *)left)->key;
	uint64_t other = ((const struct ranked *)right)->key;

	return (one > other) - (one < other);
}

/* The keys in order, each with its number; NULL without memory. */
static struct ranked *ranked_keys(const struct numbers *numbers)
{
	struct ranked *ranked = malloc(((size_t)numbers->count + 1) * sizeof(*ranked));

	if (!ranked)
		return NULL;
	for (uint32_t i = 0; i < numbers->count; i++)
		ranked[i] = (struct ranked){ numbers->keys[i], i };
	qsort(ranked, numbers->count, sizeof(*ranked), by_key);
	return ranked;
}

/* Parts. */

static uint64_t part_key(const uint8_t *row)
{
	bool failed = u32_at(row + STATUS_AT) && row[RETURNED_AT] == 1;

	return (uint64_t)u32_at(row + TGID_AT) << 32 | (uint64_t)u16_at(row + KIND_AT) << 1 |
	       failed;
}

/* The part of each row, and how many rows each part has. */
static void number_rows(struct split *split, struct numbers *numbers, uint32_t *part,
			int64_t *counts)
{
	uint64_t before = 0;
	uint32_t number = 0;

	for (int64_t i = 0; i < split->n; i++) {
		const uint8_t *row = split->rows + i * ROW_BYTES;
		uint64_t key = part_key(row);
		uint8_t flags = split->source[row[CONTEXT_SOURCE_AT]];

		if (!i || key != before) {
			number = number_of(numbers, key);
			before = key;
		}
		if (flags & SOURCE_OWNS_NOTHING)
			split->owners[i] = 0;
		if (flags || split->owners[i] <= 0)
			split->special = 1;
		part[i] = number;
		counts[number]++;
	}
}

/* Where the rows of each part go. */
static void place_parts(struct split *split, const struct ranked *ranked, uint32_t count,
			const int64_t *counts, int64_t *places)
{
	int64_t at = 0;

	for (uint32_t i = 0; i < count; i++) {
		uint32_t number = ranked[i].number;

		split->parts[i] = (struct part){
			.tgid = (uint32_t)(ranked[i].key >> 32),
			.kind = (uint16_t)(ranked[i].key >> 1),
			.failed = ranked[i].key & 1,
			.count = counts[number],
		};
		places[number] = at;
		at += counts[number];
	}
}

static void put_rows(const struct split *split, const uint32_t *part, int64_t *places,
		     int64_t *owners)
{
	for (int64_t i = 0; i < split->n; i++) {
		int64_t to = places[part[i]]++;
		uint8_t *row = split->out + to * ROW_BYTES;

		memcpy(row, split->rows + i * ROW_BYTES, ROW_BYTES);
		row[FAMILY_AT] = split->family;
		owners[to] = split->owners[i];
	}
	memcpy(split->owners, owners, (size_t)split->n * sizeof(*owners));
}

int64_t split_rows(struct split *split)
{
	size_t n = (size_t)split->n + 1;
	struct numbers numbers;
	struct ranked *ranked = NULL;
	uint32_t *part = malloc(n * sizeof(*part));
	int64_t *counts = calloc(n, sizeof(*counts)), *places = malloc(n * sizeof(*places));
	int64_t *owners = malloc(n * sizeof(*owners)), found = -1;

	if (open_numbers(&numbers, split->n) && part && counts && places && owners) {
		number_rows(split, &numbers, part, counts);
		ranked = ranked_keys(&numbers);
	}
	if (ranked) {
		place_parts(split, ranked, numbers.count, counts, places);
		put_rows(split, part, places, owners);
		found = numbers.count;
	}
	free(owners);
	free(places);
	free(counts);
	free(part);
	free(ranked);
	close_numbers(&numbers);
	return found;
}

/* Owners. */

/* Their order is that of numbers with a sign. */
static uint64_t owner_key(int64_t owner)
{
	return (uint64_t)owner ^ 1ULL << 63;
}

/* `ranks`: room for as many numbers as there are owners. */
static void put_owners(const uint8_t *rows, int64_t n, int64_t *codes, struct owner *found,
		       const struct ranked *ranked, uint32_t count, uint32_t *ranks)
{
	for (uint32_t i = 0; i < count; i++) {
		found[i] =
			(struct owner){ .key = (int64_t)(ranked[i].key ^ 1ULL << 63), .first = -1 };
		ranks[ranked[i].number] = i;
	}
	for (int64_t i = 0; i < n; i++) {
		uint32_t rank = ranks[codes[i]];
		struct owner *owner = &found[rank];
		uint64_t start_ns = u64_at(rows + i * ROW_BYTES + START_AT);

		codes[i] = rank;
		if (owner->first < 0)
			owner->first = i;
		if (start_ns > owner->last_ns)
			owner->last_ns = start_ns;
		owner->count++;
	}
}

int64_t group_owners(const uint8_t *rows, const int64_t *owners, int64_t n, int64_t *codes,
		     struct owner *found)
{
	struct numbers numbers;
	struct ranked *ranked = NULL;
	uint32_t *ranks = malloc(((size_t)n + 1) * sizeof(*ranks));
	int64_t count = -1;

	if (open_numbers(&numbers, n) && ranks) {
		uint32_t number = 0;

		for (int64_t i = 0; i < n; i++) {
			if (!i || owners[i] != owners[i - 1])
				number = number_of(&numbers, owner_key(owners[i]));
			codes[i] = number;
		}
		ranked = ranked_keys(&numbers);
	}
	if (ranked) {
		put_owners(rows, n, codes, found, ranked, numbers.count, ranks);
		count = numbers.count;
	}
	free(ranks);
	free(ranked);
	close_numbers(&numbers);
	return count;
}
