/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank of an MPI program, with handles as those of MPICH (--ints=1) or of Open MPI.
 *
 *   --steps=N (23) --ints=1
 *   --absurd=1   handles, counts and addresses that lead nowhere in place of its last calls
 */
#include <stdlib.h>

#include "../programs/truth.h"
#include "mpi.h"

#define PEER 2
#define ANY  (-1)

/* opal/datatype/opal_datatype.h, as far as it is read. */
struct datatype {
	void *class_of;
	int64_t references;
	uint16_t flags;
	uint16_t id;
	uint32_t used;
	size_t size;
};

#define COMMITTED 0x4
#define GARBAGE	  0xdeadbeef00000000 /* above an int that lies on the stack */

static struct datatype of_double = { .flags = COMMITTED, .size = 8 };
static struct datatype huge = { .flags = COMMITTED, .size = SIZE_MAX };
static struct datatype unfinished = { .size = 8 };
static char world_object[64], other_object[64];

static void step(handle world, handle type, handle on_stack)
{
	static char buffer[64];

	CALL(MPI_Allreduce, buffer, buffer, 1000, type, 0, world);
	CALL(MPI_Reduce, buffer, buffer, 10, type, 0, PEER, on_stack);
	CALL(MPI_Bcast, buffer, 7, type, 0, world);
	CALL(MPI_Alltoall, buffer, 5, type, buffer, 5, type, on_stack);
	CALL(MPI_Alltoallv, buffer, NULL, NULL, type, buffer, NULL, NULL, type, on_stack);
	CALL(MPI_Barrier, world);
	CALL(MPI_Send, buffer, 3, type, PEER, 0, world);
	CALL(MPI_Recv, buffer, 3, type, ANY, 0, world, NULL);
	CALL(MPI_Sendrecv, buffer, 2, type, PEER, 0, buffer, 9, type, ANY, 0, on_stack, NULL);
	CALL(MPI_Wait, buffer, NULL);
}

static void absurd(handle world, handle type)
{
	int rank;

	CALL(MPI_Allreduce, NULL, NULL, -5, type, 0, world);
	CALL(MPI_Allreduce, NULL, NULL, 5, 0x10, 0, world);
	CALL(MPI_Allreduce, NULL, NULL, 5, (handle)0x7fff00000000, 0, world);
	CALL(MPI_Allreduce, NULL, NULL, 5, (handle)&huge, 0, world);
	CALL(MPI_Allreduce, NULL, NULL, 5, (handle)&unfinished, 0, world);
	MPI_Comm_rank(0, NULL);
	MPI_Comm_free(NULL);
	CALL(MPI_Barrier, 0);
	MPI_Comm_rank(0, &rank); /* of no size */
	CALL(MPI_Barrier, 0);
	setenv("FAKE_MPI_RANK", "-5", 1);
	MPI_Comm_rank(1, &rank);
	setenv("FAKE_MPI_RANK", "9", 1); /* of 4 */
	MPI_Comm_rank(1, &rank);
	MPI_Comm_size(1, &rank);
	CALL(MPI_Barrier, 1);
}

int main(int argc, char **argv)
{
	bool ints = truth_option(argc, argv, "ints", 0);
	handle world = ints ? 0x44000000 : (handle)world_object;
	handle other = ints ? 0x84000003 : (handle)other_object;
	handle type = ints ? 0x4c00080b : (handle)&of_double;
	int rank, ranks;

	MPI_Init(&argc, &argv);
	for (int i = 0; i < 2; i++) {
		MPI_Comm_rank(i ? other : world, &rank);
		MPI_Comm_size(i ? other : world, &ranks);
	}
	for (long i = truth_option(argc, argv, "steps", 23); i; i--)
		step(world, type, ints ? world | GARBAGE : world);
	CALL(MPI_Barrier, other);
	MPI_Comm_free(&other);
	CALL(MPI_Barrier, other); /* another's, of which nobody has asked */
	if (truth_option(argc, argv, "absurd", 0))
		absurd(world, type);
	truth_print();
	return 0;
}
