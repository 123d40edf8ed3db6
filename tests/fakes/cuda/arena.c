/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The account of memory. Device addresses are numbers between ADDRESS_FIRST and ADDRESS_LAST, given once
 * each and never mapped on x86-64 or arm64 Linux (programs lie below 1 TiB or above 80 TiB, libraries and
 * stacks near 128 TiB), so that a program that follows one stops with SIGSEGV, as with a real one.
 */
#include <stdlib.h>
#include <sys/mman.h>

#include "driver.h"

#define MEMORY_BUCKETS 4096
#define MEMORY_ALIGN   512 /* what cudaMalloc keeps to in practice */
#define ADDRESS_FIRST  0x020000000000ULL
#define ADDRESS_LAST   0x400000000000ULL
#define RANGE_ALIGN    (2ULL << 20) /* granularity of reserved ranges */

static struct allocation *buckets[MEMORY_BUCKETS];
static struct allocation *ranges; /* what is found by an address inside: reservations, mappings */
static uint64_t next_address = ADDRESS_FIRST, used_bytes[DEVICES_MAX];

static struct allocation **list_of(uint64_t address, unsigned int memories)
{
	if (memories & (MEMORY_ADDRESS | MEMORY_MAPPING))
		return &ranges;
	return &buckets[address / MEMORY_ALIGN * 2654435761ULL % MEMORY_BUCKETS];
}

static uint64_t choose_address(enum memory memory, uint64_t bytes)
{
	uint64_t align = memory == MEMORY_ADDRESS ? RANGE_ALIGN : MEMORY_ALIGN;
	uint64_t address = (next_address + align - 1) / align * align;
	void *backing;

	if (memory & MEMORY_BACKED) {
		backing = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
			       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		return backing == MAP_FAILED ? 0 : (uintptr_t)backing;
	}
	if (bytes > ADDRESS_LAST - address - MEMORY_ALIGN)
		return 0;
	next_address = address + (bytes + MEMORY_ALIGN - 1) / MEMORY_ALIGN * MEMORY_ALIGN;
	return address;
}

struct allocation *arena_take(enum memory memory, uint64_t bytes, uint64_t address, int device)
{
	struct allocation *taken, **list;

	if (memory & MEMORY_OF_DEVICE && bytes > device_capacity() - used_bytes[device])
		return NULL;
	taken = malloc(sizeof(*taken));
	if (!taken)
		return NULL;
	if (!address)
		address = choose_address(memory, bytes);
	if (!address) {
		free(taken);
		return NULL;
	}
	list = list_of(address, memory);
	*taken = (struct allocation){ .next = *list,
				      .address = address,
				      .bytes = bytes,
				      .memory = memory,
				      .device = device,
				      .context = context_current() };
	*list = taken;
	if (memory & MEMORY_OF_DEVICE)
		used_bytes[device] += bytes;
	return taken;
}

struct allocation *arena_find(uint64_t address, unsigned int memories)
{
	struct allocation *found = *list_of(address, memories);

	while (found && (found->address != address || !(found->memory & memories)))
		found = found->next;
	return found;
}

struct allocation *arena_find_around(uint64_t address, unsigned int memories)
{
	struct allocation *found = ranges;

	while (found && (!(found->memory & memories) || address < found->address ||
			 address - found->address >= found->bytes))
		found = found->next;
	return found;
}

void arena_give_back(struct allocation *allocation)
{
	struct allocation **link = list_of(allocation->address, allocation->memory);

	while (*link != allocation)
		link = &(*link)->next;
	*link = allocation->next;
	if (allocation->memory & MEMORY_OF_DEVICE)
		used_bytes[allocation->device] -= allocation->bytes;
	if (allocation->memory & MEMORY_BACKED)
		munmap((void *)(uintptr_t)allocation->address, allocation->bytes);
	free(allocation);
}

void arena_give_back_where(bool (*wanted)(const struct allocation *, const void *),
			   const void *argument)
{
	struct allocation *next;

	for (size_t bucket = 0; bucket < MEMORY_BUCKETS; bucket++) {
		for (struct allocation *one = buckets[bucket]; one; one = next) {
			next = one->next;
			if (wanted(one, argument))
				arena_give_back(one);
		}
	}
}

uint64_t arena_used_bytes(int device)
{
	return used_bytes[device];
}

bool arena_owns(const void *pointer)
{
	return (uintptr_t)pointer >= ADDRESS_FIRST && (uintptr_t)pointer < ADDRESS_LAST;
}
