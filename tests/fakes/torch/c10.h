/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fake libc10: the two functions that PyTorch's caching allocators report to, under their exported names.
 * c10::Device is a class of two bytes that is passed in a register, as this struct is.
 */
#ifndef FAKE_C10_H
#define FAKE_C10_H

#include <stddef.h>
#include <stdint.h>

struct c10_device {
	int8_t type; /* c10/core/DeviceType.h */
	int8_t index;
};

enum { C10_CPU = 0, C10_CUDA = 1 };

/* c10::reportMemoryUsageToProfiler(void *, long, unsigned long, unsigned long, c10::Device) */
void report_memory(
	void *address, int64_t bytes, size_t allocated, size_t reserved,
	struct c10_device device) __asm__("_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE");

/* c10::reportOutOfMemoryToProfiler(long, unsigned long, unsigned long, c10::Device) */
void report_refusal(
	int64_t bytes, size_t allocated, size_t reserved,
	struct c10_device device) __asm__("_ZN3c1027reportOutOfMemoryToProfilerElmmNS_6DeviceE");

#endif
