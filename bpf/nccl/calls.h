/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Every NCCL function that is observed, and which of its arguments are read. The BPF programs, the probe
 * targets and docs/reference/nccl.md come from this table.
 *
 *   CALL(symbol, kind, shape, sequence, communicator, count, datatype, reduction, peer, stream)
 *
 * kind      enum nccl_kind without NCCL_
 * shape     enum nccl_shape without SHAPE_: what the slots alone cannot report
 * sequence  enum nccl_function without FUNCTION_: which of its counts the communicator advances
 * others    where the slot comes from: ARG(n) register argument n from 1, STACK(n) stack argument n from 0,
 *           BYTE the type of one byte, NONE
 *
 * Of a form with `Config` (2.32) the arguments before the last are those of the form without.
 *
 * Deliberately not observed: questions that are answered without talking to anybody (ncclCommCount,
 * ncclCommUserRank, ncclCommCuDevice, ncclGetLastError, ncclCommMemStats, ncclParam*), unique ids
 * (ncclGetUniqueId, ncclCommGetUniqueId), reduction operations being made, and ncclMemAlloc and ncclMemFree,
 * whose calls of the driver are seen by family cuda.
 *
 * Signatures: nccl.h of 2.18 to 2.32, in which no function has changed its own.
 */
#ifndef OTELGPU_NCCL_CALLS_H
#define OTELGPU_NCCL_CALLS_H

/* A slot's source in one byte: an index into struct words (lib/words.h), of which 7 is zero: ncclInt8. */
#define ARG(n)	 (n)
#define STACK(n) (8 + (n))
enum { NONE = 0, BYTE = 7 }; /* no macros: the columns are pasted to names */

enum nccl_shape {
	SHAPE_PLAIN = 0,	 /* the slots say it all */
	SHAPE_MADE = 1,		 /* ncclCommInitRank: ncclComm_t *, ranks, id by value, rank */
	SHAPE_MADE_SCALABLE = 2, /* ncclComm_t *, ranks, rank, how many ids, ids */
	SHAPE_MADE_ALL = 3,	 /* ncclComm_t[], how many */
	SHAPE_MADE_SPLIT = 4,	 /* parent, color, key, ncclComm_t * */
	SHAPE_MADE_SHRUNK = 5,	 /* parent, ranks left out, how many, ncclComm_t * */
	SHAPE_MADE_GROWN = 6,	 /* parent, ranks, id, rank, ncclComm_t * */
	SHAPE_ENDED = 7,	 /* the communicator is freed */
	SHAPE_ASYNC_ERROR = 8,	 /* communicator, ncclResult_t *: recorded only if it is an error */
	SHAPE_GROUP_BEGUN = 9,	 /* ncclGroupStart */
	SHAPE_GROUP_ENDED = 10,	 /* ncclGroupEnd, ncclGroupSimulateEnd */
	SHAPE_WAIT_SIGNAL = 11,	 /* how many, ncclWaitSignalDesc_t[]: the peer, if there is one */
};

/* Index of a function's count in seqNumber of struct ncclComm: ncclFunc_t, src/include/nccl_common.h. */
enum nccl_function {
	FUNCTION_BROADCAST = 0,
	FUNCTION_REDUCE = 1,
	FUNCTION_ALL_GATHER = 2,
	FUNCTION_REDUCE_SCATTER = 3,
	FUNCTION_ALL_REDUCE = 4,
	FUNCTION_UNCOUNTED =
		255, /* point to point, and what is made of that: AlltoAll, Gather, Scatter */
};

/* A collective and its form with a configuration. */
#define WITH_CONFIG(CALL, symbol, ...) CALL(symbol, __VA_ARGS__) CALL(symbol##Config, __VA_ARGS__)

#define NCCL_COLLECTIVES(CALL)                                                                     \
	WITH_CONFIG(CALL, ncclAllReduce, COLLECTIVE, PLAIN, ALL_REDUCE, ARG(6), ARG(3), ARG(4),    \
		    ARG(5), NONE, STACK(0))                                                        \
	WITH_CONFIG(CALL, ncclReduceScatter, COLLECTIVE, PLAIN, REDUCE_SCATTER, ARG(6), ARG(3),    \
		    ARG(4), ARG(5), NONE, STACK(0))                                                \
	WITH_CONFIG(CALL, ncclReduce, COLLECTIVE, PLAIN, REDUCE, STACK(0), ARG(3), ARG(4), ARG(5), \
		    ARG(6), STACK(1))                                                              \
	WITH_CONFIG(CALL, ncclBroadcast, COLLECTIVE, PLAIN, BROADCAST, ARG(6), ARG(3), ARG(4),     \
		    NONE, ARG(5), STACK(0))                                                        \
	CALL(ncclBcast, COLLECTIVE, PLAIN, BROADCAST, ARG(5), ARG(2), ARG(3), NONE, ARG(4),        \
	     ARG(6))                                                                               \
	WITH_CONFIG(CALL, ncclAllGather, COLLECTIVE, PLAIN, ALL_GATHER, ARG(5), ARG(3), ARG(4),    \
		    NONE, NONE, ARG(6))                                                            \
	WITH_CONFIG(CALL, ncclAlltoAll, COLLECTIVE, PLAIN, UNCOUNTED, ARG(5), ARG(3), ARG(4),      \
		    NONE, NONE, ARG(6))                                                            \
	WITH_CONFIG(CALL, ncclGather, COLLECTIVE, PLAIN, UNCOUNTED, ARG(6), ARG(3), ARG(4), NONE,  \
		    ARG(5), STACK(0))                                                              \
	WITH_CONFIG(CALL, ncclScatter, COLLECTIVE, PLAIN, UNCOUNTED, ARG(6), ARG(3), ARG(4), NONE, \
		    ARG(5), STACK(0))

#define NCCL_POINTS(CALL)                                                                      \
	CALL(ncclSend, POINT_TO_POINT, PLAIN, UNCOUNTED, ARG(5), ARG(2), ARG(3), NONE, ARG(4), \
	     ARG(6))                                                                           \
	CALL(ncclRecv, POINT_TO_POINT, PLAIN, UNCOUNTED, ARG(5), ARG(2), ARG(3), NONE, ARG(4), \
	     ARG(6))                                                                           \
	CALL(ncclPutSignal, POINT_TO_POINT, PLAIN, UNCOUNTED, STACK(3), ARG(2), ARG(3), NONE,  \
	     ARG(4), STACK(4))                                                                 \
	CALL(ncclSignal, POINT_TO_POINT, PLAIN, UNCOUNTED, ARG(5), NONE, NONE, NONE, ARG(1),   \
	     ARG(6))                                                                           \
	CALL(ncclWaitSignal, POINT_TO_POINT, WAIT_SIGNAL, UNCOUNTED, ARG(3), NONE, NONE, NONE, \
	     NONE, ARG(4))

/* Registered memory is reported in bytes. */
#define NCCL_COMMUNICATORS(CALL)                                                                   \
	CALL(ncclCommInitRank, COMMUNICATOR_CALL, MADE, UNCOUNTED, NONE, NONE, NONE, NONE, NONE,   \
	     NONE)                                                                                 \
	CALL(ncclCommInitRankConfig, COMMUNICATOR_CALL, MADE, UNCOUNTED, NONE, NONE, NONE, NONE,   \
	     NONE, NONE)                                                                           \
	CALL(ncclCommInitRankScalable, COMMUNICATOR_CALL, MADE_SCALABLE, UNCOUNTED, NONE, NONE,    \
	     NONE, NONE, NONE, NONE)                                                               \
	CALL(ncclCommInitAll, COMMUNICATOR_CALL, MADE_ALL, UNCOUNTED, NONE, NONE, NONE, NONE,      \
	     NONE, NONE)                                                                           \
	CALL(ncclCommSplit, COMMUNICATOR_CALL, MADE_SPLIT, UNCOUNTED, ARG(1), NONE, NONE, NONE,    \
	     NONE, NONE)                                                                           \
	CALL(ncclCommShrink, COMMUNICATOR_CALL, MADE_SHRUNK, UNCOUNTED, ARG(1), NONE, NONE, NONE,  \
	     NONE, NONE)                                                                           \
	CALL(ncclCommGrow, COMMUNICATOR_CALL, MADE_GROWN, UNCOUNTED, ARG(1), NONE, NONE, NONE,     \
	     NONE, NONE)                                                                           \
	CALL(ncclCommFinalize, COMMUNICATOR_CALL, PLAIN, UNCOUNTED, ARG(1), NONE, NONE, NONE,      \
	     NONE, NONE)                                                                           \
	CALL(ncclCommDestroy, COMMUNICATOR_CALL, ENDED, UNCOUNTED, ARG(1), NONE, NONE, NONE, NONE, \
	     NONE)                                                                                 \
	CALL(ncclCommAbort, COMMUNICATOR_CALL, ENDED, UNCOUNTED, ARG(1), NONE, NONE, NONE, NONE,   \
	     NONE)                                                                                 \
	CALL(ncclCommRevoke, COMMUNICATOR_CALL, PLAIN, UNCOUNTED, ARG(1), NONE, NONE, NONE, NONE,  \
	     NONE)                                                                                 \
	CALL(ncclCommSuspend, COMMUNICATOR_CALL, PLAIN, UNCOUNTED, ARG(1), NONE, NONE, NONE, NONE, \
	     NONE)                                                                                 \
	CALL(ncclCommResume, COMMUNICATOR_CALL, PLAIN, UNCOUNTED, ARG(1), NONE, NONE, NONE, NONE,  \
	     NONE)                                                                                 \
	CALL(ncclCommGetAsyncError, COMMUNICATOR_CALL, ASYNC_ERROR, UNCOUNTED, ARG(1), NONE, NONE, \
	     NONE, NONE, NONE)                                                                     \
	CALL(ncclCommRegister, COMMUNICATOR_CALL, PLAIN, UNCOUNTED, ARG(1), ARG(3), BYTE, NONE,    \
	     NONE, NONE)                                                                           \
	CALL(ncclCommDeregister, COMMUNICATOR_CALL, PLAIN, UNCOUNTED, ARG(1), NONE, NONE, NONE,    \
	     NONE, NONE)                                                                           \
	CALL(ncclCommWindowRegister, COMMUNICATOR_CALL, PLAIN, UNCOUNTED, ARG(1), ARG(3), BYTE,    \
	     NONE, NONE, NONE)                                                                     \
	CALL(ncclCommWindowDeregister, COMMUNICATOR_CALL, PLAIN, UNCOUNTED, ARG(1), NONE, NONE,    \
	     NONE, NONE, NONE)

#define NCCL_GROUP_ENDS(CALL)                                                                   \
	CALL(ncclGroupEnd, GROUP, GROUP_ENDED, UNCOUNTED, NONE, NONE, NONE, NONE, NONE, NONE)   \
	CALL(ncclGroupSimulateEnd, GROUP, GROUP_ENDED, UNCOUNTED, NONE, NONE, NONE, NONE, NONE, \
	     NONE)

/* Probed at entry and return. */
#define NCCL_PAIRS(CALL) \
	NCCL_COLLECTIVES(CALL) NCCL_POINTS(CALL) NCCL_COMMUNICATORS(CALL) NCCL_GROUP_ENDS(CALL)

/* Probed at the entry only: it does nothing but count. */
#define NCCL_ENTRIES(CALL) \
	CALL(ncclGroupStart, GROUP, GROUP_BEGUN, UNCOUNTED, NONE, NONE, NONE, NONE, NONE, NONE)

#define NCCL_CALLS(CALL) NCCL_PAIRS(CALL) NCCL_ENTRIES(CALL)

#endif
