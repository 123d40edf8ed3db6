/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks that do collectives: all the same, in the same order, chosen by the number of the collective. Beside
 * the options of ranks.h:
 *
 *   --communicators=N   3; the third, sixth… is split from the first by rank modulo 2 unless --split=0
 *   --collectives=N     of each communicator; 1000
 *   --mixed=1           all functions in turn, groups of one communicator and over all, and a ring of
 *                       ncclSend and ncclRecv every 32; 0: nothing but ncclAllReduce
 *   --count=N           elements of a float; 1024
 *   --synchronize=N     waits for the stream after every N collectives; 100
 *   --rate=N            collectives of each communicator a second, at most; 0: as many as there can be
 *   --late-rank=R --late-every=N --late-us=N   rank R comes late to each Nth collective of communicator 0
 *   --pause=N           all wait at gate 2 before collective N (with --gates=1)
 *
 * The truth: rank-R.json, the communicators; rank-R.bin, a struct call for each call in order.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cuda_runtime_api.h>

#include "ranks.h"

#define COMMUNICATORS_MAX 16
#define CHILDREN	  2 /* of a split */
#define NS_PER_S	  1000000000LL
#define NS_PER_US	  1000

/* As tests/rig/ranks.py names them. */
enum function {
	ALL_REDUCE,
	ALL_GATHER,
	REDUCE_SCATTER,
	BROADCAST,
	REDUCE,
	SEND,
	RECEIVE,
	GROUP, /* from ncclGroupStart to the end of ncclGroupEnd; count: calls in it */
	FUNCTIONS
};
#define MIXED_FUNCTIONS 5

struct call {
	int64_t start_ns, end_ns; /* CLOCK_MONOTONIC, around the call */
	uint64_t count;		  /* elements, as the call gives them */
	uint64_t sequence;	  /* earlier calls of this function on this communicator */
	uint64_t stream;
	int32_t tid;
	int32_t peer;	/* or root; -1: none */
	uint32_t group; /* ordinal, from 1; 0: in none */
	uint8_t communicator, function, datatype, reduction;
};

struct communicator {
	ncclComm_t handle;
	ncclUniqueId id;
	int parent, color, rank, ranks;
	uint64_t calls[FUNCTIONS];
};

static struct {
	struct job *job;
	struct communicator communicators[COMMUNICATORS_MAX];
	int count;
	cudaStream_t stream;
	void *send, *receive;
	long elements;
	uint32_t groups;
	uint32_t group; /* that is open */
	FILE *log;
	int tid;
} rank;

static void make(int number)
{
	struct communicator *made = &rank.communicators[number];
	struct job *job = rank.job;

	if (number % 3 == 2 && ranks_option(job, "split", 1)) {
		made->parent = 0;
		made->color = job->rank % CHILDREN;
		CHECKED(ncclCommSplit(rank.communicators[0].handle, made->color, job->rank,
				      &made->handle, NULL),
			"ncclCommSplit");
	} else {
		made->parent = -1;
		made->color = -1;
		made->id = ranks_id(job, number, number % job->ranks);
		if (number % 2)
			CHECKED(ncclCommInitRankConfig(&made->handle, job->ranks, made->id,
						       job->rank, NULL),
				"ncclCommInitRankConfig");
		else
			CHECKED(ncclCommInitRank(&made->handle, job->ranks, made->id, job->rank),
				"ncclCommInitRank");
	}
	CHECKED(ncclCommCount(made->handle, &made->ranks), "ncclCommCount");
	CHECKED(ncclCommUserRank(made->handle, &made->rank), "ncclCommUserRank");
}

static void note(struct call *call)
{
	call->end_ns = ranks_now_ns();
	call->tid = rank.tid;
	if (rank.log)
		fwrite(call, sizeof(*call), 1, rank.log);
}

static void operate(int number, enum function function, int peer)
{
	struct communicator *on = &rank.communicators[number];
	struct call call = { .count = (uint64_t)rank.elements,
			     .sequence = on->calls[function]++,
			     .stream = (uintptr_t)rank.stream,
			     .peer = peer,
			     .group = rank.group,
			     .communicator = (uint8_t)number,
			     .function = (uint8_t)function,
			     .datatype = ncclFloat32 };
	ncclResult_t status = ncclSuccess;

	call.start_ns = ranks_now_ns();
	switch (function) {
	case ALL_REDUCE:
		status = ncclAllReduce(rank.send, rank.receive, call.count, ncclFloat32, ncclSum,
				       on->handle, rank.stream);
		break;
	case ALL_GATHER:
		status = ncclAllGather(rank.send, rank.receive, call.count, ncclFloat32, on->handle,
				       rank.stream);
		break;
	case REDUCE_SCATTER:
		call.reduction = ncclMax;
		status = ncclReduceScatter(rank.send, rank.receive, call.count, ncclFloat32,
					   ncclMax, on->handle, rank.stream);
		break;
	case BROADCAST:
		status = ncclBroadcast(rank.send, rank.receive, call.count, ncclFloat32, peer,
				       on->handle, rank.stream);
		break;
	case REDUCE:
		status = ncclReduce(rank.send, rank.receive, call.count, ncclFloat32, ncclSum, peer,
				    on->handle, rank.stream);
		break;
	case SEND:
		status =
			ncclSend(rank.send, call.count, ncclFloat32, peer, on->handle, rank.stream);
		break;
	case RECEIVE:
		status = ncclRecv(rank.receive, call.count, ncclFloat32, peer, on->handle,
				  rank.stream);
		break;
	default:
		abort();
	}
	CHECKED(status, "a collective");
	note(&call);
}

static struct call begin_group(void)
{
	struct call call = {
		.start_ns = ranks_now_ns(), .peer = -1, .group = ++rank.groups, .function = GROUP
	};

	CHECKED(ncclGroupStart(), "ncclGroupStart");
	rank.group = rank.groups;
	return call;
}

static void end_group(struct call *call, int members)
{
	CHECKED(ncclGroupEnd(), "ncclGroupEnd");
	rank.group = 0;
	call->count = (uint64_t)members;
	note(call);
}

/* The collective of this number on this communicator: the same on all its ranks. */
static void choose(int number, long collective)
{
	enum function function = (enum function)((collective + number) % MIXED_FUNCTIONS);
	int root = (int)(collective % rank.communicators[number].ranks);

	operate(number, function, function == BROADCAST || function == REDUCE ? root : -1);
}

static void ring(int number)
{
	struct communicator *on = &rank.communicators[number];
	struct call group = begin_group();

	operate(number, SEND, (on->rank + 1) % on->ranks);
	operate(number, RECEIVE, (on->rank + on->ranks - 1) % on->ranks);
	end_group(&group, 2);
}

/* Collective `done` of all communicators, or that and the next: how many of each were done. */
static long mixed(long done, long last)
{
	bool over_all = done % 16 == 15, of_one = done % 16 == 7 && done + 1 < last;
	struct call group;

	if (over_all || of_one)
		group = begin_group();
	for (int number = 0; number < rank.count; number++) {
		choose(number, done);
		if (of_one)
			choose(number, done + 1);
	}
	if (over_all || of_one)
		end_group(&group, rank.count * (of_one ? 2 : 1));
	if (done % 32 == 3)
		ring(0);
	return of_one ? 2 : 1;
}

static long plain(long done)
{
	(void)done;
	for (int number = 0; number < rank.count; number++)
		operate(number, ALL_REDUCE, -1);
	return 1;
}

static void log_communicators(void)
{
	FILE *file = ranks_file(rank.job, ".json");

	if (!file)
		return;
	fprintf(file, "{\"rank\": %d, \"pid\": %d, \"communicators\": [", rank.job->rank,
		(int)getpid());
	for (int number = 0; number < rank.count; number++) {
		struct communicator *one = &rank.communicators[number];

		fprintf(file,
			"%s{\"address\": %llu, \"rank\": %d, \"ranks\": %d, \"parent\": %d, "
			"\"color\": %d, \"id\": \"",
			number ? ", " : "", (unsigned long long)(uintptr_t)one->handle, one->rank,
			one->ranks, one->parent, one->color);
		ranks_hex(file, &one->id);
		fprintf(file, "\"}");
	}
	fprintf(file, "]}\n");
	fclose(file);
}

static int work(struct job *job)
{
	long last = ranks_option(job, "collectives", 1000);
	long every = ranks_option(job, "synchronize", 100), pause = ranks_option(job, "pause", -1);
	long late_every = ranks_option(job, "late-every", 10), next = every;
	long late_us = job->rank == ranks_option(job, "late-rank", -1)
			       ? ranks_option(job, "late-us", 2000)
			       : 0;
	long rate = ranks_option(job, "rate", 0);
	bool is_mixed = ranks_option(job, "mixed", 1);
	int64_t started_ns;
	int devices;

	rank.job = job;
	rank.tid = (int)syscall(SYS_gettid);
	rank.count = (int)ranks_option(job, "communicators", 3);
	rank.elements = ranks_option(job, "count", 1024);
	rank.log = ranks_file(job, ".bin");
	CHECKED(cudaGetDeviceCount(&devices), "cudaGetDeviceCount");
	CHECKED(cudaSetDevice(job->rank % devices), "cudaSetDevice");
	CHECKED(cudaStreamCreateWithFlags(&rank.stream, cudaStreamNonBlocking), "cudaStreamCreate");
	CHECKED(cudaMalloc(&rank.send, (size_t)rank.elements * sizeof(float)), "cudaMalloc");
	CHECKED(cudaMalloc(&rank.receive, (size_t)rank.elements * sizeof(float)), "cudaMalloc");
	for (int number = 0; number < rank.count; number++)
		make(number);
	log_communicators();
	started_ns = ranks_now_ns();
	for (long done = 0; done < last;) {
		if (rate)
			ranks_sleep_us((started_ns + done * NS_PER_S / rate - ranks_now_ns()) /
				       NS_PER_US);
		if (pause >= 0 && done >= pause) {
			pause = -1;
			ranks_gate(job, 2);
		}
		if (late_us && done % late_every == late_every - 1)
			ranks_sleep_us(late_us);
		done += is_mixed ? mixed(done, last) : plain(done);
		if (done < next)
			continue;
		next += every;
		CHECKED(cudaStreamSynchronize(rank.stream), "cudaStreamSynchronize");
	}
	CHECKED(cudaStreamSynchronize(rank.stream), "cudaStreamSynchronize");
	for (int number = rank.count; number--;)
		CHECKED(ncclCommDestroy(rank.communicators[number].handle), "ncclCommDestroy");
	if (rank.log)
		fclose(rank.log);
	return 0;
}

int main(int argc, char **argv)
{
	return ranks_run(argc, argv, work);
}
