/* SPDX-License-Identifier: Apache-2.0 */
/* The calls that move data. */
#include "library.h"

#define ADD(...)                                                     \
	((void)send, (void)receive,                                  \
	 group_add(&(const struct task){ .comm = comm,               \
					 .count = count,             \
					 .type = type,               \
					 .stream = (CUstream)stream, \
					 __VA_ARGS__ }))
#define FROM_TO const void *send, void *receive, size_t count, ncclDataType_t type
#define ON	ncclComm_t comm, ncclStream_t stream

API(ncclAllReduce, (FROM_TO, ncclRedOp_t op, ON),
    ADD(.function = ALL_REDUCE, .op = op, .peer = -1));
API(ncclReduceScatter, (FROM_TO, ncclRedOp_t op, ON),
    ADD(.function = REDUCE_SCATTER, .op = op, .peer = -1));
API(ncclReduce, (FROM_TO, ncclRedOp_t op, int root, ON),
    ADD(.function = REDUCE, .op = op, .peer = root));
API(ncclBroadcast, (FROM_TO, int root, ON), ADD(.function = BROADCAST, .peer = root));
API(ncclAllGather, (FROM_TO, ON), ADD(.function = ALL_GATHER, .peer = -1));
#if FAKE_NCCL_VERSION >= 22800
API(ncclAlltoAll, (FROM_TO, ON), ADD(.function = ALL_TO_ALL, .peer = -1));
API(ncclGather, (FROM_TO, int root, ON), ADD(.function = GATHER, .peer = root));
API(ncclScatter, (FROM_TO, int root, ON), ADD(.function = SCATTER, .peer = root));
#endif

#undef FROM_TO
#undef ADD
#define ADD(...)                                                                   \
	((void)buffer, group_add(&(const struct task){ .comm = comm,               \
						       .count = count,             \
						       .type = type,               \
						       .peer = peer,               \
						       .stream = (CUstream)stream, \
						       __VA_ARGS__ }))

API(ncclBcast, (void *buffer, size_t count, ncclDataType_t type, int peer, ON),
    ADD(.function = BROADCAST));
API(ncclSend, (const void *buffer, size_t count, ncclDataType_t type, int peer, ON),
    ADD(.function = SEND));
API(ncclRecv, (void *buffer, size_t count, ncclDataType_t type, int peer, ON),
    ADD(.function = RECEIVE));
API(ncclRedOpCreatePreMulSum,
    (ncclRedOp_t * op, void *scalar, ncclDataType_t type, int residence, ncclComm_t comm),
    ((void)scalar, (void)type, (void)residence,
     op &&comm_is_valid(comm) ? (*op = ncclSum, ncclSuccess) : ncclInvalidArgument));
API(ncclRedOpDestroy, (ncclRedOp_t op, ncclComm_t comm),
    ((void)op, comm_is_valid(comm) ? ncclSuccess : ncclInvalidArgument));
