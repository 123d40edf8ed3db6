// SPDX-License-Identifier: Apache-2.0
/*
 * See spanwriter.h. Protobuf: https://protobuf.dev/programming-guides/encoding/; the message is Span of
 * opentelemetry/proto/trace/v1/trace.proto. Integers are the shortest varints.
 */
#include "spanwriter.h"

#include "row.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum {
	SPAN_ROOM = 11 + 18 + 10 + 10 + 9 + 9 + 6, /* tag and length, ids, times, flags */
	NUMBER_ROOM = LEAD_ROOM + 10,
};

static uint64_t value_at(const uint8_t *row, const struct place *place)
{
	uint64_t bits = u64_at(row + place->offset) >> place->shift & place->mask;

	return (bits ^ place->sign) - place->sign;
}

/* Forms. */

struct forms {
	uint64_t *values;  /* key_count of each form */
	uint32_t *buckets; /* form + 1; 0: free */
	uint32_t bits;	   /* of their number */
	int64_t count;
	int64_t room;
	uint32_t key_count;
	uint64_t factors[MOST_KEYS];
};

/* Where a form with these values is looked for first. */
static uint64_t bucket_of(const struct forms *forms, const uint64_t *values)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < forms->key_count; i++)
		sum += values[i] * forms->factors[i];
	return sum >> (64 - forms->bits);
}

static uint64_t next_bucket(const struct forms *forms, uint64_t bucket)
{
	return (bucket + 1) & ((1ULL << forms->bits) - 1);
}

/* Twice the room. */
static bool grow(struct forms *forms)
{
	int64_t room = forms->room ? 2 * forms->room : 256;
	uint64_t *values =
		realloc(forms->values, (size_t)room * forms->key_count * sizeof(*values));

	if (!values)
		return false;
	forms->values = values;
	free(forms->buckets);
	forms->bits = (uint32_t)(64 - __builtin_clzll((uint64_t)room)); /* twice as many */
	forms->buckets = calloc(1ULL << forms->bits, sizeof(*forms->buckets));
	if (!forms->buckets)
		return false;
	forms->room = room;
	for (int64_t form = 0; form < forms->count; form++) {
		uint64_t at = bucket_of(forms, values + form * forms->key_count);

		while (forms->buckets[at])
			at = next_bucket(forms, at);
		forms->buckets[at] = (uint32_t)form + 1;
	}
	return true;
}

/* The form with these values, which is the next one if there is none yet; -1 without memory. */
static int64_t form_with(struct forms *forms, const uint64_t *values)
{
	size_t bytes = forms->key_count * sizeof(*values);
	uint64_t at = bucket_of(forms, values);
	uint32_t found;

	for (; (found = forms->buckets[at]); at = next_bucket(forms, at))
		if (!memcmp(forms->values + (found - 1) * (uint64_t)forms->key_count, values,
			    bytes))
			return found - 1;
	if (forms->count == forms->room) {
		if (!grow(forms))
			return -1;
		for (at = bucket_of(forms, values); forms->buckets[at];)
			at = next_bucket(forms, at);
	}
	memcpy(forms->values + forms->count * forms->key_count, values, bytes);
	forms->buckets[at] = (uint32_t)forms->count + 1;
	return forms->count++;
}

int64_t find_forms(const uint8_t *rows, int64_t n, const struct form_key *keys, uint32_t key_count,
		   uint8_t kind_offset, uint32_t *form, int64_t *first)
{
	struct forms forms = { .key_count = key_count };
	uint64_t values[MOST_KEYS];
	int64_t count = -1;

	if (key_count > MOST_KEYS || !grow(&forms))
		goto out;
	draw_factors(forms.factors, key_count);
	for (int64_t i = 0; i < n; i++) {
		const uint8_t *row = rows + i * ROW_BYTES;
		uint16_t kind = u16_at(row + kind_offset);
		uint64_t bit = kind < 64 ? 1ULL << kind : 0;
		int64_t before = forms.count, found;

		for (uint32_t k = 0; k < key_count; k++) {
			const struct form_key *key = &keys[k];
			bool counts = (key->kinds & bit) &&
				      (key->condition >= ROW_BYTES || row[key->condition] == 1);

			values[k] = counts ? value_at(row, &key->value) : 0;
		}
		found = form_with(&forms, values);
		if (found < 0)
			goto out;
		if (forms.count != before)
			first[found] = i;
		form[i] = (uint32_t)found;
	}
	count = forms.count;
out:
	free(forms.values);
	free(forms.buckets);
	return count;
}

/* Spans. */

static uint32_t varint_bytes(uint64_t value)
{
	/* Seven bits a byte: 1 for 0, 10 for what has its highest bit. */
	return (uint32_t)(9 * (64 - __builtin_clzll(value | 1)) + 64) / 64;
}

static uint8_t *put_varint(uint8_t *out, uint64_t value)
{
	while (value > 0x7f) {
		*out++ = (uint8_t)(value | 0x80);
		value >>= 7;
	}
	*out++ = (uint8_t)value;
	return out;
}

static uint8_t *put_word(uint8_t *out, uint64_t value)
{
	memcpy(out, &value, sizeof(value));
	return out + sizeof(value);
}

struct row {
	const uint8_t *bytes;
	const uint8_t *text;
	uint64_t text_bytes;
	uint64_t end_ns;
	int64_t at; /* its position among all rows */
	int64_t parent;
	int64_t count;
	bool merged;
};

static struct row row_at(const struct spans *spans, int64_t position)
{
	int64_t at = spans->chosen ? spans->chosen[position] : position;
	const uint8_t *bytes = spans->rows + at * ROW_BYTES;
	uint32_t form = spans->form[at];
	uint64_t text = form ? spans->text_ends[form - 1] : 0;

	return (struct row){
		.bytes = bytes,
		.text = spans->texts + text,
		.text_bytes = spans->text_ends[form] - text,
		.end_ns = spans->end_ns ? spans->end_ns[at]
					: u64_at(bytes + START_AT) + u64_at(bytes + DURATION_AT),
		.at = at,
		.parent = spans->group[at],
		.count = spans->count ? spans->count[at] : 1,
		.merged = spans->merged && spans->merged[at],
	};
}

static bool holds(const struct row *row, uint8_t what)
{
	switch (what) {
	case HOLDS_EQUAL:
		return !row->merged;
	case HOLDS_SINGLE:
		return row->count == 1;
	case HOLDS_SEVERAL:
		return row->count > 1;
	case HOLDS_MERGED:
		return row->merged;
	default:
		return true;
	}
}

/* Of a run, which is in no row: the bits of a double, or an integer. */
static uint64_t number_of_run(const struct spans *spans, const struct row *row, uint8_t type)
{
	uint64_t ns;
	double seconds;

	switch (type) {
	case TYPE_COUNT:
		return (uint64_t)row->count;
	case TYPE_MERGED:
		return row->merged;
	case TYPE_SUM_S:
		ns = u64_at(row->bytes + DURATION_AT);
		break;
	case TYPE_LEAST_S:
		ns = spans->least_ns[row->at];
		break;
	default:
		ns = spans->most_ns[row->at];
	}
	seconds = (double)ns / 1e9;
	memcpy(&ns, &seconds, sizeof(ns));
	return ns;
}

/* A field of Span.attributes; all lengths in it are below 128. */
static uint8_t *put_number(uint8_t *out, const struct number *number, uint64_t value)
{
	uint32_t lead = number->lead_bytes, bytes;
	uint8_t *body = out + lead;

	memcpy(out, number->lead, LEAD_ROOM / 2);
	if (lead > LEAD_ROOM / 2)
		memcpy(out + LEAD_ROOM / 2, number->lead + LEAD_ROOM / 2, LEAD_ROOM / 2);
	if (number->type >= TYPE_SUM_S && number->type <= TYPE_MOST_S) {
		bytes = sizeof(value);
		memcpy(body, &value, sizeof(value));
	} else {
		bytes = (uint32_t)(put_varint(body, value) - body);
	}
	out[1] = (uint8_t)(lead - 2 + bytes); /* of the KeyValue */
	out[lead - 2] =
		(uint8_t)(1 + bytes); /* of the AnyValue, whose tag is the lead's last byte */
	return body + bytes;
}

static uint64_t own_id(const struct spans *spans, const uint8_t *row)
{
	uint64_t words = (uint64_t)u32_at(row + TID_AT) | (uint64_t)u16_at(row + API_AT) << 32;
	uint64_t id = mix(mix(spans->seed ^ u64_at(row + START_AT)) ^ words);

	return __builtin_bswap64(id ? id : 1);
}

static uint8_t *put_body(uint8_t *out, const struct spans *spans, const struct row *row)
{
	uint32_t flags = spans->flags[row->parent];
	uint64_t parent = u64_at(spans->span_ids + 8 * row->parent);

	*out++ = 0x0a;
	*out++ = 16;
	memcpy(out, spans->trace_ids + 16 * row->parent, 16);
	out += 16;
	*out++ = 0x12;
	*out++ = 8;
	out = put_word(out, own_id(spans, row->bytes));
	if (parent) {
		*out++ = 0x22;
		*out++ = 8;
		out = put_word(out, parent);
	}
	*out++ = 0x39;
	out = put_word(out, u64_at(row->bytes + START_AT) + spans->unix_offset_ns);
	*out++ = 0x41;
	out = put_word(out, row->end_ns + spans->unix_offset_ns);
	if (flags) {
		*out++ = 0x85;
		*out++ = 0x01;
		memcpy(out, &flags, sizeof(flags));
		out += sizeof(flags);
	}
	memcpy(out, row->text, row->text_bytes);
	out += row->text_bytes;
	for (uint32_t i = 0; i < spans->number_count; i++) {
		const struct number *number = &spans->numbers[i];
		uint64_t value;

		if (!holds(row, number->holds))
			continue;
		if (number->type == TYPE_ROW)
			value = value_at(row->bytes, &number->value);
		else
			value = number_of_run(spans, row, number->type);
		if (!number->has_absent || value != number->absent)
			out = put_number(out, number, value);
	}
	return out;
}

int64_t write_spans(const struct spans *spans, int64_t first, int64_t last, uint8_t *out,
		    uint64_t room, uint64_t *written)
{
	uint8_t *at = out;
	int64_t i;

	for (i = first; i < last; i++) {
		struct row row = row_at(spans, i);
		uint64_t most =
			SPAN_ROOM + row.text_bytes + (uint64_t)spans->number_count * NUMBER_ROOM;
		/* Its length is not known before it is written: a varint of a width that holds the most. */
		uint32_t width = varint_bytes(most);
		uint8_t *body = at + 1 + width, *end;
		uint64_t length;

		if (most > room - (uint64_t)(at - out))
			break;
		end = put_body(body, spans, &row);
		length = (uint64_t)(end - body);
		*at++ = 0x12; /* ScopeSpans.spans */
		for (; width > 1; width--, length >>= 7)
			*at++ = (uint8_t)(length | 0x80);
		*at = (uint8_t)length;
		at = end;
	}
	*written = (uint64_t)(at - out);
	return i;
}
