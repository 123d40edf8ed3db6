/* SPDX-License-Identifier: Apache-2.0 */
#include "calls.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FAILURES_MAX	 64
#define LEDGER_BYTES_MAX 32768
#define STATUS_MAX	 10000 /* cudaErrorApiFailureBase */

struct failure {
	const struct call *call;
	unsigned long nth; /* 1: the first call */
	int status;
};

/* Bounds of the section, from the linker; hidden, for a process may hold several fakes. */
extern struct call __start_fake_calls[] __attribute__((visibility("hidden")));
extern struct call __stop_fake_calls[] __attribute__((visibility("hidden")));

int calls_failing;
static struct failure failures[FAILURES_MAX];
static atomic_flag reported = ATOMIC_FLAG_INIT;
static char *ledger_path;

static struct call *find(const char *name)
{
	for (struct call *call = __start_fake_calls; call < __stop_fake_calls; call++)
		if (strcmp(name, call->name) == 0)
			return call;
	return NULL;
}

void *calls_find(const char *name)
{
	const struct call *call = find(name);

	return call ? call->address : NULL;
}

static void add_failure(const char *item)
{
	char name[64];
	unsigned long nth;
	int status, used = 0;
	const struct call *call;

	if (calls_failing == FAILURES_MAX) {
		fprintf(stderr, FAKE_LIBRARY " fake: " FAKE_PREFIX "_FAIL has more than %d items\n",
			FAILURES_MAX);
		_exit(2);
	}
	if (sscanf(item, "%63[A-Za-z0-9_]:%lu:%d%n", name, &nth, &status, &used) == 3 &&
	    item[used] == '\0' && nth > 0 && status > 0 && status < STATUS_MAX) {
		call = find(name);
		if (call && call->can_fail) {
			failures[calls_failing++] = (struct failure){ call, nth, status };
			return;
		}
	}
	fprintf(stderr,
		FAKE_LIBRARY " fake: " FAKE_PREFIX "_FAIL: '%s' is not FUNCTION:NTH:CODE "
			     "(example: cudaMemcpyAsync:3:700)\n",
		item);
	_exit(2);
}

void calls_configure(void)
{
	const char *specification = getenv(FAKE_PREFIX "_FAIL");
	const char *path = getenv(FAKE_PREFIX "_LEDGER");
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
	for (struct call *call = __start_fake_calls; call < __stop_fake_calls; call++)
		atomic_store(&call->count, 0);
	atomic_flag_clear(&reported);
}

/* In one write: several processes may share the file. */
void calls_report(void)
{
	static char line[LEDGER_BYTES_MAX];
	const char *separator = "";
	size_t used;
	int file;

	if (!ledger_path || atomic_flag_test_and_set(&reported))
		return;
	used = (size_t)snprintf(line, sizeof(line), "{\"pid\": %d, \"calls\": {", (int)getpid());
	for (struct call *call = __start_fake_calls; call < __stop_fake_calls; call++) {
		unsigned long count = atomic_load(&call->count);

		if (!count || used > sizeof(line) - 128)
			continue;
		used += (size_t)snprintf(line + used, sizeof(line) - used, "%s\"%s\": %lu",
					 separator, call->name, count);
		separator = ", ";
	}
	used += (size_t)snprintf(line + used, sizeof(line) - used, "}}\n");
	file = open(ledger_path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
	if (file < 0 || write(file, line, used) != (ssize_t)used)
		fprintf(stderr, FAKE_LIBRARY " fake: " FAKE_PREFIX "_LEDGER: cannot write %s: %m\n",
			ledger_path);
	if (file >= 0)
		close(file);
}

int call_failure(const struct call *call, unsigned long nth)
{
	for (int i = 0; i < calls_failing; i++)
		if (failures[i].call == call && failures[i].nth == nth)
			return failures[i].status;
	return 0;
}
