/* SPDX-License-Identifier: Apache-2.0 */
#include "segment.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define NS_PER_S    1000000000LL
#define WAIT_NS	    50000000 /* then look whether somebody aborted */
#define SPINS_ALIVE 1000     /* tries for the lock before asking whether its holder lives */
#define SPIN_NS	    20000

static struct segment *segments;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

int64_t clock_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * NS_PER_S + now.tv_nsec;
}

void sleep_until(int64_t ns)
{
	struct timespec until = { .tv_sec = ns / NS_PER_S, .tv_nsec = ns % NS_PER_S };

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
		;
}

void word_wait(atomic_uint *word, unsigned int value)
{
	const struct timespec limit = { .tv_nsec = WAIT_NS };

	syscall(SYS_futex, word, FUTEX_WAIT, value, &limit, NULL, 0);
}

void word_wake(atomic_uint *word)
{
	syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* Held for less than a microsecond; a process that was killed meanwhile does not keep it. */
void segment_lock(struct segment *segment)
{
	const struct timespec pause = { .tv_nsec = SPIN_NS };
	const unsigned int own = (unsigned int)getpid();
	unsigned int holder = 0;

	for (unsigned int tries = 1;; tries++) {
		holder = 0;
		if (atomic_compare_exchange_strong(&segment->header->lock, &holder, own))
			return;
		if (tries % SPINS_ALIVE == 0 && kill((pid_t)holder, 0) && errno == ESRCH)
			atomic_compare_exchange_strong(&segment->header->lock, &holder, 0);
		nanosleep(&pause, NULL);
	}
}

void segment_unlock(struct segment *segment)
{
	atomic_store(&segment->header->lock, 0);
}

static void name_file(char path[PATH_MAX], uint64_t hash)
{
	snprintf(path, PATH_MAX, "%s/fake-nccl-%016llx", settings.directory,
		 (unsigned long long)hash);
}

static void place(struct segment *segment, size_t *bytes)
{
	size_t ranks = segment->ranks, used = (sizeof(struct header) + 63) / 64 * 64;
	char *base = (char *)segment->header;

	segment->collectives = base + used;
	used += COLLECTIVE_PLACES * operation_bytes(segment->ranks);
	segment->messages = base + used;
	used += ranks * ranks * MESSAGE_PLACES * operation_bytes(2);
	segment->batches = base + used;
	*bytes = used + ranks * BATCH_PLACES * operation_bytes(1);
}

/* Maps the file; its size says nothing, the count of ranks in it does. */
static bool map(struct segment *segment, int file, unsigned int ranks)
{
	unsigned int known = 0;
	struct header *header;
	struct stat status;
	size_t bytes = 0;

	if (ranks) {
		segment->ranks = ranks;
		place(segment, &bytes);
		if (ftruncate(file, (off_t)bytes))
			return false;
	} else if (fstat(file, &status) || !status.st_size) {
		return false;
	} else {
		bytes = (size_t)status.st_size;
	}
	header = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	if (header == MAP_FAILED)
		return false;
	if (ranks && !atomic_compare_exchange_strong(&header->ranks, &known, ranks) &&
	    known != ranks)
		return false;
	segment->ranks = atomic_load(&header->ranks);
	segment->header = header;
	place(segment, &bytes);
	return true;
}

static struct segment *add(uint64_t hash, int ranks)
{
	struct segment *added = calloc(1, sizeof(*added));
	char path[PATH_MAX];
	int file;

	name_file(path, hash);
	file = open(path, O_RDWR | O_CLOEXEC | (ranks ? O_CREAT : 0), 0600);
	added->hash = hash;
	if (file < 0 || !map(added, file, (unsigned int)ranks)) {
		if (file >= 0)
			close(file);
		free(added);
		return NULL;
	}
	close(file);
	added->next = segments;
	return segments = added;
}

/* Never unmapped: somebody's stream may still wait for an operation in it. */
struct segment *segment_open(uint64_t hash, int ranks)
{
	struct segment *found;

	pthread_mutex_lock(&lock);
	for (found = segments; found && found->hash != hash; found = found->next)
		;
	if (!found)
		found = add(hash, ranks);
	else if (ranks && found->ranks != (unsigned int)ranks)
		found = NULL;
	pthread_mutex_unlock(&lock);
	return found;
}

uint64_t segment_hash(const struct segment *segment)
{
	return segment->hash;
}

int segment_ranks(const struct segment *segment)
{
	return (int)segment->ranks;
}

void segment_join(struct segment *segment)
{
	if (atomic_fetch_add(&segment->header->joined, 1) + 1 == segment->ranks)
		word_wake(&segment->header->joined);
}

static bool wait_for(struct segment *segment, atomic_uint *word)
{
	unsigned int value;

	while ((value = atomic_load(word)) < segment->ranks) {
		if (segment_aborted(segment))
			return false;
		word_wait(word, value);
	}
	return true;
}

bool segment_wait_for_all(struct segment *segment)
{
	return wait_for(segment, &segment->header->joined);
}

void segment_leave(struct segment *segment)
{
	char path[PATH_MAX];

	if (atomic_fetch_add(&segment->header->left, 1) + 1 < segment->ranks)
		return;
	name_file(path, segment->hash);
	unlink(path);
}

void segment_abort(struct segment *segment)
{
	atomic_store(&segment->header->aborted, 1);
}

bool segment_aborted(const struct segment *segment)
{
	return atomic_load(&segment->header->aborted);
}

int segment_split(struct segment *segment, uint64_t number, int rank, int color, int key,
		  int members[RANKS_MAX])
{
	struct split *split = &segment->header->splits[number % SPLITS_MAX];
	int count = 0, place;

	split->color[rank] = color;
	split->key[rank] = key;
	if (atomic_fetch_add(&split->arrived, 1) + 1 == segment->ranks)
		word_wake(&split->arrived);
	if (!wait_for(segment, &split->arrived))
		return 0;
	for (int other = 0; other < (int)segment->ranks; other++) {
		if (split->color[other] != color)
			continue;
		for (place = count++; place && split->key[members[place - 1]] > split->key[other];
		     place--)
			members[place] = members[place - 1];
		members[place] = other;
	}
	return count;
}
