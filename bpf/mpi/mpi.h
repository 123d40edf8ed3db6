/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Records of family mpi: collectives of MPI, sends and receives that block, and waits for what does not. Each has ended
 * for this rank when the call returns.
 */
#ifndef OTELGPU_MPI_H
#define OTELGPU_MPI_H

#include "../lib/record.h"
#include "calls.h"

/* Number of OperationKind (otelgpu/model/operations.py): a test compares them. */
enum mpi_kind {
	MPI_CALL = 14,
};

struct mpi_call {
	struct record_head head;
	__u64 communicator; /* the caller's handle, a number (MPICH) or an address (Open MPI); 0: none */
	__u64 bytes;	    /* of this rank's message; 0: not known */
	__s32 rank;	    /* in the communicator; -1: not known */
	__s32 ranks;	    /* -1: not known */
	__s32 root;	    /* of a transfer the peer; -1: none, or any */
	__u16 api;	    /* enum mpi_api */
	__u8 transfer;	    /* 1: a send or receive */
	__u8 wait;	    /* 1: for what was begun without waiting */
	__u8 created; /* 1: MPI_Init of this process was seen, and so every call of the communicator */
	__u8 freed; /* 1: the communicator is none from now on */
	__u8 reserved[6];
};

/* Which function was called: the enumerator is API_ and the exported name. */
enum mpi_api {
	API_NONE = 0,
#define MPI_ENUMERATOR(symbol, ...) API_##symbol,
	MPI_CALLS(MPI_ENUMERATOR)
#undef MPI_ENUMERATOR
		API_COUNT
};

#endif
