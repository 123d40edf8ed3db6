/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of the program of memory.c: what a thread holds, its random calls, the account of all. */
#ifndef FAKE_PROGRAMS_MEMORY_H
#define FAKE_PROGRAMS_MEMORY_H

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "truth.h"

#define ITEMS_MAX    512
#define MAPPINGS_MAX 3
#define DEVICES_MAX  8

enum memory {
	NONE,
	DEVICE,
	MANAGED,
	HOST,
	POOL,
	PHYSICAL,
	REGISTERED,
	IMPORTED,
	ADDRESS,
	MEMORIES
};

struct item {
	enum memory memory;
	int device;
	uint64_t address, bytes;	 /* physical: its handle */
	unsigned int handles;		 /* physical */
	uint64_t mappings[MAPPINGS_MAX]; /* addresses where it is mapped, 0: none */
};

struct worker {
	uint64_t random;
	int device;
	size_t count;
	struct item items[ITEMS_MAX];
};

/* A call, by the name that the linker sees; its status. */
#define TRY(function, ...) noted((int)function(__VA_ARGS__), TRUTH_NAME(function))

/* -- memory_account.c -------------------------------------------------------------------------------- */

extern int device_count;
int noted(int status, const char *function);
void must(int status);
void came(const struct item *item);
void went(const struct item *item);
void print_checkpoint(long number, long done);

/* -- memory_calls.c ---------------------------------------------------------------------------------- */

/* One of the program's operations. */
void operate(struct worker *worker);
/* Frees an item, or takes one step towards it; to the end when reported to. */
void release(struct worker *worker, size_t index, bool to_the_end);
/* Forgets an item that is freed. */
void let_go(struct worker *worker, size_t index);

#endif
