/* SPDX-License-Identifier: Apache-2.0 */
#ifndef OTELGPU_SORT_H
#define OTELGPU_SORT_H

#include "frames.h"

static inline u32 first_word(const u8 *entry)
{
	u32 word;

	__builtin_memcpy(&word, entry, sizeof(word));
	return word;
}

/*
 * By the first u32 of each entry; equal ones stay in their order (a radix sort, 8 bits a pass). `spare` is as long as
 * what is sorted. Inlined, for then `size` is a constant, and an entry is copied in a few instructions.
 */
static inline __attribute__((always_inline)) void sort(void *entries, void *spare, u32 count,
						       u32 size)
{
	u8 *from = entries, *to = spare, *other;

	for (u32 shift = 0; shift < 32;
	     shift += 8) { /* an even number of passes: it ends where it began */
		u32 places[257] = { 0 };

		for (u32 i = 0; i < count; i++)
			places[(first_word(from + (u64)i * size) >> shift & 255) + 1]++;
		for (u32 i = 0; i < 256; i++)
			places[i + 1] += places[i];
		for (u32 i = 0; i < count; i++) {
			const u8 *entry = from + (u64)i * size;
			u32 place = places[first_word(entry) >> shift & 255]++;

			__builtin_memcpy(to + (u64)place * size, entry, size);
		}
		other = from;
		from = to;
		to = other;
	}
}

#endif
