/* SPDX-License-Identifier: Apache-2.0 */
#include "truth.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ENTRIES_MAX 256

static struct {
	const char *section, *name;
	uint64_t count;
} entries[ENTRIES_MAX];
static size_t entry_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

const char *truth_text(int argc, char **argv, const char *name)
{
	size_t length = strlen(name);

	for (int i = 1; i < argc; i++)
		if (strncmp(argv[i], "--", 2) == 0 && strncmp(argv[i] + 2, name, length) == 0 &&
		    argv[i][2 + length] == '=')
			return argv[i] + 3 + length;
	return NULL;
}

long truth_option(int argc, char **argv, const char *name, long fallback)
{
	const char *text = truth_text(argc, argv, name);

	return text ? strtol(text, NULL, 10) : fallback;
}

bool truth_line(void)
{
	char line[64];

	return fgets(line, sizeof(line), stdin) != NULL;
}

void truth_wait(bool wait)
{
	if (!wait)
		return;
	fprintf(stderr, "ready %d\n", (int)getpid());
	if (!truth_line()) {
		fprintf(stderr, "stdin was closed before a line came\n");
		exit(2);
	}
}

void truth_count(const char *section, const char *name, uint64_t count)
{
	size_t i = 0;

	pthread_mutex_lock(&lock);
	while (i < entry_count &&
	       (strcmp(entries[i].name, name) || strcmp(entries[i].section, section)))
		i++;
	if (i == ENTRIES_MAX)
		abort();
	if (i == entry_count) {
		entries[entry_count].section = section;
		entries[entry_count++].name = name;
	}
	entries[i].count += count;
	pthread_mutex_unlock(&lock);
}

void truth_checked(int status, const char *function)
{
	if (!status)
		return;
	fprintf(stderr, "%s: error %d\n", function, status);
	exit(3);
}

static void print_section(const char *section)
{
	const char *separator = "";

	printf(", \"%s\": {", section);
	for (size_t i = 0; i < entry_count; i++) {
		if (strcmp(entries[i].section, section))
			continue;
		printf("%s\"%s\": %llu", separator, entries[i].name,
		       (unsigned long long)entries[i].count);
		separator = ", ";
	}
	printf("}");
}

void truth_print(void)
{
	printf("{\"pid\": %d", (int)getpid());
	print_section("calls");
	print_section("kernels");
	print_section("bytes");
	print_section("graph");
	printf("}\n");
	fflush(stdout);
}
