/* SPDX-License-Identifier: Apache-2.0 */
#include "calls.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FAILURES_MAX	 64
#define LEDGER_BYTES_MAX 4096
#define CUDA_ERROR_MAX	 10000 /* cudaErrorApiFailureBase */

struct failure {
	enum call call;
	unsigned long nth; /* 1: the first call */
	cudaError_t status;
};

static const char *const names[CALL_COUNT] = {
#define NAME(name) [CALL_##name] = #name,
	FAKE_CUDART_FUNCTIONS(NAME)
#undef NAME
};

static struct failure failures[FAILURES_MAX];
static size_t failure_count;
static atomic_ulong counts[CALL_COUNT];
static atomic_flag reported = ATOMIC_FLAG_INIT;
static char *ledger_path;
static _Thread_local cudaError_t last_error;

static void add_failure(char *item)
{
	char name[64];
	unsigned long nth;
	unsigned int status;
	int used = 0;

	if (failure_count == FAILURES_MAX) {
		fprintf(stderr, "libcudart stand-in: FAKE_CUDART_FAIL has more than %d items\n",
			FAILURES_MAX);
		_exit(2);
	}
	if (sscanf(item, "%63[A-Za-z0-9_]:%lu:%u%n", name, &nth, &status, &used) == 3 &&
	    item[used] == '\0' && nth > 0 && status > 0 && status < CUDA_ERROR_MAX) {
		for (enum call call = 0; call < CALL_FIRST_COUNTED_ONLY; call++) {
			if (strcmp(name, names[call]) == 0) {
				failures[failure_count++] =
					(struct failure){ call, nth, (cudaError_t)status };
				return;
			}
		}
	}
	fprintf(stderr,
		"libcudart stand-in: FAKE_CUDART_FAIL: '%s' is not FUNCTION:NTH:CODE "
		"(example: cudaMemcpyAsync:3:700)\n",
		item);
	_exit(2);
}

void calls_configure(void)
{
	const char *specification = getenv("FAKE_CUDART_FAIL");
	const char *path = getenv("FAKE_CUDART_LEDGER");
	char *copy, *rest = NULL;

	if (path && *path)
		ledger_path = strdup(path);
	if (!specification || !*specification)
		return;
	copy = strdup(specification);
	for (char *item = strtok_r(copy, ",", &rest); item; item = strtok_r(NULL, ",", &rest))
		add_failure(item);
	free(copy);
}

void calls_reset(void)
{
	for (enum call call = 0; call < CALL_COUNT; call++)
		atomic_store(&counts[call], 0);
	atomic_flag_clear(&reported);
}

/* One line, {"pid": …, "calls": {…}}, in one write: several processes may share the file. */
void calls_report(void)
{
	char line[LEDGER_BYTES_MAX];
	const char *separator = "";
	size_t used;
	int file;

	if (!ledger_path || atomic_flag_test_and_set(&reported))
		return;
	used = (size_t)snprintf(line, sizeof(line), "{\"pid\": %d, \"calls\": {", (int)getpid());
	for (enum call call = 0; call < CALL_COUNT; call++) {
		unsigned long count = atomic_load(&counts[call]);

		if (!count)
			continue;
		used += (size_t)snprintf(line + used, sizeof(line) - used, "%s\"%s\": %lu",
					 separator, names[call], count);
		separator = ", ";
	}
	used += (size_t)snprintf(line + used, sizeof(line) - used, "}}\n");
	file = open(ledger_path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
	if (file < 0 || write(file, line, used) != (ssize_t)used)
		fprintf(stderr, "libcudart stand-in: FAKE_CUDART_LEDGER: cannot write %s: %m\n",
			ledger_path);
	if (file >= 0)
		close(file);
}

cudaError_t call_begin(enum call call)
{
	unsigned long nth = atomic_fetch_add(&counts[call], 1) + 1;

	for (size_t i = 0; i < failure_count; i++)
		if (failures[i].call == call && failures[i].nth == nth)
			return failures[i].status;
	return cudaSuccess;
}

cudaError_t call_end(cudaError_t status)
{
	if (status != cudaSuccess)
		last_error = status;
	return status;
}

cudaError_t call_last_error(int clear)
{
	cudaError_t status = last_error;

	if (clear)
		last_error = cudaSuccess;
	return status;
}
