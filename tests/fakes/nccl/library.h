/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fake NCCL: the exported names, ABI and communicator layout of a real version, and no data. Ranks
 * are processes (or threads) that meet in shared memory, in a file that the unique id names. A collective
 * is a kernel launch on the simulated device of the fake libcuda, and ends there when all its ranks'
 * streams have come to it and the bytes had time to pass; so who synchronises waits for the slowest rank.
 *
 * Settings (and FAKE_NCCL_FAIL, FAKE_NCCL_LEDGER: tests/fakes/common/calls.h):
 *   FAKE_NCCL_DIRECTORY            where ranks meet; /dev/shm
 *   FAKE_NCCL_GB_PER_S             bus bandwidth of every rank; 100
 *   FAKE_NCCL_LATENCY_US           what a collective of no bytes takes; 5
 *   FAKE_NCCL_SLOW=RANK:GB_PER_S   one rank's link; ranks as in the communicator that is made from a unique id
 *   FAKE_NCCL_LATE=RANK:NTH:US[,…] its GPU comes so much later to the NTH collective of a communicator, from 0
 *   FAKE_NCCL_ASYNC_ERROR=RANK:NTH:CODE   what ncclCommGetAsyncError says after that collective
 *
 * No device API, no windows. What a graph captures of it takes its time and waits for nobody.
 */
#ifndef FAKE_NCCL_LIBRARY_H
#define FAKE_NCCL_LIBRARY_H

#include <stdbool.h>

#include <cuda.h>

#include "../common/calls.h"
#include "../cuda/moment.h"
#include "nccl.h"

/* 22809 or 22105: what ncclGetVersion says. Offsets of struct ncclComm by DWARF of the wheels. */
#ifndef FAKE_NCCL_VERSION
#define FAKE_NCCL_VERSION 22809
#endif
#if FAKE_NCCL_VERSION == 22809
#define VERSION_TEXT	"2.28.9+cuda12.9"
#define AT_HASH		1066184
#define AT_GRAPHS	1069520
#define AT_END		1082960
#define AT_OPERATIONS	1066480
#define AT_SEQUENCES	1075728
#define KERNEL_ARGUMENT "24ncclDevKernelArgsStorageILm4096EE"
#elif FAKE_NCCL_VERSION == 22105
#define VERSION_TEXT	"2.21.5+cuda12.4"
#define AT_HASH		13528
#define AT_GRAPHS	15432
#define AT_END		16280
#define AT_OPERATIONS	13792
#define KERNEL_ARGUMENT "P11ncclDevCommmP8ncclWork"
#else
#error "no layout of this version is known here"
#endif

#define NCCL_MAGIC	  0x0280028002800280ULL
#define RANKS_MAX	  64
#define COUNTED_FUNCTIONS 5

/* Numbers of ncclFunc_t: those below COUNTED_FUNCTIONS have a sequence number. */
enum function {
	BROADCAST = 0,
	REDUCE = 1,
	ALL_GATHER = 2,
	REDUCE_SCATTER = 3,
	ALL_REDUCE = 4,
	SEND = 6,
	RECEIVE = 7,
	ALL_TO_ALL = 8,
	SCATTER = 9,
	GATHER = 10,
};

struct segment;

/* What the fake keeps of a communicator. */
struct state {
	struct segment *segment;
	uint64_t collectives, batches, splits;
	uint64_t sent[RANKS_MAX], received[RANKS_MAX];
	int first_rank; /* in the communicator that a unique id made */
	int async_error;
	bool finalized;
};

/* Named members have the names and places of the real structure's. */
struct ncclComm {
	uint64_t startMagic;
	struct state state;
	char real_before[AT_HASH - 16 - sizeof(struct state)];
	uint64_t magic;
	uint64_t commHash;
	int rank;
	int nRanks;
	int cudaDev;
	char real_between[AT_OPERATIONS - AT_HASH - 20];
	uint64_t opCount; /* plans launched */
	char real_graphs[AT_GRAPHS - AT_OPERATIONS - 8];
	int localPersistentRefs; /* launches that a graph captured */
#ifdef AT_SEQUENCES
	char real_after[AT_SEQUENCES - AT_GRAPHS - 4];
	uint64_t seqNumber[COUNTED_FUNCTIONS];
	char real_end[AT_END - AT_SEQUENCES - 8 * COUNTED_FUNCTIONS];
#else
	char real_end[AT_END - AT_GRAPHS - 4];
#endif
	uint64_t endMagic;
};
_Static_assert(offsetof(struct ncclComm, commHash) == AT_HASH, "as the real one");
_Static_assert(offsetof(struct ncclComm, cudaDev) == AT_HASH + 16, "as the real one");
_Static_assert(offsetof(struct ncclComm, opCount) == AT_OPERATIONS, "as the real one");
_Static_assert(offsetof(struct ncclComm, localPersistentRefs) == AT_GRAPHS, "as the real one");
_Static_assert(offsetof(struct ncclComm, endMagic) == AT_END, "as the real one");
#ifdef AT_SEQUENCES
_Static_assert(offsetof(struct ncclComm, seqNumber) == AT_SEQUENCES, "as the real one");
#endif

/* One function of the API: pncclX, and its weak alias ncclX at the same address. */
#define API(name, parameters, ...)                        \
	ncclResult_t p##name parameters;                  \
	CALL_ENTRY(p##name, true);                        \
	EXPORTED ncclResult_t p##name parameters          \
	{                                                 \
		int reported = call_begin(&call_p##name); \
		if (reported)                             \
			return (ncclResult_t)reported;    \
		return (__VA_ARGS__);                     \
	}                                                 \
	extern __typeof__(p##name) name                   \
		__attribute__((weak, alias("p" #name), visibility("default")))

/* -- settings.c -------------------------------------------------------------------------------------- */

struct settings {
	const char *directory;
	double bytes_per_ns, slow_bytes_per_ns;
	int64_t latency_ns;
	int slow_rank; /* -1: none */
};

extern struct settings settings;
int64_t lateness_ns(const struct ncclComm *comm, uint64_t number);
void note_async_error(struct ncclComm *comm, uint64_t number);

/* -- device.c: what is needed of the driver ---------------------------------------------------------- */

/* The thread's device, with a context on it; -1: there is no device. */
int device_open(void);
/* Launches the kernel of a plan; false: the driver refused. */
bool device_launch(int device, enum function function, ncclDataType_t type, ncclRedOp_t op,
		   CUstream stream);
bool device_is_capturing(CUstream stream);
ncclResult_t device_allocate(void **pointer, size_t bytes);
ncclResult_t device_free(void *pointer);

/* -- segment.c: where ranks meet --------------------------------------------------------------------- */

/* Finds or makes the segment; 0 ranks: it must be there. NULL: it cannot be. */
struct segment *segment_open(uint64_t hash, int ranks);
void segment_join(struct segment *segment);
bool segment_wait_for_all(struct segment *segment); /* false: aborted */
void segment_leave(struct segment *segment);
void segment_abort(struct segment *segment);
bool segment_aborted(const struct segment *segment);

/* Reports one's colour and key in split `number`, waits for all; ranks of the same colour by key, their count. */
int segment_split(struct segment *segment, uint64_t number, int rank, int color, int key,
		  int members[RANKS_MAX]);

/* -- operation.c: collectives in a segment ----------------------------------------------------------- */

uint64_t collective_name(uint64_t number);
uint64_t message_name(int sender, int receiver, uint64_t number);
uint64_t batch_name(int rank, uint64_t number);
/* Waits until the place of an operation is free: its predecessor there has ended. */
void operation_reserve(struct segment *segment, uint64_t name);
/* One side of an operation is there at a moment. Exits the process if sides disagree on what it is. */
void operation_arrive(struct segment *segment, uint64_t name, int side, const struct moment *at,
		      int64_t transfer_ns, uint64_t what);
/* A batch: ends with the last of its messages. */
void batch_fill(struct segment *segment, uint64_t name, const uint64_t *messages, int count);
int64_t operation_end(uint64_t where, uint64_t which, bool wait);

/* -- communicator.c ---------------------------------------------------------------------------------- */

uint64_t segment_hash(const struct segment *segment);
int segment_ranks(const struct segment *segment);
bool comm_is_valid(const struct ncclComm *comm);
bool comm_is_pending(struct ncclComm *comm);
/* Communicators that are made inside a group wait for their ranks at its end. */
ncclResult_t comms_join_pending(void);

/* -- group.c ----------------------------------------------------------------------------------------- */

struct task {
	struct ncclComm *comm;
	enum function function;
	size_t count;
	ncclDataType_t type;
	ncclRedOp_t op;
	int peer; /* or root; -1: none */
	CUstream stream;
};

bool group_is_open(void);
void group_begin(void);
ncclResult_t group_end(void);
ncclResult_t group_add(const struct task *task);
/* Hook of the driver: the thread's launch is that of a plan. */
bool plan_launched(struct moment *moment);

#endif
