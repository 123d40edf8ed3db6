/* SPDX-License-Identifier: Apache-2.0 */
#include "ranks.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define NS_PER_S  1000000000LL
#define NS_PER_US 1000L
#define POLL_US	  500
#define GATES_MAX 16

struct shared {
	atomic_int opened, at_gate[GATES_MAX];
	atomic_int made[IDS_MAX];
	ncclUniqueId ids[IDS_MAX];
};

int64_t ranks_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * NS_PER_S + now.tv_nsec;
}

void ranks_sleep_us(long us)
{
	struct timespec left = { .tv_sec = us / 1000000, .tv_nsec = us % 1000000 * NS_PER_US };

	while (us > 0 && nanosleep(&left, &left) && errno == EINTR)
		;
}

long ranks_option(const struct job *job, const char *name, long fallback)
{
	return truth_option(job->argc, job->argv, name, fallback);
}

ncclUniqueId ranks_id(struct job *job, int number, int maker)
{
	struct shared *shared = job->shared;

	if (job->rank == maker) {
		CHECKED(ncclGetUniqueId(&shared->ids[number]), "ncclGetUniqueId");
		atomic_store(&shared->made[number], 1);
	}
	while (!atomic_load(&shared->made[number]))
		ranks_sleep_us(POLL_US);
	return shared->ids[number];
}

void ranks_gate(struct job *job, int number)
{
	atomic_fetch_add(&job->shared->at_gate[number], 1);
	while (atomic_load(&job->shared->opened) < number)
		ranks_sleep_us(POLL_US);
}

FILE *ranks_file(const struct job *job, const char *suffix)
{
	char path[PATH_MAX];
	FILE *file;

	if (!job->folder)
		return NULL;
	snprintf(path, sizeof(path), "%s/rank-%d%s", job->folder, job->rank, suffix);
	file = fopen(path, "w");
	if (!file) {
		fprintf(stderr, "%s: %m\n", path);
		exit(2);
	}
	return file;
}

void ranks_hex(FILE *file, const ncclUniqueId *id)
{
	for (size_t i = 0; i < sizeof(id->internal); i++)
		fprintf(file, "%02x", (unsigned char)id->internal[i]);
}

static int run_rank(struct job *job, int (*work)(struct job *job))
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (ranks_option(job, "wait", 0))
		ranks_gate(job, 1);
	return work(job);
}

/* Opens the gates that the options name, in order: --gates=N of them beside the first. */
static void keep_gates(struct job *job)
{
	int first = ranks_option(job, "wait", 0) ? 1 : 2;
	int last = 1 + (int)ranks_option(job, "gates", 0);

	atomic_store(&job->shared->opened, first - 1);
	for (int gate = first; gate <= last; gate++) {
		while (gate > 1 && atomic_load(&job->shared->at_gate[gate]) < job->ranks)
			ranks_sleep_us(POLL_US);
		if (gate > 1)
			fprintf(stderr, "gate %d\n", gate);
		if (!truth_line()) {
			fprintf(stderr, "stdin was closed before a line came\n");
			exit(2);
		}
		atomic_store(&job->shared->opened, gate);
	}
}

int ranks_run(int argc, char **argv, int (*work)(struct job *job))
{
	struct job job = { .argc = argc, .argv = argv };
	pid_t pids[RANKS_MAX];
	int status, worst = 0;

	job.ranks = (int)ranks_option(&job, "ranks", 8);
	job.folder = truth_text(argc, argv, "truth");
	job.shared = mmap(NULL, sizeof(*job.shared), PROT_READ | PROT_WRITE,
			  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (job.ranks < 1 || job.ranks > RANKS_MAX || job.shared == MAP_FAILED)
		return 2;
	for (job.rank = 0; job.rank < job.ranks; job.rank++) {
		pids[job.rank] = fork();
		if (!pids[job.rank])
			exit(run_rank(&job, work));
	}
	fprintf(stderr, "ready %d", (int)getpid());
	for (int rank = 0; rank < job.ranks; rank++)
		fprintf(stderr, " %d", (int)pids[rank]);
	fprintf(stderr, "\n");
	keep_gates(&job);
	for (int left = job.ranks; left; left--) {
		if (wait(&status) < 0)
			return 2;
		if (WIFEXITED(status) && !WEXITSTATUS(status))
			continue;
		/* The others would wait for it for ever. */
		if (!worst)
			worst = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
		for (int rank = 0; rank < job.ranks; rank++)
			kill(pids[rank], SIGKILL);
	}
	return worst;
}
