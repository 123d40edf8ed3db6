/* SPDX-License-Identifier: Apache-2.0 */
/* How late, how slow: from the environment; what cannot be read ends the process with a line on stderr. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "library.h"

#define LATE_MAX  64
#define NS_PER_US 1000

struct late {
	int rank;
	unsigned long number;
	long us;
};

struct settings settings = {
	.directory = "/dev/shm", .bytes_per_ns = 100, .latency_ns = 5 * NS_PER_US, .slow_rank = -1
};
static struct late lates[LATE_MAX];
static int late_count;
static struct late async_error = { .rank = -1 };

static void refuse(const char *name, const char *text)
{
	fprintf(stderr, "NCCL fake: %s='%s' cannot be read\n", name, text);
	_exit(2);
}

static double number(const char *name, double fallback)
{
	const char *text = getenv(name);
	char *end = NULL;
	double value;

	if (!text || !*text)
		return fallback;
	value = strtod(text, &end);
	if (*end || !(value >= 0))
		refuse(name, text);
	return value;
}

static struct late parse(const char *name, const char *item)
{
	struct late late;
	int used = 0;

	if (sscanf(item, "%d:%lu:%ld%n", &late.rank, &late.number, &late.us, &used) != 3 ||
	    item[used])
		refuse(name, item);
	return late;
}

static void read_lates(const char *text)
{
	char *copy = strdup(text), *rest = NULL;

	for (char *item = strtok_r(copy, ",", &rest); item; item = strtok_r(NULL, ",", &rest)) {
		if (late_count == LATE_MAX)
			refuse("FAKE_NCCL_LATE", text);
		lates[late_count++] = parse("FAKE_NCCL_LATE", item);
	}
	free(copy);
}

__attribute__((constructor)) static void library_loaded(void)
{
	const char *text = getenv("FAKE_NCCL_DIRECTORY");

	calls_configure();
	if (text && *text)
		settings.directory = strdup(text);
	settings.bytes_per_ns = number("FAKE_NCCL_GB_PER_S", settings.bytes_per_ns);
	settings.latency_ns =
		(int64_t)(number("FAKE_NCCL_LATENCY_US", (double)settings.latency_ns / NS_PER_US) *
			  NS_PER_US);
	text = getenv("FAKE_NCCL_SLOW");
	if (text && *text &&
	    sscanf(text, "%d:%lf", &settings.slow_rank, &settings.slow_bytes_per_ns) != 2)
		refuse("FAKE_NCCL_SLOW", text);
	text = getenv("FAKE_NCCL_LATE");
	if (text && *text)
		read_lates(text);
	text = getenv("FAKE_NCCL_ASYNC_ERROR");
	if (text && *text)
		async_error = parse("FAKE_NCCL_ASYNC_ERROR", text);
}

__attribute__((destructor)) static void library_unloaded(void)
{
	calls_report();
}

int64_t lateness_ns(const struct ncclComm *comm, uint64_t number)
{
	for (int i = 0; i < late_count; i++)
		if (lates[i].rank == comm->state.first_rank && lates[i].number == number)
			return lates[i].us * NS_PER_US;
	return 0;
}

void note_async_error(struct ncclComm *comm, uint64_t number)
{
	if (async_error.rank == comm->state.first_rank && async_error.number == number)
		comm->state.async_error = (int)async_error.us;
}
