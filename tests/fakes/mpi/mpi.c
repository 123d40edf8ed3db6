/* SPDX-License-Identifier: Apache-2.0 */
/* The fake libmpi.so: a rank of FAKE_MPI_RANKS, FAKE_MPI_RANK of them, that is alone and waits for nobody. */
#include <stdlib.h>

#include "mpi.h"

#pragma GCC diagnostic ignored "-Wunused-parameter"

static int number(const char *name, int fallback)
{
	const char *text = getenv(name);

	return text ? atoi(text) : fallback;
}

int MPI_Init(int *argc, char ***argv)
{
	return 0;
}

int MPI_Comm_rank(handle communicator, int *rank)
{
	if (rank)
		*rank = number("FAKE_MPI_RANK", 0);
	return 0;
}

int MPI_Comm_size(handle communicator, int *ranks)
{
	if (ranks)
		*ranks = number("FAKE_MPI_RANKS", 1);
	return 0;
}

int MPI_Comm_free(handle *communicator)
{
	return 0;
}

int MPI_Allreduce(const void *from, void *into, int count, handle type, handle op,
		  handle communicator)
{
	return 0;
}

int MPI_Reduce(const void *from, void *into, int count, handle type, handle op, int root,
	       handle communicator)
{
	return 0;
}

int MPI_Bcast(void *buffer, int count, handle type, int root, handle communicator)
{
	return 0;
}

int MPI_Barrier(handle communicator)
{
	return 0;
}

int MPI_Alltoall(const void *from, int count, handle type, void *into, int counts, handle types,
		 handle communicator)
{
	return 0;
}

/* Is made of another one, as libraries do. */
int MPI_Alltoallv(const void *from, const int *counts, const int *places, handle type, void *into,
		  const int *into_counts, const int *into_places, handle into_type,
		  handle communicator)
{
	return MPI_Barrier(communicator) + MPI_Barrier(communicator);
}

int MPI_Send(const void *from, int count, handle type, int peer, int tag, handle communicator)
{
	return 0;
}

int MPI_Recv(void *into, int count, handle type, int peer, int tag, handle communicator,
	     void *status)
{
	return 0;
}

int MPI_Sendrecv(const void *from, int count, handle type, int peer, int tag, void *into,
		 int into_count, handle into_type, int from_peer, int from_tag, handle communicator,
		 void *status)
{
	return 0;
}

int MPI_Wait(void *request, void *status)
{
	return 0;
}
