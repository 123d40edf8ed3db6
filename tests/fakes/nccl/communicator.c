/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators: made, split, shrunk, asked, ended. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "segment.h"

#define PENDING_MAX 64
#define DEVICES_MAX 64
#define PAGE_BYTES  4096

static _Thread_local struct ncclComm *pending[PENDING_MAX];
static _Thread_local int pending_count;

#if FAKE_NCCL_VERSION >= 22600
/* eatHash of src/include/bitops.h (2.26 and later) for one chunk of up to 8 bytes and more. */
static void eat(uint64_t state[2], const void *bytes, size_t size)
{
	const char *at = bytes;

	state[0] ^= size;
	while (size) {
		size_t chunk = size < sizeof(uint64_t) ? size : sizeof(uint64_t);
		uint64_t value = 0;

		state[0] += state[1];
		state[1] ^= state[0];
		state[0] ^= state[0] >> 31;
		state[0] *= 0x9de62bbc8cef3ce3ULL;
		state[1] ^= state[1] >> 32;
		state[1] *= 0x485cd6311b599e79ULL;
		memcpy(&value, at, chunk);
		at += chunk;
		size -= chunk;
		state[0] += value;
	}
}

static uint64_t digest(const uint64_t state[2])
{
	uint64_t hash = state[0];

	hash ^= hash >> 31;
	hash *= 0xbac3bd562846de6bULL;
	hash += state[1];
	hash ^= hash >> 32;
	return hash * 0x995a187a14e7b445ULL;
}

static uint64_t hash_of_id(const ncclUniqueId *id)
{
	uint64_t state[2] = { 1, 1 };

	eat(state, id->internal, sizeof(id->internal));
	return digest(state);
}

static uint64_t hash_of_child(const struct ncclComm *parent, int number, int color)
{
	uint64_t state[2] = { 1, 1 };

	eat(state, &parent->commHash, sizeof(parent->commHash));
	eat(state, &number, sizeof(number));
	eat(state, &color, sizeof(color));
	return digest(state);
}
#else
/* DJB2a of the id (2.18 to 2.23). */
static uint64_t hash_bytes(uint64_t hash, const char *bytes, size_t size)
{
	for (size_t i = 0; i < size; i++)
		hash = hash * 33 ^ (uint64_t)(int64_t)(signed char)bytes[i];
	return hash;
}

static uint64_t hash_of_id(const ncclUniqueId *id)
{
	return hash_bytes(5381, id->internal, sizeof(id->internal));
}

static uint64_t hash_of_child(const struct ncclComm *parent, int number, int color)
{
	uint64_t hash = hash_bytes(parent->commHash, (const char *)&number, sizeof(number));

	return hash_bytes(hash, (const char *)&color, sizeof(color));
}
#endif

static void say_version(void)
{
	static const char version[] = "NCCL version " VERSION_TEXT;
	const char *debug = getenv("NCCL_DEBUG");

	if (debug && (!strcmp(debug, "VERSION") || !strcmp(debug, "INFO")))
		fprintf(stderr, "%s\n", version);
}

/* As the real one: a secret of 8 bytes, the address of the bootstrap socket, zeros. */
static ncclResult_t make_id(ncclUniqueId *id)
{
	if (!id)
		return ncclInvalidArgument;
	memset(id, 0, sizeof(*id));
	id->internal[8] = 2; /* AF_INET, a port, 127.0.0.1 */
	id->internal[12] = 127;
	id->internal[15] = 1;
	say_version();
	return getrandom(id->internal, 8, 0) == 8 && getrandom(id->internal + 10, 2, 0) == 2
		       ? ncclSuccess
		       : ncclSystemError;
}

static ncclResult_t make(struct ncclComm **made, uint64_t hash, int ranks, int rank,
			 const struct ncclComm *parent)
{
	struct segment *segment;
	struct ncclComm *comm;
	int device = device_open();

	if (!made || ranks < 1 || ranks > RANKS_MAX || rank < 0 || rank >= ranks)
		return ncclInvalidArgument;
	if (device < 0)
		return ncclUnhandledCudaError;
	segment = segment_open(hash, ranks);
	if (!segment)
		return ncclInvalidUsage;
	comm = calloc(1, sizeof(*comm));
	if (!comm)
		return ncclSystemError;
	/* As initialising the real one does, which has written beside every member that is named here. */
	for (size_t at = 0; at < sizeof(*comm); at += PAGE_BYTES)
		((volatile char *)comm)[at] = 0;
	comm->startMagic = comm->endMagic = NCCL_MAGIC;
	comm->commHash = hash;
	comm->rank = rank;
	comm->nRanks = ranks;
	comm->cudaDev = device;
	comm->state.segment = segment;
	comm->state.first_rank = parent ? parent->state.first_rank : rank;
	comm->magic = parent ? parent->magic : 0;
	segment_join(segment);
	*made = comm;
	if (!group_is_open())
		return segment_wait_for_all(segment) ? ncclSuccess : ncclRemoteError;
	if (pending_count == PENDING_MAX)
		return ncclInvalidUsage;
	pending[pending_count++] = comm;
	return ncclSuccess;
}

ncclResult_t comms_join_pending(void)
{
	ncclResult_t status = ncclSuccess;

	for (int i = 0; i < pending_count; i++)
		if (!segment_wait_for_all(pending[i]->state.segment))
			status = ncclRemoteError;
	pending_count = 0;
	return status;
}

bool comm_is_pending(struct ncclComm *comm)
{
	for (int i = 0; i < pending_count; i++)
		if (pending[i] == comm)
			return true;
	return false;
}

static ncclResult_t init(struct ncclComm **comm, int ranks, const ncclUniqueId *id, int rank)
{
	ncclResult_t status = make(comm, hash_of_id(id), ranks, rank, NULL);

	if (status == ncclSuccess)
		memcpy(&(*comm)->magic, id->internal, sizeof((*comm)->magic));
	return status;
}

bool comm_is_valid(const struct ncclComm *comm)
{
	return comm && comm->startMagic == NCCL_MAGIC && comm->endMagic == NCCL_MAGIC;
}

static ncclResult_t split(struct ncclComm *parent, int color, int key, struct ncclComm **child)
{
	int members[RANKS_MAX], count, rank = 0;
	uint64_t number;

	if (!comm_is_valid(parent) || !child)
		return ncclInvalidArgument;
	number = ++parent->state.splits;
	count = segment_split(parent->state.segment, number, parent->rank, color, key, members);
	*child = NULL;
	if (color == NCCL_SPLIT_NOCOLOR)
		return ncclSuccess;
	if (!count)
		return ncclRemoteError;
	while (members[rank] != parent->rank)
		rank++;
	return make(child, hash_of_child(parent, (int)number, color), count, rank, parent);
}

#if FAKE_NCCL_VERSION >= 22700
static bool is_among(int rank, const int *ranks, int count)
{
	for (int i = 0; i < count; i++)
		if (ranks[i] == rank)
			return true;
	return false;
}

/* Called by those that stay; the others are not needed. */
static ncclResult_t shrink(struct ncclComm *parent, const int *excluded, int count,
			   struct ncclComm **child)
{
	int rank = 0, ranks = 0;

	if (!comm_is_valid(parent) || !child || !excluded || count < 1 ||
	    is_among(parent->rank, excluded, count))
		return ncclInvalidArgument;
	for (int one = 0; one < parent->nRanks; one++) {
		if (is_among(one, excluded, count))
			continue;
		if (one == parent->rank)
			rank = ranks;
		ranks++;
	}
	return make(child, hash_of_child(parent, (int)++parent->state.splits, 0), ranks, rank,
		    parent);
}
#endif

static ncclResult_t init_all(struct ncclComm **comms, int devices, const int *device)
{
	ncclUniqueId id;
	ncclResult_t status = make_id(&id);

	(void)device;
	if (!comms || devices < 1 || devices > DEVICES_MAX)
		return ncclInvalidArgument;
	group_begin();
	for (int rank = 0; rank < devices && status == ncclSuccess; rank++) {
		status = init(&comms[rank], devices, &id, rank);
		if (status == ncclSuccess)
			comms[rank]->cudaDev = device ? device[rank] : rank;
	}
	return group_end() == ncclSuccess ? status : ncclRemoteError;
}

/* Waits for what was launched. */
static ncclResult_t finalize(struct ncclComm *comm)
{
	int64_t end_ns, now_ns = 0;

	if (!comm_is_valid(comm))
		return ncclInvalidArgument;
	comm->state.finalized = true;
	for (int batch = 0; batch < 2; batch++) {
		uint64_t launched = batch ? comm->state.batches : comm->state.collectives;

		if (!launched)
			continue;
		end_ns = operation_end(comm->commHash,
				       batch ? batch_name(comm->rank, launched - 1)
					     : collective_name(launched - 1),
				       true);
		now_ns = end_ns > now_ns ? end_ns : now_ns;
	}
	sleep_until(now_ns);
	return ncclSuccess;
}

static ncclResult_t end(struct ncclComm *comm, bool abort)
{
	if (!comm)
		return ncclSuccess;
	if (!comm_is_valid(comm))
		return ncclInvalidArgument;
	if (abort)
		segment_abort(comm->state.segment);
	else
		finalize(comm);
	segment_leave(comm->state.segment);
	comm->startMagic = comm->endMagic = 0;
	free(comm);
	return ncclSuccess;
}

static ncclResult_t report_error(const struct ncclComm *comm, ncclResult_t *error)
{
	if (!comm_is_valid(comm) || !error)
		return ncclInvalidArgument;
	*error = segment_aborted(comm->state.segment) ? ncclRemoteError
						      : (ncclResult_t)comm->state.async_error;
	return ncclSuccess;
}

static ncclResult_t report(const struct ncclComm *comm, const int *from, int *to)
{
	if (!comm_is_valid(comm) || !to)
		return ncclInvalidArgument;
	*to = *from;
	return ncclSuccess;
}

static const char *error_text(ncclResult_t status)
{
	static const char *const texts[] = { "no error",
					     "unhandled cuda error",
					     "unhandled system error",
					     "internal error",
					     "invalid argument",
					     "invalid usage",
					     "remote process exited or there was a network error",
					     "NCCL operation in progress" };

	return (unsigned int)status < sizeof(texts) / sizeof(texts[0]) ? texts[status]
								       : "unknown result code";
}

API(ncclGetVersion, (int *version),
    version ? (*version = FAKE_NCCL_VERSION, ncclSuccess) : ncclInvalidArgument);
API(ncclGetUniqueId, (ncclUniqueId * id), make_id(id));
API(ncclCommInitRank, (ncclComm_t * comm, int ranks, ncclUniqueId id, int rank),
    init(comm, ranks, &id, rank));
API(ncclCommInitRankConfig,
    (ncclComm_t * comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t *config),
    ((void)config, init(comm, ranks, &id, rank)));
API(ncclCommInitAll, (ncclComm_t * comms, int devices, const int *device),
    init_all(comms, devices, device));
API(ncclCommSplit, (ncclComm_t comm, int color, int key, ncclComm_t *child, ncclConfig_t *config),
    ((void)config, split(comm, color, key, child)));
#if FAKE_NCCL_VERSION >= 22700
API(ncclCommInitRankScalable,
    (ncclComm_t * comm, int ranks, int rank, int ids, ncclUniqueId *id, ncclConfig_t *config),
    ((void)config, ids < 1 || !id ? ncclInvalidArgument : init(comm, ranks, id, rank)));
API(ncclCommShrink,
    (ncclComm_t comm, int *excluded, int count, ncclComm_t *child, ncclConfig_t *config, int flags),
    ((void)config, (void)flags, shrink(comm, excluded, count, child)));
API(ncclCommRevoke, (ncclComm_t comm, int flags),
    !comm_is_valid(comm) || flags ? ncclInvalidArgument
				  : (segment_abort(comm->state.segment), ncclSuccess));
#endif
API(ncclCommFinalize, (ncclComm_t comm), finalize(comm));
API(ncclCommDestroy, (ncclComm_t comm), end(comm, false));
API(ncclCommAbort, (ncclComm_t comm), end(comm, true));
API(ncclCommGetAsyncError, (ncclComm_t comm, ncclResult_t *error), report_error(comm, error));
API(ncclCommCount, (const ncclComm_t comm, int *count), report(comm, &comm->nRanks, count));
API(ncclCommCuDevice, (const ncclComm_t comm, int *device), report(comm, &comm->cudaDev, device));
API(ncclCommUserRank, (const ncclComm_t comm, int *rank), report(comm, &comm->rank, rank));
API(ncclCommRegister, (const ncclComm_t comm, void *buffer, size_t bytes, void **handle),
    ((void)bytes,
     comm_is_valid(comm) && handle ? (*handle = buffer, ncclSuccess) : ncclInvalidArgument));
API(ncclCommDeregister, (const ncclComm_t comm, void *handle),
    ((void)handle, comm_is_valid(comm) ? ncclSuccess : ncclInvalidArgument));
API(ncclMemAlloc, (void **pointer, size_t bytes), device_allocate(pointer, bytes));
API(ncclMemFree, (void *pointer), device_free(pointer));

/* These answer with a text. */
const char *pncclGetErrorString(ncclResult_t status);
EXPORTED const char *pncclGetErrorString(ncclResult_t status)
{
	return error_text(status);
}
extern __typeof__(pncclGetErrorString) ncclGetErrorString
	__attribute__((weak, alias("pncclGetErrorString"), visibility("default")));

const char *pncclGetLastError(ncclComm_t comm);
EXPORTED const char *pncclGetLastError(ncclComm_t comm)
{
	(void)comm;
	return "";
}
extern __typeof__(pncclGetLastError) ncclGetLastError
	__attribute__((weak, alias("pncclGetLastError"), visibility("default")));
