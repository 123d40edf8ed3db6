/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Where the frames of HTTP/2 begin in what a direction moves. Of a call that is not captured whole the heads of its
 * frames are, and what is not DATA: without a head, all that follows would be lost.
 *
 * Known from the preface on, or from a call that begins with a frame's head; no longer, where a head is none.
 */
#ifndef OTELGPU_FRAMES_H
#define OTELGPU_FRAMES_H

#include "chunks.h"

#define FRAME_HEAD    9
#define PREFACE_BYTES 24
#define FRAMES_WALKED 64 /* in one call */

/* Whether it is known where the frames of a call begin, whose first bytes lie at `from`. */
static __always_inline bool find_frames(struct frame_walk *walk, __u64 from, __u64 bytes)
{
	if (!from)
		walk->known = 0;
	if (walk->known)
		return true;
	walk->head.count = 0;
	if (bytes < PREFIX_BYTES ||
	    bpf_probe_read_user(walk->head.bytes, PREFIX_BYTES, (void *)from))
		return false;
	walk->head.count = PREFIX_BYTES;
	walk->left = starts_preface(&walk->head) ? PREFACE_BYTES : 0;
	walk->known = walk->left || is_http2_frame(&walk->head);
	walk->head.count = 0;
	return walk->known;
}

/* Read the head of a frame that begins, or goes on, at `from`. Returns how many bytes of it the call has. */
static __always_inline __u32 read_frame_head(struct frame_walk *walk, __u64 from, __u64 bytes)
{
	__u32 have = walk->head.count & (PREFIX_BYTES - 1), wanted = FRAME_HEAD - have;

	if (wanted > bytes)
		wanted = (__u32)bytes;
	if (wanted > FRAME_HEAD ||
	    bpf_probe_read_user(&walk->head.bytes[have], wanted, (void *)from)) {
		walk->known = 0;
		return 0;
	}
	walk->head.count = have + wanted;
	return wanted;
}

/* Capture what a call moved from `begin` to `end`, as far as it was not. */
static __always_inline void emit_between(struct connection *connection, struct data_chunk *chunk,
					 __u64 begin, __u64 end)
{
	struct frame_steps *steps = &chunk->steps;

	if (begin < steps->done)
		begin = steps->done;
	if (end > steps->bytes)
		end = steps->bytes;
	if (begin >= end)
		return;
	if (end > begin + LARGE_BYTES)
		end = begin + LARGE_BYTES;
	emit_part(connection, chunk, steps->offset + begin, steps->from + begin,
		  (__u32)(end - begin));
	connection->captured[chunk->head.direction & 1] += end - begin;
	chunk->head.arrival_ns = 0; /* of the first byte of the call only */
	steps->done = end;
}

/* Go on behind the head of the next frame. Returns whether more follows. Global: the verifier proves it once. */
__noinline int walk_frame(struct connection *connection, struct data_chunk *chunk)
{
	struct frame_steps *steps;
	struct frame_walk *walk;
	__u64 begin, end;

	if (!connection || !chunk)
		return 0;
	steps = &chunk->steps;
	walk = &connection->frames[chunk->head.direction & 1];
	if (walk->left >= steps->bytes - steps->at) {
		walk->left -= (__u32)(steps->bytes - steps->at);
		steps->at = steps->bytes;
		return 0;
	}
	begin = steps->at + walk->left;
	walk->left = 0;
	steps->at = begin + read_frame_head(walk, steps->from + begin, steps->bytes - begin);
	if (!walk->known || walk->head.count < FRAME_HEAD)
		return 0;
	walk->known = is_http2_frame(&walk->head);
	walk->head.count = 0;
	walk->left = http2_frame_length(&walk->head);
	if (!walk->known || !steps->captures)
		return walk->known;
	end = steps->at + walk->left;
	if (walk->head.bytes[3] == HTTP2_DATA && end > begin + SMALL_BYTES)
		end = begin + SMALL_BYTES;
	emit_between(connection, chunk, begin, end);
	return 1;
}

/*
 * Go through the frames of `bytes` that a call moved at `from`. `captures`: the beginning and the end of all, the heads
 * of frames, the first bytes of DATA and what is none are captured. Returns whether they were.
 */
static __always_inline bool walk_frames(struct connection *connection, struct data_chunk *chunk,
					__u64 from, __u64 bytes, bool captures)
{
	__u8 direction = chunk->head.direction & 1;
	__u64 before = connection->captured[direction];

	chunk->steps.from = from;
	chunk->steps.bytes = bytes;
	chunk->steps.offset = connection->offset[direction] - bytes;
	chunk->steps.at = chunk->steps.done = 0;
	chunk->steps.captures = captures;
	if (captures)
		emit_between(connection, chunk, 0, MEDIUM_BYTES);
	for (__u32 i = 0; i < FRAMES_WALKED; i++)
		if (!walk_frame(connection, chunk))
			break;
	if (chunk->steps.at < bytes)
		connection->frames[direction].known = 0;
	if (!captures)
		return false;
	emit_between(connection, chunk, bytes < MEDIUM_BYTES ? 0 : bytes - MEDIUM_BYTES, bytes);
	count_many(COUNTER_BYTES_NOT_CAPTURED, bytes - (connection->captured[direction] - before));
	return true;
}

#endif
