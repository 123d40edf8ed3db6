/*
 * Calls cudaFree() on several threads, each time under another trace context, which it publishes as
 * OpenTelemetry OTEP 4947 has it. The address that is freed says which context that was: see context_of() here
 * and in tests/kernel/test_thread_context.py.
 *
 *   publisher CUDART TRACER THREADS CALLS [fork|exec|wild]
 *
 * CUDART and TRACER are libraries to open, "-" for what is part of this program, TRACER "none" for no tracer. It
 * opens TRACER at the first line of its input, and makes the calls at the second; "fork": in a child; "exec":
 * after it has become a program without a tracer; "wild": with a pointer into nothing.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

struct record {
	uint64_t trace_id[2];
	uint64_t span_id;
	uint8_t valid;
	uint8_t trace_flags;
	uint16_t attributes_bytes;
};

#ifdef OWN_CUDART
__attribute__((noinline)) int cudaFree(void *address)
{
	__asm__ volatile("" : : "r"(address) : "memory");
	return 0;
}
static int (*release)(void *) = cudaFree;
#else
static int (*release)(void *);
#endif

#ifdef OWN_TRACER
void publish(const void *record);
static void (*report)(const void *) = publish;
#else
static void (*report)(const void *);
#endif

static void report_nobody(const void *record)
{
	(void)record;
}

static uint64_t calls;
static const char *mode = "";

/* Every fifth call is made under none, and another fifth under one that is being written. */
static const struct record *context_of(uint64_t token, struct record *record)
{
	record->valid = 0;
	__asm__ volatile("" : : : "memory");
	record->trace_id[0] = token;
	record->trace_id[1] = ~token;
	record->span_id = token * 31;
	record->trace_flags = token >> 4 & 1;
	__asm__ volatile("" : : : "memory");
	record->valid = token % 5 != 1;
	return token % 5 ? record : NULL;
}

static void *work(void *number)
{
	struct record *record = calloc(1, sizeof(*record));

	for (uint64_t call = 1; call <= calls; call++) {
		uint64_t token = (uint64_t)(uintptr_t)number << 32 | call;

		report(strcmp(mode, "wild") ? (const void *)context_of(token, record)
					    : (const void *)16);
		release((void *)(uintptr_t)token);
	}
	report(NULL);
	free(record);
	return NULL;
}

static void *symbol_of(const char *path, const char *name)
{
	void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	void *symbol = library ? dlsym(library, name) : NULL;

	if (!symbol) {
		fprintf(stderr, "%s: %s\n", path, dlerror());
		exit(1);
	}
	return symbol;
}

static void next_line(const char *said)
{
	char line[16];

	printf("%s\n", said);
	fflush(stdout);
	if (!fgets(line, sizeof(line), stdin))
		exit(1);
}

int main(int count, char **words)
{
	pthread_t threads[64];
	uintptr_t wanted = count > 3 ? (uintptr_t)atoi(words[3]) : 1;

	if (count < 5 || wanted > 64)
		return 2;
	calls = strtoull(words[4], NULL, 10);
	mode = count > 5 ? words[5] : "";
	if (strcmp(words[1], "-"))
		release = symbol_of(words[1], "cudaFree");
	next_line("started");
	if (!strcmp(words[2], "none"))
		report = report_nobody;
	else if (strcmp(words[2], "-"))
		report = symbol_of(words[2], "publish");
	next_line("loaded");
	if (!strcmp(mode, "exec"))
		return execl("/proc/self/exe", words[0], words[1], "none", words[3], words[4],
			     NULL);
	if (!strcmp(mode, "fork")) {
		pid_t child = fork();

		if (child)
			return waitpid(child, NULL, 0) != child;
	}
	for (uintptr_t number = 1; number < wanted; number++)
		pthread_create(&threads[number], NULL, work, (void *)(number + 1));
	work((void *)1);
	for (uintptr_t number = 1; number < wanted; number++)
		pthread_join(threads[number], NULL);
	return 0;
}
