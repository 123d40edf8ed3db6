/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fake driver: simulated devices, their memory by account only, and one virtual queue per stream
 * that is nothing but the CLOCK_MONOTONIC time at which it runs empty (moment.h). Work on different streams runs at
 * the same time; the legacy default stream of a device waits for all its streams and all wait for it, as
 * on a real device.
 *
 * These sources are built twice: as libcuda.so.1, where each function is exported, counted and can be made
 * to fail; and into the fake libcudart for programs that have no libcuda (FAKE_STANDALONE), where each
 * is the hidden function standalone_<name>.
 *
 * Settings of the devices:
 *   FAKE_CUDART_KERNEL_US, FAKE_CUDART_KERNEL_US_PER_BLOCK   how long a kernel takes (20 µs each)
 *   FAKE_CUDART_COPY_GB_PER_S (20), FAKE_CUDART_MEMORY_BYTES (16 GiB a device), FAKE_CUDART_DEVICES (1)
 */
#ifndef FAKE_DRIVER_H
#define FAKE_DRIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cuda.h>

#include "moment.h"

#define DEVICES_MAX	      8
#define THREADS_PER_BLOCK_MAX 1024 /* of every device since compute capability 2.0 */

#ifdef FAKE_STANDALONE
#define NAMED(name)		   standalone_##name
#define DECLARED(name, parameters) CUresult NAMED(name) parameters;
#define PROLOGUE(name)
#define ENTRY(name, can_fail)
#define LINKAGE
#else
#include "../common/calls.h"
#include "../common/cupti.h"
/* cuda.h declares it, or -Wmissing-prototypes refuses it. */
#define DECLARED(name, parameters)
#define NAMED(name)	      name
#define ENTRY(name, can_fail) CALL_ENTRY(name, can_fail);
#define PROLOGUE(name)                                   \
	CUPTI_CALL(name);                                \
	{                                                \
		int reported = call_begin(&call_##name); \
		if (reported)                            \
			return (CUresult)reported;       \
	}
#define LINKAGE EXPORTED
#endif

/* One function of the driver API: its name, its parameters as cuda.h has them, what it answers. */
#define API(name, parameters, ...)              \
	DECLARED(name, parameters)              \
	ENTRY(name, true)                       \
	LINKAGE CUresult NAMED(name) parameters \
	{                                       \
		PROLOGUE(name)                  \
		return (__VA_ARGS__);           \
	}

/* The same with its twin, whose default stream is the thread's; the answer uses `hStream`. */
#define API_PTSZ(name, parameters, ...)                             \
	API(name, parameters, __VA_ARGS__)                          \
	DECLARED(name##_ptsz, parameters)                           \
	ENTRY(name##_ptsz, true)                                    \
	LINKAGE CUresult NAMED(name##_ptsz) parameters              \
	{                                                           \
		PROLOGUE(name##_ptsz)                               \
		hStream = hStream ? hStream : CU_STREAM_PER_THREAD; \
		return (__VA_ARGS__);                               \
	}

/* For functions without a stream parameter: the answer uses `hStream` all the same. */
#define API_PTDS(name, parameters, ...)                        \
	DECLARED(name, parameters)                             \
	ENTRY(name, true)                                      \
	LINKAGE CUresult NAMED(name) parameters                \
	{                                                      \
		const CUstream hStream = NULL;                 \
		PROLOGUE(name)                                 \
		return (__VA_ARGS__);                          \
	}                                                      \
	DECLARED(name##_ptds, parameters)                      \
	ENTRY(name##_ptds, true)                               \
	LINKAGE CUresult NAMED(name##_ptds) parameters         \
	{                                                      \
		const CUstream hStream = CU_STREAM_PER_THREAD; \
		PROLOGUE(name##_ptds)                          \
		return (__VA_ARGS__);                          \
	}

/* -- State: guarded by one lock that nothing waits with ---------------------------------------------- */

bool state_lock(void);
void state_unlock(const bool *held);
/* In a child of fork(): the lock may have been held by a thread that is not here. */
void state_reset_lock(void);

/* The lock is held from here to the end of the block, whichever way that is left. */
#define LOCKED() const bool held __attribute__((cleanup(state_unlock), unused)) = state_lock()

/*
 * Takes a free slot of `pool`, or gives NULL. Slots are reused in turn, so that a handle that was just
 * destroyed is not given out again at once. With the lock held.
 */
#define TAKE_SLOT(pool)                                                                   \
	({                                                                                \
		static size_t next_slot;                                                  \
		__typeof__(&(pool)[0]) slot = NULL;                                       \
		for (size_t tried = 0; tried < sizeof(pool) / sizeof((pool)[0]) && !slot; \
		     tried++) {                                                           \
			if (!(pool)[next_slot].in_use)                                    \
				slot = &(pool)[next_slot];                                \
			next_slot = (next_slot + 1) % (sizeof(pool) / sizeof((pool)[0])); \
		}                                                                         \
		if (slot)                                                                 \
			*slot = (__typeof__(*slot)){ .in_use = true };                    \
		slot;                                                                     \
	})

/* A handle is good when it is the address of a slot in use; a bad one is never followed. */
#define IS_SLOT(pool, handle)                                      \
	((uintptr_t)(handle) >= (uintptr_t)(pool) &&               \
	 (uintptr_t)(handle) < (uintptr_t)(pool) + sizeof(pool) && \
	 ((uintptr_t)(handle) - (uintptr_t)(pool)) % sizeof((pool)[0]) == 0 && (handle)->in_use)

/* -- Devices and contexts (device.c, context.c) ------------------------------------------------------ */

struct CUctx_st {
	int device;
	unsigned int flags, references,
		peers; /* peers: a bit for each device that access is enabled to */
	bool in_use;
};

void devices_configure(void);
int devices_count(void);
bool devices_ready(void);
uint64_t device_capacity(void);
CUresult device_check(CUdevice device);

/* The thread's context, NULL when it has none; its device, -1 then. */
CUcontext context_current(void);
int context_device(void);
bool context_is_valid(CUcontext context);

/* -- Time (stream.c) --------------------------------------------------------------------------------- */

/* How long a kernel of so many blocks, a copy of so many bytes keeps its stream busy. */
int64_t kernel_duration_ns(uint64_t blocks);
int64_t copy_duration_ns(uint64_t bytes);

/* Work for a stream, or a node of the graph that the stream captures. */
CUresult stream_enqueue(CUstream stream, int64_t duration_ns, CUgraphNodeType type,
			CUfunction function);
CUresult stream_run(CUstream stream, int64_t duration_ns); /* and waits for its end */
CUresult device_wait(int device);
void streams_of_context_end(CUcontext context);

/* -- Graphs (graph.c). With the lock held ------------------------------------------------------------ */

CUgraph graph_new(void);
CUresult graph_append(CUgraph graph, int64_t duration_ns, CUgraphNodeType type, CUfunction function,
		      CUgraphNode *node);
void graph_discard(CUgraph graph);

/* -- Memory (memory.c, arena.c) ---------------------------------------------------------------------- */

enum memory {
	MEMORY_DEVICE = 1 << 0,
	MEMORY_MANAGED = 1 << 1,
	MEMORY_HOST = 1 << 2,
	MEMORY_POOL = 1 << 3,
	MEMORY_PHYSICAL = 1 << 4, /* by handle; so is its address field */
	MEMORY_REGISTERED = 1 << 5,
	MEMORY_IMPORTED = 1 << 6,
	MEMORY_ADDRESS = 1 << 7, /* a reserved range */
	MEMORY_MAPPING = 1 << 8,
	MEMORY_ARRAY = 1 << 9,
};

/* What is taken from a device's capacity. */
#define MEMORY_OF_DEVICE \
	(MEMORY_DEVICE | MEMORY_MANAGED | MEMORY_POOL | MEMORY_PHYSICAL | MEMORY_ARRAY)
/* What is backed by host memory of the fake. */
#define MEMORY_BACKED (MEMORY_MANAGED | MEMORY_HOST)

struct allocation {
	struct allocation *next;
	uint64_t address, bytes;
	enum memory memory;
	int device;
	CUcontext context;
	CUmemoryPool pool;
	uint64_t physical;    /* a mapping's handle */
	unsigned int handles; /* of physical memory: how many times it must still be released */
	unsigned int maps;    /* and how many mappings show it */
};

/* Takes memory; `address` 0: one that the arena chooses. With the lock held; NULL: no room. */
struct allocation *arena_take(enum memory memory, uint64_t bytes, uint64_t address, int device);
/* The allocation that begins at this address and is one of `memories`; NULL: there is none. */
struct allocation *arena_find(uint64_t address, unsigned int memories);
/* One that contains the address. */
struct allocation *arena_find_around(uint64_t address, unsigned int memories);
void arena_give_back(struct allocation *allocation);
void arena_give_back_where(bool (*wanted)(const struct allocation *, const void *),
			   const void *argument);
uint64_t arena_used_bytes(int device);
/* Whether it lies where nothing is mapped: such addresses are never followed. */
bool arena_owns(const void *pointer);

CUresult memory_new(CUdeviceptr *pointer, enum memory memory, uint64_t bytes);
CUresult memory_end(CUdeviceptr pointer, unsigned int memories);
void memory_of_context_ends(CUcontext context, bool whole_device);

/* -- Kernels (module.c) ------------------------------------------------------------------------------ */

bool function_is_valid(CUfunction function);
const char *function_name(CUfunction function);

#endif
