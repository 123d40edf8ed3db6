/* SPDX-License-Identifier: Apache-2.0 */
/*
 * MPI's functions as the fake has them. A handle is wide enough for both kinds of library: MPICH's ints and Open MPI's
 * addresses.
 */
#ifndef FAKE_MPI_H
#define FAKE_MPI_H

#include <stdint.h>

typedef uint64_t handle;

int MPI_Init(int *argc, char ***argv);
int MPI_Comm_rank(handle communicator, int *rank);
int MPI_Comm_size(handle communicator, int *ranks);
int MPI_Comm_free(handle *communicator);
int MPI_Allreduce(const void *from, void *into, int count, handle type, handle op,
		  handle communicator);
int MPI_Reduce(const void *from, void *into, int count, handle type, handle op, int root,
	       handle communicator);
int MPI_Bcast(void *buffer, int count, handle type, int root, handle communicator);
int MPI_Barrier(handle communicator);
int MPI_Alltoall(const void *from, int count, handle type, void *into, int counts, handle types,
		 handle communicator);
int MPI_Alltoallv(const void *from, const int *counts, const int *places, handle type, void *into,
		  const int *into_counts, const int *into_places, handle into_type,
		  handle communicator);
int MPI_Send(const void *from, int count, handle type, int peer, int tag, handle communicator);
int MPI_Recv(void *into, int count, handle type, int peer, int tag, handle communicator,
	     void *status);
int MPI_Sendrecv(const void *from, int count, handle type, int peer, int tag, void *into,
		 int into_count, handle into_type, int from_peer, int from_tag, handle communicator,
		 void *status);
int MPI_Wait(void *request, void *status);

#endif
