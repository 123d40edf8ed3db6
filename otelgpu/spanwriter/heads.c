// SPDX-License-Identifier: Apache-2.0
/* See heads.h. */
#include "heads.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

enum {
	NAME = 1, /* may be in a field's name: tchar, RFC 9110, section 5.6.2 */
	VALUE = 2, /* ... in its value, and in a reason phrase: RFC 9110, section 5.5; RFC 9112, section 4 */
	TARGET = 4, /* ... in a request target that is a path with a query */
	DIGIT = 8,
};

#define ALL  (NAME | VALUE | TARGET)
#define REST (VALUE | TARGET)

static const uint8_t CLASS[256] = {
	['\t'] = VALUE,	      [' '] = VALUE,
	['!'] = ALL,	      ['"'] = REST,
	['#'] = NAME | VALUE, ['$' ... '\''] = ALL,
	['(' ... ')'] = REST, ['*' ... '+'] = ALL,
	[','] = REST,	      ['-' ... '.'] = ALL,
	['/'] = REST,	      ['0' ... '9'] = ALL | DIGIT,
	[':' ... '@'] = REST, ['A' ... 'Z'] = ALL,
	['[' ... ']'] = REST, ['^' ... '`'] = ALL,
	['a' ... 'z'] = ALL,  ['{'] = REST,
	['|'] = ALL,	      ['}'] = REST,
	['~'] = ALL,	      [0x80 ... 0xff] = VALUE,
};

struct cursor {
	const uint8_t *at, *end;
};

static bool is_next(struct cursor *cursor, const char *text)
{
	size_t size = strlen(text);

	if ((size_t)(cursor->end - cursor->at) < size || memcmp(cursor->at, text, size))
		return false;
	cursor->at += size;
	return true;
}

/* Past all that is of a class; whether anything was. */
static bool pass(struct cursor *cursor, uint8_t of)
{
	const uint8_t *from = cursor->at;

	while (cursor->at < cursor->end && CLASS[*cursor->at] & of)
		cursor->at++;
	return cursor->at > from;
}

static bool read_version(struct cursor *cursor, struct head *head)
{
	if (!is_next(cursor, "HTTP/1.") || cursor->at == cursor->end ||
	    (*cursor->at != '0' && *cursor->at != '1'))
		return false;
	head->minor = *cursor->at++ - '0';
	return true;
}

static bool read_request_line(struct cursor *cursor, const uint8_t *data, struct head *head)
{
	while (cursor->at < cursor->end && *cursor->at >= 'A' && *cursor->at <= 'Z')
		cursor->at++;
	head->method_end = (int32_t)(cursor->at - data);
	if (!is_next(cursor, " /"))
		return false;
	head->target_begin = head->method_end + 1;
	pass(cursor, TARGET);
	head->target_end = (int32_t)(cursor->at - data);
	return is_next(cursor, " ") && read_version(cursor, head) && is_next(cursor, "\r\n");
}

static bool read_status_line(struct cursor *cursor, struct head *head)
{
	if (!read_version(cursor, head) || !is_next(cursor, " ") || cursor->end - cursor->at < 3)
		return false;
	for (int i = 0; i < 3; i++, cursor->at++) {
		if (!(CLASS[*cursor->at] & DIGIT))
			return false;
		head->status = 10 * head->status + (*cursor->at - '0');
	}
	if (head->status < 200) /* others follow an interim one, or another protocol does */
		return false;
	if (is_next(cursor, " "))
		pass(cursor, VALUE);
	return is_next(cursor, "\r\n");
}

static uint8_t lower(uint8_t letter)
{
	return letter >= 'A' && letter <= 'Z' ? (uint8_t)(letter | 0x20) : letter;
}

/* Whether some text is that one, which is in lower case. */
static bool is_same(const uint8_t *text, const uint8_t *lower_case, size_t size)
{
	for (size_t i = 0; i < size; i++)
		if (lower(text[i]) != lower_case[i])
			return false;
	return true;
}

static bool is_text(const uint8_t *text, size_t size, const char *lower_case)
{
	return size == strlen(lower_case) && is_same(text, (const uint8_t *)lower_case, size);
}

static int32_t place_of(const struct head_names *names, const uint8_t *name, size_t size)
{
	uint32_t begin = 0;

	for (uint32_t i = 0; i < names->count; begin = names->ends[i++])
		if (names->ends[i] - begin == size && is_same(name, names->text + begin, size))
			return (int32_t)i;
	return -1;
}

/* A Content-Length; whether it is a plain one. */
static bool read_length(const uint8_t *value, size_t size, struct head *head)
{
	int64_t length = 0;

	if (size > 18)
		return false;
	for (size_t i = 0; i < size; i++) {
		if (!(CLASS[value[i]] & DIGIT))
			return false;
		length = 10 * length + (value[i] - '0');
	}
	head->body = length < BODY_BYTES_AT_MOST ? (int32_t)length : BODY_BYTES_AT_MOST;
	return true;
}

/*
 * Fields by which the end of a message or of the connection is known, or that another protocol follows: whether this
 * one is plain.
 */
static bool is_plain(const uint8_t *name, size_t name_size, const uint8_t *value, size_t size,
		     struct head *head)
{
	if (is_text(name, name_size, "content-length"))
		return head->body == BODY_UNKNOWN && read_length(value, size, head);
	if (is_text(name, name_size, "transfer-encoding")) {
		if (head->body != BODY_UNKNOWN || !is_text(value, size, "chunked"))
			return false;
		head->body = BODY_CHUNKED;
	} else if (is_text(name, name_size, "connection")) {
		head->persists &= is_text(value, size, "keep-alive");
	}
	return !is_text(name, name_size, "upgrade");
}

/* A field, its line's end included. */
static bool read_field(struct cursor *cursor, const uint8_t *data, const struct head_names *names,
		       struct head *head)
{
	const uint8_t *name = cursor->at, *begin, *end;
	size_t name_size;
	int32_t place;

	pass(cursor, NAME);
	name_size = (size_t)(cursor->at - name);
	if (!name_size || !is_next(cursor, ":"))
		return false;
	while (cursor->at < cursor->end && (*cursor->at == ' ' || *cursor->at == '\t'))
		cursor->at++;
	begin = cursor->at;
	if (!pass(cursor, VALUE))
		return false;
	end = cursor->at;
	if (!is_next(cursor, "\r\n") ||
	    !is_plain(name, name_size, begin, (size_t)(end - begin), head))
		return false;
	place = place_of(names, name, name_size);
	if (place < 0)
		return true;
	if (head->fields == HEAD_FIELDS_AT_MOST)
		return false;
	if (end - begin > HEAD_VALUE_BYTES)
		end = begin + HEAD_VALUE_BYTES;
	while (end > begin && (end[-1] == ' ' || end[-1] == '\t'))
		end--;
	head->field[head->fields++] = (struct head_field){
		.name = place,
		.begin = (int32_t)(begin - data),
		.end = (int32_t)(end - data),
	};
	return true;
}

int64_t read_head(const uint8_t *data, int64_t position, int64_t size, uint32_t is_request,
		  const struct head_names *names, struct head *head)
{
	struct cursor cursor = { data + position, data + size };

	if (size > INT32_MAX)
		return 0;
	if (size - position > HEAD_BYTES_AT_MOST)
		cursor.end = cursor.at + HEAD_BYTES_AT_MOST;
	memset(head, 0, offsetof(struct head, field));
	if (!(is_request ? read_request_line(&cursor, data, head)
			 : read_status_line(&cursor, head)))
		return 0;
	head->body = BODY_UNKNOWN;
	head->persists = head->minor == 1;
	while (!is_next(&cursor, "\r\n"))
		if (!read_field(&cursor, data, names, head))
			return 0;
	return cursor.at - (data + position);
}
