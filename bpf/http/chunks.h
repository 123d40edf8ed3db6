/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Chunks of a connection: a part of the bytes that a call moved, in a record of the least size that holds it. */
#ifndef OTELGPU_CHUNKS_H
#define OTELGPU_CHUNKS_H

#include "connections.h"
#include "../lib/ring_share.h"

#define SMALL_BYTES  256
#define TOKEN_BYTES  1024 /* of a streamed event: with log probabilities, of several choices */
#define MEDIUM_BYTES 4096
#define LARGE_BYTES  16384

/* A call whose frames are gone through. `captures`: what must be captured of them is. */
struct frame_steps {
	__u64 from;
	__u64 bytes;
	__u64 offset; /* of the first of them in the stream */
	__u64 at;     /* how many were gone through */
	__u64 done;   /* how many were captured, or passed over */
	__u64 captures;
};

/* How much of a call is captured. */
struct capture_plan {
	__u64 bound; /* of the direction */
	__u32 most;  /* of bytes in a chunk */
	__u32 chunks;
	__u32 tail;	  /* bytes of the call's end */
	__u32 is_partial; /* of frames: not all of it is */
};

/*
 * One chunk: bytes that a call moved at `from`, of which `head.captured` are captured. It is made in the thread's
 * storage: kernels before 6.13 have 512 bytes of stack for the whole call chain.
 */
struct data_chunk {
	struct http_data_head head;
	__u64 from;
	struct capture_plan plan; /* of the call that it is a part of, ... */
	struct frame_steps steps; /* ... as far as its frames were gone through: frames.h */
};

/*
 * Bytes of data[] past `captured` keep what the ring held before: earlier
 * records, never kernel memory. Zeroing 16 KiB for 300 would cost more than
 * the copy.
 */
#define EMIT_CHUNK(type, number, chunk, lost)                                                      \
	do {                                                                                       \
		struct type *_record = bpf_ringbuf_reserve(&ring, sizeof(*_record), 0);            \
		__u32 _bytes = (chunk)->head.captured;                                             \
		if (!_record) {                                                                    \
			lost = COUNTER_RING_FULL;                                                  \
			break;                                                                     \
		}                                                                                  \
		_record->chunk = (chunk)->head;                                                    \
		_record->chunk.head.kind = number;                                                 \
		if (_bytes > sizeof(_record->data))                                                \
			_bytes = sizeof(_record->data);                                            \
		if (_bytes && bpf_probe_read_user(_record->data, _bytes, (void *)(chunk)->from)) { \
			count(COUNTER_ARGUMENT_UNREADABLE);                                        \
			_record->chunk.captured = 0;                                               \
		}                                                                                  \
		submit_of(_record->chunk.head.tgid, _record);                                      \
	} while (0)

/* Global, so that the verifier proves it once and not on every path to it. */
__noinline int emit_chunk(const struct data_chunk *chunk)
{
	__u32 bytes, lost = 0;

	if (!chunk)
		return 0;
	bytes = chunk->head.captured <= SMALL_BYTES    ? sizeof(struct http_data_256)
		: chunk->head.captured <= TOKEN_BYTES  ? sizeof(struct http_data_1k)
		: chunk->head.captured <= MEDIUM_BYTES ? sizeof(struct http_data_4k)
						       : sizeof(struct http_data_16k);
	if (!within_ring_share(chunk->head.head.tgid, chunk->head.head.cgroup_id, bytes))
		lost = COUNTER_RING_SHARE_SPENT;
	else if (chunk->head.captured <= SMALL_BYTES)
		EMIT_CHUNK(http_data_256, HTTP_DATA_256, chunk, lost);
	else if (chunk->head.captured <= TOKEN_BYTES)
		EMIT_CHUNK(http_data_1k, HTTP_DATA_1K, chunk, lost);
	else if (chunk->head.captured <= MEDIUM_BYTES)
		EMIT_CHUNK(http_data_4k, HTTP_DATA_4K, chunk, lost);
	else
		EMIT_CHUNK(http_data_16k, HTTP_DATA_16K, chunk, lost);
	if (lost)
		lose_record_here(chunk->head.head.tgid, lost); /* no stack is left for a call */
	return 0;
}

static __always_inline void emit_next(struct connection *connection, struct data_chunk *chunk,
				      __u64 offset, __u64 from, __u32 bytes)
{
	chunk->head.stream_offset = offset;
	chunk->head.captured = (__u16)bytes;
	chunk->from = from;
	chunk->head.sequence = __sync_fetch_and_add(&connection->sequence, 1);
	emit_chunk(chunk);
}

/*
 * A little more than MEDIUM_BYTES, an answer with its head, is two chunks: most of the record for LARGE_BYTES would be
 * empty, and somebody's share of the ring be spent on it. Global, so that it is proven once.
 */
__noinline int emit_part(struct connection *connection, struct data_chunk *chunk, __u64 offset,
			 __u64 from, __u32 bytes)
{
	if (!connection || !chunk)
		return 0;
	if (bytes > MEDIUM_BYTES && bytes <= 2 * MEDIUM_BYTES) {
		emit_next(connection, chunk, offset, from, MEDIUM_BYTES);
		chunk->head.arrival_ns = 0; /* of the first byte of the call only */
		offset += MEDIUM_BYTES;
		from += MEDIUM_BYTES;
		bytes -= MEDIUM_BYTES;
	}
	emit_next(connection, chunk, offset, from, bytes);
	return 0;
}

#endif
