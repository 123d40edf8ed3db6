/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Every function that family mpi observes: the BPF programs and the probe targets come from this table.
 *
 *   CALL(symbol, shape, communicator, count, datatype, root)
 *
 * shape: enum mpi_shape without SHAPE_. The others are which argument it is, from 1; NO: it has none. Where a call has
 * several counts, those of the caller's own part. The standard has had all of them so since MPI 2.2. PMPI_… are other
 * names of the same code. The functions for Fortran in libmpi_mpifh (Open MPI) and libmpichfort call these.
 */
#ifndef OTELGPU_MPI_CALLS_H
#define OTELGPU_MPI_CALLS_H

enum mpi_shape {
	SHAPE_COLLECTIVE = 0,
	SHAPE_SPREAD = 1,   /* a collective whose count is that of one of all ranks' parts */
	SHAPE_TRANSFER = 2, /* a send or receive that blocks; `root` is the peer */
	SHAPE_WAIT = 3,	    /* for what was begun without waiting */
	SHAPE_INIT = 4,
	SHAPE_RANK = 5, /* (communicator, int *rank) */
	SHAPE_SIZE = 6, /* (communicator, int *ranks) */
	SHAPE_FREE = 7, /* (communicator *): its handle may become another's */
};

#define NO 0

#define MPI_CALLS(CALL)                                     \
	CALL(MPI_Allreduce, COLLECTIVE, 6, 3, 4, NO)        \
	CALL(MPI_Reduce, COLLECTIVE, 7, 3, 4, 6)            \
	CALL(MPI_Bcast, COLLECTIVE, 5, 2, 3, 4)             \
	CALL(MPI_Barrier, COLLECTIVE, 1, NO, NO, NO)        \
	CALL(MPI_Allgather, COLLECTIVE, 7, 2, 3, NO)        \
	CALL(MPI_Allgatherv, COLLECTIVE, 8, 2, 3, NO)       \
	CALL(MPI_Gather, COLLECTIVE, 8, 2, 3, 7)            \
	CALL(MPI_Gatherv, COLLECTIVE, 9, 2, 3, 8)           \
	CALL(MPI_Scatter, COLLECTIVE, 8, 5, 6, 7)           \
	CALL(MPI_Scatterv, COLLECTIVE, 9, 6, 7, 8)          \
	CALL(MPI_Alltoall, SPREAD, 7, 2, 3, NO)             \
	CALL(MPI_Alltoallv, COLLECTIVE, 9, NO, NO, NO)      \
	CALL(MPI_Reduce_scatter, COLLECTIVE, 6, NO, NO, NO) \
	CALL(MPI_Reduce_scatter_block, SPREAD, 6, 3, 4, NO) \
	CALL(MPI_Scan, COLLECTIVE, 6, 3, 4, NO)             \
	CALL(MPI_Exscan, COLLECTIVE, 6, 3, 4, NO)           \
	CALL(MPI_Send, TRANSFER, 6, 2, 3, 4)                \
	CALL(MPI_Ssend, TRANSFER, 6, 2, 3, 4)               \
	CALL(MPI_Recv, TRANSFER, 6, 2, 3, 4)                \
	CALL(MPI_Sendrecv, TRANSFER, 11, 2, 3, 4)           \
	CALL(MPI_Wait, WAIT, NO, NO, NO, NO)                \
	CALL(MPI_Waitall, WAIT, NO, NO, NO, NO)             \
	CALL(MPI_Waitany, WAIT, NO, NO, NO, NO)             \
	CALL(MPI_Waitsome, WAIT, NO, NO, NO, NO)            \
	CALL(MPI_Init, INIT, NO, NO, NO, NO)                \
	CALL(MPI_Init_thread, INIT, NO, NO, NO, NO)         \
	CALL(MPI_Comm_rank, RANK, 1, NO, NO, NO)            \
	CALL(MPI_Comm_size, SIZE, 1, NO, NO, NO)            \
	CALL(MPI_Comm_free, FREE, NO, NO, NO, NO)

#endif
