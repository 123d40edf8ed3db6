/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Some functions of NCCL that do nothing but hand out memory that the caller has laid out as communicators, and
 * count where they are reported to. VERSION: what the library says of itself. With LAYOUT, its debugging information
 * has a struct ncclComm.
 */
#include <stddef.h>
#include <stdint.h>

typedef struct {
	char internal[128];
} ncclUniqueId;

#ifdef LAYOUT
struct ncclComm {
	uint64_t startMagic;
	char other[4321 * 8];
	uint64_t magic;
	uint64_t commHash;
	int rank;
	int nRanks;
	int cudaDev;
	char more[100];
	uint64_t seqNumber[5];
	int localPersistentRefs;
	uint64_t endMagic;
};
#else
struct ncclComm;
#endif

#ifdef VERSION
__attribute__((used)) static const char version[] = "NCCL version " VERSION "+cuda12.9";
#endif

static struct ncclComm *next;
static uint64_t *counted;
static int *graphs;

__attribute__((used)) struct ncclComm *const *stub_next_communicator = &next;

int stubNext(struct ncclComm *communicator)
{
	next = communicator;
	return 0;
}

/* What a collective adds 1 to. */
int stubCount(uint64_t *count, int *graph_count)
{
	counted = count;
	graphs = graph_count;
	return 0;
}

int ncclCommInitRank(struct ncclComm **comm, int ranks, ncclUniqueId id, int rank)
{
	(void)ranks;
	(void)id;
	(void)rank;
	*comm = next;
	return 0;
}

int ncclCommSplit(struct ncclComm *comm, int color, int key, struct ncclComm **made, void *config)
{
	(void)comm;
	(void)color;
	(void)key;
	(void)config;
	*made = next;
	return 0;
}

int ncclCommInitAll(struct ncclComm **comms, int ranks, const int *devices)
{
	(void)devices;
	for (int i = 0; i < ranks; i++)
		comms[i] = next;
	return 0;
}

int ncclCommDestroy(struct ncclComm *comm)
{
	(void)comm;
	return 0;
}

int ncclGroupStart(void)
{
	return 0;
}

int ncclGroupEnd(void)
{
	return 0;
}

int ncclAllReduce(const void *send, void *receive, size_t count, int type, int op,
		  struct ncclComm *comm, void *stream)
{
	(void)send;
	(void)receive;
	(void)type;
	(void)op;
	(void)comm;
	(void)stream;
	if (count && counted)
		++*counted;
	if (graphs)
		++*graphs;
	return 0;
}
