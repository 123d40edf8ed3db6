/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is read of a row, wherever in it: otelgpu/model/operations.py says where. Nothing need be aligned.
 */
#ifndef OTELGPU_SPANWRITER_ROW_H
#define OTELGPU_SPANWRITER_ROW_H

#include <stdint.h>
#include <string.h>
#include <sys/auxv.h>

enum {
	START_AT = 0,
	DURATION_AT = 8,
	TGID_AT = 16,
	TID_AT = 20,
	KIND_AT = 56,
	CONTEXT_SOURCE_AT = 61,
	RETURNED_AT = 62,
	FAMILY_AT = 63,
	STATUS_AT = 120,
	API_AT = 124,
};

#define GOLDEN 0x9E3779B97F4A7C15ULL

/* SplitMix64's output function, as otelgpu/model/ids.py has it. */
static inline uint64_t mix(uint64_t word)
{
	word += GOLDEN;
	word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9ULL;
	word = (word ^ (word >> 27)) * 0x94D049BB133111EBULL;
	return word ^ (word >> 31);
}

static inline uint64_t u64_at(const uint8_t *at)
{
	uint64_t value;

	memcpy(&value, at, sizeof(value));
	return value;
}

static inline uint32_t u32_at(const uint8_t *at)
{
	uint32_t value;

	memcpy(&value, at, sizeof(value));
	return value;
}

static inline uint16_t u16_at(const uint8_t *at)
{
	uint16_t value;

	memcpy(&value, at, sizeof(value));
	return value;
}

/*
 * Odd factors for hashes by multiply-shift (Dietzfelbinger et al., 1997), whose highest bits are the good ones. They
 * are drawn for each process, so that no program that is observed can have its calls collide.
 */
static inline void draw_factors(uint64_t *factors, uint32_t count)
{
	const uint8_t *random = (const uint8_t *)getauxval(AT_RANDOM); /* 16 bytes */
	uint64_t seed = random ? u64_at(random) ^ u64_at(random + 8) : 0;

	for (uint32_t i = 0; i < count; i++)
		factors[i] = mix(seed + i) | 1;
}

#endif
