/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where things are in the head of an HTTP/1 message (RFC 9112, sections 3 to 5), if it is a plain one. heads.py is the
 * other side, and says what is plain; llhttp reads whatever is not. Nothing is allocated or kept.
 */
#ifndef OTELGPU_SPANWRITER_HEADS_H
#define OTELGPU_SPANWRITER_HEADS_H

#include <stdint.h>

enum {
	HEAD_BYTES_AT_MOST = 65536,
	HEAD_FIELDS_AT_MOST = 32, /* that are wanted */
	HEAD_VALUE_BYTES = 1024,  /* of a value; what follows is left out */
	BODY_UNKNOWN = -1,	  /* no field says how long the body is, if there is one */
	BODY_CHUNKED = -2,
	BODY_BYTES_AT_MOST = INT32_MAX, /* that are told apart */
};

/* Names that are wanted, in lower case, one behind the other. */
struct head_names {
	const uint8_t *text;
	const uint32_t *ends; /* of each in the text */
	uint32_t count;
	uint32_t unused;
};

struct head_field {
	int32_t name;	    /* its place among those that are wanted */
	int32_t begin, end; /* of its value, white space around it removed */
};

/* Positions are in the data; those of a request line are 0 in a response, and the status in a request. */
struct head {
	int32_t method_end;
	int32_t target_begin, target_end;
	int32_t minor; /* version */
	int32_t status;
	int32_t body;	  /* bytes, by Content-Length, or BODY_* */
	int32_t persists; /* HTTP/1.1, and no option of the connection but keep-alive */
	int32_t fields;
	struct head_field field[HEAD_FIELDS_AT_MOST];
};

/* How many bytes the head has that begins at a position before the end of the data; 0: no plain one, or not all of it. */
int64_t read_head(const uint8_t *data, int64_t position, int64_t size, uint32_t is_request,
		  const struct head_names *names, struct head *head);

#endif
