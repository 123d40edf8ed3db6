/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The bytes that a call moved become chunks of a connection, bounded; the same for system calls and TLS. */
#ifndef OTELGPU_CAPTURE_H
#define OTELGPU_CAPTURE_H

#include "ciphertext.h"
#include "frames.h"
#include "go_client.h"
#include "../lib/arguments.h"

#define VECTORS	     128 /* iovecs followed in one message */
#define MESSAGES     8	 /* messages followed in one recvmmsg, sendmmsg */
#define EMPTY_PARTS  4	 /* empty iovecs skipped before the first byte */
#define EVENT_CHUNKS 16	 /* of LARGE_BYTES, of a call that moves events of a stream, or frames */
#define FRAME_CHUNKS 4	 /* the same, of frames while the ring is crowded */
#define EVENT_TRIES  16	 /* calls that are looked at for an event */

/*
 * On connections of framed protocols, where requests are interleaved, what was captured is forgotten at this rate:
 * 2^-6 bytes a nanosecond, 15 MiB a second.
 */
#define FRAMES_FORGOTTEN_SHIFT 6

/*
 * Bytes captured per direction until the direction turns: a request's body,
 * a response's. Calls of up to MEDIUM_BYTES (a streamed token) have a bound
 * of their own, so that a long stream stays whole, and so have larger ones that
 * move events of a stream. Of frames, half of the latter is for small calls alone.
 */
const volatile __u64 http_bulk_bytes = 1 << 20;
const volatile __u64 http_stream_bytes = 64 << 20;

/* Connections of an unknown protocol are followed for so many bytes, for the parsers of plug-ins. 0: not at all. */
const volatile __u64 http_unknown_bytes = 0;

enum transfer_kind {
	TRANSFER_NONE = 0,
	TRANSFER_ACCEPT = 1,
	TRANSFER_CONNECT = 2,
	TRANSFER_BUFFER = 3,   /* read, recvfrom, write, sendto: at is the buffer */
	TRANSFER_VECTOR = 4,   /* readv, writev, recvmsg, sendmsg: at is the array of iovecs */
	TRANSFER_MESSAGES = 5, /* recvmmsg, sendmmsg: at is the array of messages */
	TRANSFER_FILE = 6,     /* sendfile, splice: nothing to capture */
};

/* A call that moves bytes. `end_ns` and what follows it are known when it returns. */
struct transfer {
	struct identity who;
	__u64 holder; /* its process */
	__u64 start_ns;
	__u64 at;
	__u64 parts; /* iovecs, messages */
	__s32 fd;
	__u16 kind; /* enum transfer_kind */
	__u8 direction;
	__u8 reserved;
	__u64 end_ns;
	__u64 arrival_ns;
	__s64 result; /* bytes, or messages */
};

struct iovec {
	__u64 base;
	__u64 bytes;
};

/*
 * Of struct user_msghdr what is needed, and of struct mmsghdr, which begins with one: include/linux/socket.h
 * (x86-64).
 */
#define MESSAGE_VECTORS_AT 16
#define MESSAGE_MOVED_AT   56
#define MESSAGES_STRIDE	   64

struct message_vectors {
	__u64 vectors;
	__u64 vector_count;
};

static __always_inline bool read_message(struct message_vectors *vectors, __u32 *moved, __u64 at)
{
	return read_user(vectors, sizeof(*vectors), (void *)(at + MESSAGE_VECTORS_AT)) &&
	       read_user(moved, sizeof(*moved), (void *)(at + MESSAGE_MOVED_AT));
}

/*
 * Whether a direction carries events: a call of it began with one, since it turned. Asked only where a call would not
 * be captured whole otherwise, and EVENT_TRIES times, so that it costs other traffic nothing.
 */
static __noinline bool carries_events(struct connection *connection, __u8 direction, __u64 from,
				      __u64 bytes)
{
	struct prefix prefix = { .count = PREFIX_BYTES };

	if (connection->carries_events || !from)
		return connection->carries_events;
	if (bytes <= LARGE_BYTES && connection->captured[direction & 1] < http_bulk_bytes)
		return false;
	if (connection->event_tries >= EVENT_TRIES)
		return false;
	connection->event_tries++;
	if (!bpf_probe_read_user(prefix.bytes, PREFIX_BYTES, (void *)from))
		connection->carries_events = starts_event(&prefix);
	return connection->carries_events;
}

/* Into the chunk. Global, so that what comes of each case need not be proven with all that follows. */
__noinline int plan_capture(struct connection *connection, struct data_chunk *chunk, __u64 from,
			    __u64 bytes)
{
	struct capture_plan *plan;
	__u8 direction;

	if (!connection || !chunk)
		return 0;
	plan = &chunk->plan;
	direction = chunk->head.direction;
	plan->bound = http_bulk_bytes;
	plan->most = LARGE_BYTES;
	plan->chunks = 1;
	plan->tail = MEDIUM_BYTES;
	plan->is_partial = 0;
	if (bytes <= MEDIUM_BYTES) {
		plan->bound = http_stream_bytes;
	} else if (is_framed(connection->protocol)) {
		__u64 used = connection->captured[direction & 1];
		bool crowded = ring_is_crowded();

		/* An upload has as many bytes as a stream, and no tokens: others of the process have the ring, too. */
		if (!crowded)
			plan->bound = http_stream_bytes / 2;
		plan->chunks = crowded ? FRAME_CHUNKS : EVENT_CHUNKS;
		plan->tail = LARGE_BYTES;
		plan->is_partial = bytes >= (plan->chunks + 1) * LARGE_BYTES || used >= plan->bound;
		if (used >= (crowded ? plan->bound : http_stream_bytes))
			plan->is_partial = 0;
	} else if (carries_events(connection, direction, from, bytes)) {
		plan->bound = http_stream_bytes;
		if (ring_is_crowded()) { /* the beginning and the end tell when there was a token */
			plan->most = MEDIUM_BYTES;
		} else {
			plan->chunks = EVENT_CHUNKS;
			plan->tail = LARGE_BYTES;
		}
	}
	return 0;
}

/*
 * Bytes that were captured stop to count: when the direction turns, for then another message begins; of framed
 * protocols, whose messages lie between each other's frames, with time.
 */
static __always_inline void allow_more(struct connection *connection,
				       const struct transfer *transfer)
{
	__u8 direction = transfer->direction & 1;
	__s64 passed = (__s64)(transfer->end_ns - connection->counted_ns[direction]);

	if (is_framed(connection->protocol)) {
		__u64 forgotten = passed > 0 ? (__u64)passed >> FRAMES_FORGOTTEN_SHIFT : 0;

		if (!forgotten)
			return;
		connection->counted_ns[direction] = transfer->end_ns;
		connection->captured[direction] -= forgotten < connection->captured[direction]
							   ? forgotten
							   : connection->captured[direction];
		return;
	}
	if (connection->direction == transfer->direction)
		return;
	connection->direction = transfer->direction;
	connection->captured[direction] = 0;
	connection->carries_events = connection->event_tries = 0;
}

/* How many of `bytes` may still be captured in this direction. */
static __always_inline __u32 allowance(struct connection *connection, __u8 direction, __u64 bytes,
				       const struct capture_plan *plan)
{
	__u64 wanted = bytes < plan->most ? bytes : plan->most;
	__u64 used = connection->captured[direction & 1];

	if (used >= plan->bound)
		return 0;
	connection->captured[direction & 1] = used + wanted;
	return (__u32)wanted;
}

/* Capture `bytes` moved at `from` as planned; the first of them are at `offset`. Global, for the stack's sake. */
__noinline int move_planned(struct connection *connection, struct data_chunk *chunk, __u64 from,
			    __u64 bytes, __u64 offset)
{
	__u32 captured;
	__u64 done;

	if (!connection || !chunk)
		return 0;
	captured = allowance(connection, chunk->head.direction, from ? bytes : 0, &chunk->plan);
	emit_part(connection, chunk, offset, from, captured);
	chunk->head.arrival_ns = 0; /* of the first byte of the call only */
	done = captured;
	if (bytes == captured)
		return 0;
	if (!captured) {
		count_many(COUNTER_BYTES_NOT_CAPTURED, bytes);
		return 0;
	}
	for (__u32 i = 1; i < EVENT_CHUNKS; i++) {
		if (i >= chunk->plan.chunks || bytes - done < LARGE_BYTES)
			break;
		captured = allowance(connection, chunk->head.direction, bytes - done, &chunk->plan);
		if (!captured)
			break;
		emit_part(connection, chunk, offset + done, from + done, captured);
		done += captured;
	}
	captured = bytes - done < chunk->plan.tail ? (__u32)(bytes - done) : MEDIUM_BYTES;
	if (captured)
		emit_part(connection, chunk, offset + bytes - captured, from + bytes - captured,
			  captured);
	count_many(COUNTER_BYTES_NOT_CAPTURED, bytes - done - captured);
	return 0;
}

/*
 * Capture `bytes` moved at `from` (0: address unknown): the beginning, and the end, for it holds what ends a
 * message: `usage`, the last chunk of a chunked body. Of framed protocols, and of events, more of the beginning.
 */
__noinline int move(struct connection *connection, struct data_chunk *chunk, __u64 from,
		    __u64 bytes)
{
	__u64 offset;

	if (!connection || !chunk)
		return 0;
	offset = connection->offset[chunk->head.direction & 1];
	connection->offset[chunk->head.direction & 1] = offset + bytes;
	plan_capture(connection, chunk, from, bytes);
	if (connection->protocol != PROTOCOL_HTTP2 ||
	    !find_frames(&connection->frames[chunk->head.direction & 1], from, bytes) ||
	    !walk_frames(connection, chunk, from, bytes, chunk->plan.is_partial))
		move_planned(connection, chunk, from, bytes, offset);
	return 0;
}

/* Whether there is one. Global, so that the verifier proves it once and not for each of a message. */
__noinline int read_vector(struct iovec *vector, __u64 at)
{
	return vector && read_user(vector, sizeof(*vector), (void *)at);
}

/* `bytes` moved at `count` iovecs, in their order. */
__noinline int move_vectors(struct connection *connection, struct data_chunk *chunk, __u64 vectors,
			    __u64 parts, __u64 bytes)
{
	if (!connection || !chunk)
		return 0;
	for (__u32 i = 0; i < VECTORS; i++) {
		struct iovec vector = {};
		__u64 part;

		if (i >= parts || !bytes)
			break;
		if (!read_vector(&vector, vectors + i * sizeof(vector)))
			break;
		part = vector.bytes < bytes ? vector.bytes : bytes;
		if (!part)
			continue;
		bytes -= part;
		move(connection, chunk, vector.base, part);
	}
	if (bytes) {
		count(COUNTER_VECTORS_NOT_CAPTURED);
		move(connection, chunk, 0, bytes);
	}
	return 0;
}

/* The messages of recvmmsg and sendmmsg; the kernel wrote how long each is. */
__noinline int move_messages(struct connection *connection, struct data_chunk *chunk,
			     const struct transfer *transfer)
{
	__s64 left;

	if (!connection || !chunk || !transfer)
		return 0;
	left = transfer->result;
	for (__u32 i = 0; i < MESSAGES; i++) {
		struct message_vectors each = {};
		__u32 bytes = 0;

		if (i >= left)
			return 0;
		if (!read_message(&each, &bytes, transfer->at + i * MESSAGES_STRIDE))
			break;
		chunk->head.result = bytes;
		if (bytes)
			move_vectors(connection, chunk, each.vectors, each.vector_count, bytes);
	}
	if (left > MESSAGES)
		count(COUNTER_VECTORS_NOT_CAPTURED); /* their bytes are not counted */
	return 0;
}

/* The first bytes that a call moved. */
static __always_inline void read_prefix(const struct transfer *transfer, struct prefix *prefix)
{
	__u64 at = transfer->at, bytes = transfer->result, readable;
	struct iovec vector = {};
	__u32 next;

	if (transfer->kind == TRANSFER_FILE)
		return;
	if (transfer->kind != TRANSFER_BUFFER) {
		struct message_vectors first = {};
		__u32 moved = 0;

		if (transfer->kind == TRANSFER_MESSAGES) {
			if (!read_message(&first, &moved, at))
				return;
			at = first.vectors;
			bytes = moved;
		}
		for (int i = 0; i < EMPTY_PARTS && !vector.bytes; i++)
			if (!read_user(&vector, sizeof(vector), (void *)(at + i * sizeof(vector))))
				return;
		at = vector.base;
		prefix->moved = (__u32)bytes;
		if (vector.bytes < bytes)
			bytes = vector.bytes;
	} else {
		prefix->moved = (__u32)bytes;
	}
	readable = bytes;
	if (bytes > PREFIX_BYTES)
		bytes = PREFIX_BYTES;
	if (bytes && !bpf_probe_read_user(prefix->bytes, (__u32)bytes, (void *)at))
		prefix->count = (__u32)bytes;
	prefix->after_frame = 0xff;
	next = ZMTP_SHORT_HEAD + prefix->bytes[1];
	if (is_short_zmtp_frame(prefix) && next < readable)
		bpf_probe_read_user(&prefix->after_frame, 1, (void *)(at + next));
}

enum follow_result { FOLLOW_KEEP = 0, FOLLOW_DROP = 1 };

/* Whether a connection of which nothing was reported yet is of interest, by what a call moved: enum follow_result. */
__noinline int recognise(struct connection *connection, const struct transfer *transfer)
{
	struct prefix prefix = {};
	bool from_client;

	if (!connection || !transfer)
		return FOLLOW_KEEP;
	from_client =
		connection->role !=
		(transfer->direction == HTTP_DIRECTION_READ ? HTTP_ROLE_CLIENT : HTTP_ROLE_SERVER);
	read_prefix(transfer, &prefix);
	connection->protocol = detect_protocol(&prefix, connection->late, from_client);
	connection->state = CONNECTION_FOLLOWED;
	switch (connection->protocol) {
	case PROTOCOL_UNDECIDED:
		connection->state = CONNECTION_NEW;
		connection->late = 1; /* unseen bytes have passed */
		count_many(COUNTER_BYTES_NOT_CAPTURED, transfer->result);
		return FOLLOW_KEEP;
	case PROTOCOL_TLS:
		count(COUNTER_CONNECTION_TLS);
		if (connection->layer == HTTP_LAYER_SOCKET) {
			see_tls(transfer->who.tgid, 1, 0);
			connection->state = CONNECTION_CIPHERTEXT;
			return FOLLOW_KEEP;
		}
		connection->state = CONNECTION_LET_GO;
		return FOLLOW_DROP;
	case PROTOCOL_UNKNOWN:
		if (http_unknown_bytes) {
			connection->state = CONNECTION_BOUNDED;
			break;
		}
		count(COUNTER_CONNECTION_NOT_HTTP);
		connection->state = CONNECTION_LET_GO;
		return FOLLOW_DROP;
	default:
		break;
	}
	return FOLLOW_KEEP;
}

/* What does not depend on the bytes. */
static __always_inline void begin_chunk(struct data_chunk *chunk,
					const struct connection *connection, struct identity who,
					__u64 start_ns, __u64 end_ns, __u8 direction)
{
	fill_head(&chunk->head.head, 0, who, start_ns, end_ns);
	if (direction == HTTP_DIRECTION_WRITE && connection->role != HTTP_ROLE_SERVER)
		take_go_caller(&chunk->head.head);
	chunk->head.connection = connection->id;
	chunk->head.direction = direction;
}

/* The process has said that it sends no more. */
static __always_inline void end_writes(struct connection *connection, struct data_chunk *chunk,
				       struct identity who)
{
	__u64 now = bpf_ktime_get_ns();

	begin_chunk(chunk, connection, who, now, now, HTTP_DIRECTION_ENDED);
	chunk->head.arrival_ns = 0;
	chunk->head.result = 0;
	chunk->head.fd = connection->fd;
	emit_part(connection, chunk, connection->offset[HTTP_DIRECTION_WRITE], 0, 0);
}

/* Of a client's session no arrival is wanted: its requests begin with a call. Returns enum follow_result. */
static __always_inline int follow_ciphertext(struct connection *connection,
					     const struct transfer *transfer)
{
	if (transfer->direction == HTTP_DIRECTION_READ && transfer->result > 0) {
		note_ciphertext(connection);
		if (connection->role != HTTP_ROLE_CLIENT)
			walk_records(connection,
				     transfer->kind == TRANSFER_BUFFER ? transfer->at : 0,
				     (__u64)transfer->result);
	}
	if (connection->records.taken)
		return FOLLOW_KEEP;
	return ++connection->sequence > CIPHERTEXT_CALLS ? FOLLOW_DROP : FOLLOW_KEEP;
}

/* `plaintext`: of a TLS session. Its bytes lie in one buffer, and what they are is known when they are not ciphertext. */
static __always_inline int follow_moved(struct connection *connection,
					const struct transfer *transfer, struct data_chunk *chunk,
					bool plaintext)
{
	__u64 bytes;

	if (connection->state == CONNECTION_LET_GO)
		return FOLLOW_KEEP;
	if (connection->state == CONNECTION_NEW) {
		if (transfer->result <= 0)
			return FOLLOW_KEEP;
		if (recognise(connection, transfer) == FOLLOW_DROP)
			return FOLLOW_DROP;
		if (connection->state == CONNECTION_NEW)
			return FOLLOW_KEEP;
		if (is_reported(connection))
			emit_open(&transfer->who, connection, transfer->end_ns, transfer->direction,
				  transfer->kind == TRANSFER_MESSAGES ? -1 : transfer->result);
	}
	if (!plaintext && connection->state == CONNECTION_CIPHERTEXT)
		return follow_ciphertext(connection, transfer);
	allow_more(connection, transfer);
	begin_chunk(chunk, connection, transfer->who, transfer->start_ns, transfer->end_ns,
		    transfer->direction);
	chunk->head.arrival_ns = transfer->arrival_ns;
	chunk->head.result = transfer->result;
	chunk->head.fd = transfer->fd;
	bytes = transfer->result > 0 ? (__u64)transfer->result : 0;
	if (!plaintext && transfer->kind == TRANSFER_MESSAGES && bytes)
		move_messages(connection, chunk, transfer);
	else if (!plaintext && transfer->kind == TRANSFER_VECTOR && bytes)
		move_vectors(connection, chunk, transfer->at, transfer->parts, bytes);
	else
		move(connection, chunk, transfer->kind == TRANSFER_BUFFER ? transfer->at : 0,
		     bytes);
	if (connection->state == CONNECTION_BOUNDED &&
	    connection->offset[0] + connection->offset[1] >= http_unknown_bytes) {
		count(COUNTER_CONNECTION_NOT_HTTP);
		return FOLLOW_DROP;
	}
	return FOLLOW_KEEP;
}

/*
 * A call has moved bytes of a connection, or found its end: reported by chunks, which are made in `chunk`. Returns enum
 * follow_result.
 */
__noinline int follow(struct connection *connection, const struct transfer *transfer,
		      struct data_chunk *chunk)
{
	if (!connection || !transfer || !chunk)
		return FOLLOW_KEEP;
	return follow_moved(connection, transfer, chunk, false);
}

/* The same of a TLS session: two thirds of the other need no proof in each of the programs that call this. */
__noinline int follow_plaintext(struct connection *connection, const struct transfer *transfer,
				struct data_chunk *chunk)
{
	if (!connection || !transfer || !chunk)
		return FOLLOW_KEEP;
	return follow_moved(connection, transfer, chunk, true);
}

#endif
