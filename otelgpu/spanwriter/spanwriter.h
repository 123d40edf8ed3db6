/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of 128 bytes to OTLP spans: which rows look alike (forms), and the bytes of their spans.
 *
 * It knows no vendor and no family: which bytes of a row are compared or reported, and under which key, is
 * given. library.py is the other side of these structs. Only find_forms allocates, and frees it again; nothing
 * is kept between calls. Whoever calls sees to it that columns are as long as rows, and parents are there.
 */
#ifndef OTELGPU_SPANWRITER_H
#define OTELGPU_SPANWRITER_H

#include <stdint.h>

enum {
	ROW_BYTES =
		128, /* of struct record_head and what follows it: otelgpu/model/operations.py */
	MOST_KEYS = 32,
	LEAD_ROOM = 128,
};

/* A value of a row: ((eight bytes at `offset` >> shift & mask) ^ sign) - sign. */
struct place {
	uint64_t mask;
	uint64_t sign;	/* the highest bit of a signed type; else 0 */
	uint8_t offset; /* at most ROW_BYTES - 8 */
	uint8_t shift;
	uint8_t unused[6];
};

/* Where a number is. */
enum number_type {
	TYPE_ROW,
	TYPE_COUNT, /* the next ones are of runs, and in no row */
	TYPE_SUM_S, /* seconds, as double */
	TYPE_LEAST_S,
	TYPE_MOST_S,
	TYPE_MERGED,
};

/* Of which rows a number is reported. */
enum number_holds {
	HOLDS_EQUAL,  /* of those that are not merged */
	HOLDS_SINGLE, /* of those that are one call */
	HOLDS_ALWAYS,
	HOLDS_SEVERAL, /* of those that are more than one call */
	HOLDS_MERGED,
};

/* What forms are told apart by, in rows whose kind has its bit in `kinds`; elsewhere it is 0. */
struct form_key {
	struct place value;
	uint64_t kinds;
	uint8_t condition; /* offset of a byte that must be 1; ROW_BYTES: there is none */
	uint8_t unused[7];
};

/*
 * An attribute with a number. `lead`: its field up to the value's tag, with zeros for both lengths, and
 * readable for LEAD_ROOM bytes.
 */
struct number {
	struct place value;
	uint64_t absent; /* the value that says nothing, in 64 bits */
	const uint8_t *lead;
	uint16_t lead_bytes;
	uint8_t type;
	uint8_t holds;
	uint8_t has_absent;
	uint8_t unused[3];
};

/* Spans of the rows `chosen` (all, in their order, if NULL), each under the parent `group[row]`. */
struct spans {
	const uint8_t *rows;
	const int64_t *chosen;
	const int64_t *group;
	const uint8_t *trace_ids; /* of parents: 16 bytes each */
	const uint8_t *span_ids;  /* 8 bytes each; zeros: the span has no parent */
	const uint32_t *flags;
	const uint32_t *form; /* by row */
	const uint8_t
		*texts; /* what spans of a form have in common, one form's after the other's */
	const uint64_t *text_ends; /* by form, where its part ends */
	const struct number *numbers;
	const int64_t *count; /* of runs, by row; all NULL where each row is a call */
	const uint64_t *end_ns;
	const uint64_t *least_ns;
	const uint64_t *most_ns;
	const uint8_t *merged;
	uint64_t seed;
	uint64_t unix_offset_ns;
	uint32_t number_count;
	uint32_t unused;
};

/*
 * The form of each of `n` rows, numbered as they are first met, and the first row of each form.
 * Returns how many there are; -1 without memory.
 */
int64_t find_forms(const uint8_t *rows, int64_t n, const struct form_key *keys, uint32_t key_count,
		   uint8_t kind_offset, uint32_t *form, int64_t *first);

/*
 * Spans from `first` on, before `last`, as fields of ScopeSpans, as many as surely fit in `room` bytes.
 * Returns the first one that was not written, and the bytes that were.
 */
int64_t write_spans(const struct spans *spans, int64_t first, int64_t last, uint8_t *out,
		    uint64_t room, uint64_t *written);

#endif
