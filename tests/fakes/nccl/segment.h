/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the file of a communicator holds, in shared memory: who has come, and rings of operations. A place
 * of a ring is used again when what it held has ended; an operation that is no longer there is over.
 */
#ifndef FAKE_NCCL_SEGMENT_H
#define FAKE_NCCL_SEGMENT_H

#include "library.h"

#define SPLITS_MAX	   64
#define COLLECTIVE_PLACES  512
#define MESSAGE_PLACES	   64
#define BATCH_PLACES	   64
#define BATCH_MESSAGES_MAX (2 * RANKS_MAX)

struct split {
	atomic_uint arrived;
	int color[RANKS_MAX], key[RANKS_MAX];
};

struct header {
	atomic_uint lock; /* pid of the holder */
	atomic_uint ranks, joined, left, aborted;
	struct split splits[SPLITS_MAX];
};

struct operation {
	_Atomic uint64_t owner; /* its number + 1; 0: none yet */
	atomic_uint arrived, waiters, unsettled;
	_Atomic int64_t end_ns; /* 0: not known yet */
	int64_t transfer_ns, latest_ns;
	uint64_t what; /* function, bytes: every side says the same */
	union {
		struct moment at[1]; /* of each side */
		uint64_t messages[BATCH_MESSAGES_MAX];
	};
};

struct segment {
	struct segment *next;
	uint64_t hash;
	unsigned int ranks;
	struct header *header;
	char *collectives, *messages, *batches;
};

int64_t clock_ns(void);
void sleep_until(int64_t ns);
/* Waits a while for the word to have another value. */
void word_wait(atomic_uint *word, unsigned int value);
void word_wake(atomic_uint *word);
void segment_lock(struct segment *segment);
void segment_unlock(struct segment *segment);

static inline size_t operation_bytes(unsigned int sides)
{
	size_t bytes = offsetof(struct operation, at) + sides * sizeof(struct moment);

	return bytes < sizeof(struct operation) ? sizeof(struct operation) : bytes;
}

#endif
