/* SPDX-License-Identifier: Apache-2.0 */
/* What was called, what is held, and the lines that say so. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "memory.h"

#define FUNCTIONS_MAX 96

static const char *const memory_names[MEMORIES] = {
	"none",	    "device",	  "managed",  "host",	 "pool",
	"physical", "registered", "imported", "address",
};

int device_count;

static struct {
	uint64_t live_bytes[DEVICES_MAX][MEMORIES], live_count[DEVICES_MAX][MEMORIES];
	uint64_t allocated_bytes[MEMORIES], freed_bytes[MEMORIES];
	struct {
		const char *name;
		uint64_t calls, failures;
	} functions[FUNCTIONS_MAX];
} account;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

int noted(int status, const char *function)
{
	size_t i = 0;

	pthread_mutex_lock(&lock);
	while (account.functions[i].name && strcmp(account.functions[i].name, function))
		if (++i == FUNCTIONS_MAX)
			abort();
	account.functions[i].name = function;
	account.functions[i].calls++;
	account.functions[i].failures += status != 0;
	pthread_mutex_unlock(&lock);
	return status;
}

void must(int status)
{
	if (!status)
		return;
	fprintf(stderr, "memory: a call that has to succeed gave %d\n", status);
	exit(3);
}

void came(const struct item *item)
{
	pthread_mutex_lock(&lock);
	account.live_bytes[item->device][item->memory] += item->bytes;
	account.live_count[item->device][item->memory]++;
	account.allocated_bytes[item->memory] += item->bytes;
	pthread_mutex_unlock(&lock);
}

void went(const struct item *item)
{
	pthread_mutex_lock(&lock);
	account.live_bytes[item->device][item->memory] -= item->bytes;
	account.live_count[item->device][item->memory]--;
	account.freed_bytes[item->memory] += item->bytes;
	pthread_mutex_unlock(&lock);
}

static void print_bytes(const char *name, const uint64_t *bytes)
{
	const char *separator = "";

	printf(", \"%s\": {", name);
	for (int memory = 1; memory < MEMORIES; memory++) {
		printf("%s\"%s\": %llu", separator, memory_names[memory],
		       (unsigned long long)bytes[memory]);
		separator = ", ";
	}
	printf("}");
}

static void print_functions(const char *name, bool failures)
{
	const char *separator = "";

	printf(", \"%s\": {", name);
	for (int i = 0; i < FUNCTIONS_MAX && account.functions[i].name; i++) {
		uint64_t count =
			failures ? account.functions[i].failures : account.functions[i].calls;

		if (!count)
			continue;
		printf("%s\"%s\": %llu", separator, account.functions[i].name,
		       (unsigned long long)count);
		separator = ", ";
	}
	printf("}");
}

/* What the driver says is in use on each device: an account that this program had no part in. */
static void print_used(void)
{
	size_t unused, total;

	printf(", \"used_bytes\": {");
	for (int device = 0; device < device_count; device++) {
		must(TRY(cudaSetDevice, device));
		must(TRY(cuMemGetInfo, &unused, &total));
		printf("%s\"%d\": %zu", device ? ", " : "", device, total - unused);
	}
	printf("}");
}

void print_checkpoint(long number, long done)
{
	struct timespec now;
	const char *separator = "";

	clock_gettime(CLOCK_MONOTONIC, &now);
	printf("{\"checkpoint\": %ld, \"time_ns\": %lld, \"operations\": %ld, \"live\": {", number,
	       (long long)now.tv_sec * 1000000000LL + now.tv_nsec, done);
	for (int device = 0; device < device_count; device++) {
		for (int memory = 1; memory < MEMORIES; memory++) {
			if (!account.live_count[device][memory])
				continue;
			printf("%s\"%d/%s\": {\"bytes\": %llu, \"count\": %llu}", separator, device,
			       memory_names[memory],
			       (unsigned long long)account.live_bytes[device][memory],
			       (unsigned long long)account.live_count[device][memory]);
			separator = ", ";
		}
	}
	printf("}");
	print_used();
	print_bytes("allocated_bytes", account.allocated_bytes);
	print_bytes("freed_bytes", account.freed_bytes);
	print_functions("calls", false);
	print_functions("failures", true);
	printf("}\n");
	fflush(stdout);
}
