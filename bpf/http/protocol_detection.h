/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Which protocol a connection may have, by the first bytes of either direction. Coarse: it filters out what cannot
 * be a known protocol; user space decides. Pure functions of bytes.
 */
#ifndef OTELGPU_PROTOCOL_DETECTION_H
#define OTELGPU_PROTOCOL_DETECTION_H

#include "http.h"

#define PREFIX_BYTES	16 /* looked at; a power of two */
#define ZMTP_SHORT_HEAD 2  /* bytes of flags and size before a short frame's body */

struct prefix {
	__u8 bytes[PREFIX_BYTES];
	__u32 count; /* of bytes: as many as the call moved and can be read */
	__u32 moved; /* by the call */
	__u8 after_frame; /* the byte behind a short ZMTP frame, if `moved` has one that can be read; else 0xff */
	__u8 reserved[3];
};

enum detected_protocol {
	PROTOCOL_UNDECIDED =
		0,	    /* so far: the connection was found open, in the middle of a message */
	PROTOCOL_HTTP1 = 1, /* HTTP/1 */
	PROTOCOL_HTTP2 = 2,
	PROTOCOL_TLS = 3,
	PROTOCOL_UNKNOWN = 4,
	PROTOCOL_ZMTP = 5,
};

/* Of frames, between which those of other messages come: one whose head is not captured costs those after it. */
static __always_inline bool is_framed(__u8 protocol)
{
	return protocol == PROTOCOL_HTTP2 || protocol == PROTOCOL_ZMTP;
}

static __always_inline bool is_capital(__u8 byte)
{
	return byte >= 'A' && byte <= 'Z';
}

/*
 * RFC 9112, 3 and 4: a method or `HTTP/`, as far as it was read; RFC 9113, 3.4: the preface `PRI * HTTP/2.0`.
 * Capital letters, of which the fourth may be a space: `GET `, `POST`, not `SSH-`.
 */
static __always_inline bool starts_http1(const struct prefix *prefix)
{
	return is_capital(prefix->bytes[0]) &&
	       (prefix->count < 2 || is_capital(prefix->bytes[1])) &&
	       (prefix->count < 3 || is_capital(prefix->bytes[2])) &&
	       (prefix->count < 4 || is_capital(prefix->bytes[3]) || prefix->bytes[3] == ' ');
}

/* RFC 9112, 2.2: empty lines before a request are ignored. */
static __always_inline bool starts_empty_line(const struct prefix *prefix)
{
	return prefix->bytes[0] == '\r' && (prefix->count < 2 || prefix->bytes[1] == '\n');
}

static __always_inline bool starts_preface(const struct prefix *prefix)
{
	return prefix->count >= 4 && prefix->bytes[0] == 'P' && prefix->bytes[1] == 'R' &&
	       prefix->bytes[2] == 'I' && prefix->bytes[3] == ' ';
}

/* RFC 9113, 4.1 and 6: types of frames. */
enum {
	HTTP2_DATA = 0,
	HTTP2_HEADERS = 1,
	HTTP2_PRIORITY = 2,
	HTTP2_RST_STREAM = 3,
	HTTP2_SETTINGS = 4,
	HTTP2_PUSH_PROMISE = 5,
	HTTP2_PING = 6,
	HTTP2_GOAWAY = 7,
	HTTP2_WINDOW_UPDATE = 8,
	HTTP2_CONTINUATION = 9,
};

/* RFC 9113, 4.1: of its payload. */
static __always_inline __u32 http2_frame_length(const struct prefix *prefix)
{
	return prefix->bytes[0] << 16 | prefix->bytes[1] << 8 | prefix->bytes[2];
}

/* RFC 9113, 6: a frame's head whose length and stream are such as its type may have. */
static __always_inline bool is_http2_frame(const struct prefix *prefix)
{
	const __u8 *bytes = prefix->bytes;
	__u32 length = http2_frame_length(prefix);
	bool whole = !(bytes[5] | bytes[6] | bytes[7] | bytes[8]); /* the connection's own stream */

	if (prefix->count < 9 || bytes[5] & 0x80)
		return false;
	switch (bytes[3]) {
	case HTTP2_DATA:
	case HTTP2_HEADERS:
	case HTTP2_CONTINUATION:
		return !whole && length <= 1 << 20;
	case HTTP2_RST_STREAM:
		return !whole && length == 4;
	case HTTP2_PRIORITY:
		return !whole && length == 5;
	case HTTP2_SETTINGS:
		return whole && length <= 6 * 64 && length % 6 == 0;
	case HTTP2_PING:
		return whole && length == 8;
	case HTTP2_GOAWAY:
		return whole && length >= 8 && length <= 1 << 14;
	case HTTP2_WINDOW_UPDATE:
		return length == 4;
	default:
		return false;
	}
}

/* A server may send its settings before the preface comes: RFC 9113, 3.4. */
static __always_inline bool starts_settings(const struct prefix *prefix)
{
	return prefix->count >= 9 && prefix->bytes[3] == HTTP2_SETTINGS && is_http2_frame(prefix);
}

/* ZMTP 3.1 (rfc.zeromq.org/spec/37), signature: 0xff, eight bytes, 0x7f; the rest may come later. */
static __always_inline bool starts_zmtp(const struct prefix *prefix)
{
	return prefix->bytes[0] == 0xff && (prefix->count < 10 || prefix->bytes[9] == 0x7f);
}

/*
 * ZMTP 3.1, framing: flags (1 more, 2 long, 4 command), then one byte of length or eight. A short frame is taken
 * for one if it ends with the call, or if flags follow it: several messages are moved by one call where their reader
 * is behind; a long one, if it is shorter than 4 GiB.
 */
static __always_inline bool is_zmtp_flags(__u8 byte)
{
	return byte <= 7 && byte != 5 && byte != 7; /* a command is one frame */
}

static __always_inline bool is_short_zmtp_frame(const struct prefix *prefix)
{
	return prefix->count >= 2 && is_zmtp_flags(prefix->bytes[0]) && !(prefix->bytes[0] & 2);
}

static __always_inline bool is_zmtp_frame(const struct prefix *prefix)
{
	const __u8 *bytes = prefix->bytes;

	if (is_short_zmtp_frame(prefix))
		return ZMTP_SHORT_HEAD + bytes[1] == prefix->moved ||
		       is_zmtp_flags(prefix->after_frame);
	return prefix->count >= 9 && is_zmtp_flags(bytes[0]) &&
	       !(bytes[1] | bytes[2] | bytes[3] | bytes[4]) && (bytes[5] | bytes[6] | bytes[7]);
}

/* RFC 8446, 5.1: a record's type and version; a connection starts with a handshake, 22. */
static __always_inline bool is_tls(const struct prefix *prefix, bool first)
{
	const __u8 *bytes = prefix->bytes;
	bool typed = first ? bytes[0] == 22 : bytes[0] >= 20 && bytes[0] <= 23;

	return typed && (prefix->count < 2 ? first : bytes[1] == 3) &&
	       (prefix->count < 3 || bytes[2] <= 4);
}

static __always_inline bool is_hex_digit(__u8 byte)
{
	return (byte >= '0' && byte <= '9') || (byte >= 'a' && byte <= 'f') ||
	       (byte >= 'A' && byte <= 'F');
}

#define CHUNK_DIGITS 6 /* of a chunk's size, RFC 9112, 7.1: up to 16 MiB */

/* As the first bytes of a little-endian word. */
#define LINE_END    0x0a0dULL	      /* "\r\n" */
#define DATA_FIELD  0x3a61746164ULL   /* "data:" */
#define EVENT_FIELD 0x3a746e657665ULL /* "event:" */

static __always_inline bool starts_event_field(__u64 text)
{
	return (text & 0xffffffffffULL) == DATA_FIELD || (text & 0xffffffffffffULL) == EVENT_FIELD;
}

/*
 * An event of a stream that a model answers with: a server-sent event's first field (the HTML standard, 9.2.5), or
 * a line of JSON; the latter only behind the size of a chunk, which the former may have too.
 */
static __always_inline bool starts_event(const struct prefix *prefix)
{
	__u64 text, next;

	__builtin_memcpy(&text, prefix->bytes, sizeof(text));
	__builtin_memcpy(&next, prefix->bytes + sizeof(text), sizeof(next));
	if (starts_event_field(text))
		return true;
	if (!is_hex_digit((__u8)text))
		return false;
	for (int i = 0; i < CHUNK_DIGITS && is_hex_digit((__u8)text); i++) {
		text = text >> 8 | next << 56;
		next >>= 8;
	}
	if ((text & 0xffff) != LINE_END)
		return false;
	text = text >> 16 | next << 48;
	return (__u8)text == '{' || starts_event_field(text);
}

/*
 * The protocol of the bytes that a call moved. `late`: the connection was found open, and this may be the middle of
 * a message. `from_client`: a client may have sent them. A server's are known by what the client sent before.
 */
static __always_inline enum detected_protocol detect_protocol(const struct prefix *prefix,
							      bool late, bool from_client)
{
	if (!prefix->count)
		return PROTOCOL_UNDECIDED;
	if (starts_zmtp(prefix))
		return PROTOCOL_ZMTP;
	if (starts_settings(prefix))
		return PROTOCOL_HTTP2;
	if (from_client && (starts_http1(prefix) || starts_empty_line(prefix)))
		return starts_preface(prefix) ? PROTOCOL_HTTP2 : PROTOCOL_HTTP1;
	if (is_tls(prefix, !late))
		return PROTOCOL_TLS;
	if (!late)
		return PROTOCOL_UNKNOWN;
	if (is_http2_frame(prefix))
		return PROTOCOL_HTTP2;
	return is_zmtp_frame(prefix) ? PROTOCOL_ZMTP : PROTOCOL_UNDECIDED;
}

#endif
