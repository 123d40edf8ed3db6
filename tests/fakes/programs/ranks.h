/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks of a job: a process each, which the program forks before it touches CUDA. They have the same device
 * numbers as ranks (modulo what there is), share unique ids and gates that the first process opens, one for
 * each line on its stdin.
 *
 *   --ranks=N        processes; 8
 *   --truth=FOLDER   where each rank writes what it did; none: it writes nothing
 *   --wait=1         all wait at gate 1 before their first call; the first process writes
 *                    "ready PID PID…" (its own, then the ranks') to stderr
 */
#ifndef FAKE_PROGRAMS_RANKS_H
#define FAKE_PROGRAMS_RANKS_H

#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>

#include "../nccl/nccl.h"
#include "truth.h"

#define IDS_MAX	  64
#define RANKS_MAX 64

struct job {
	int argc;
	char **argv;
	int rank, ranks;
	const char *folder; /* NULL: no truth */
	struct shared *shared;
};

/* Runs `work` in each rank's process; the exit code of the program: 0, or the first that is not. */
int ranks_run(int argc, char **argv, int (*work)(struct job *job));
/* Unique id `number`, which rank `maker` makes and the others wait for. */
ncclUniqueId ranks_id(struct job *job, int number, int maker);
/* Waits until so many lines came. All ranks are at the gate when the first process says "gate N" on stderr. */
void ranks_gate(struct job *job, int number);
long ranks_option(const struct job *job, const char *name, long fallback);
/* A file of this rank in the folder, "rank-3.bin"; NULL: there is no folder. */
FILE *ranks_file(const struct job *job, const char *suffix);
void ranks_hex(FILE *file, const ncclUniqueId *id);
int64_t ranks_now_ns(void); /* CLOCK_MONOTONIC */
void ranks_sleep_us(long us);

#endif
