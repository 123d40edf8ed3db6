/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the programs of this folder say of themselves: one JSON line on stdout with how often they called
 * what. A program that is to be attached to writes "ready PID" to stderr and waits for a line on stdin.
 */
#ifndef FAKE_PROGRAMS_TRUTH_H
#define FAKE_PROGRAMS_TRUTH_H

#include <stdbool.h>
#include <stdint.h>

#define TRUTH_TEXT(symbol)  #symbol
#define TRUTH_NAME(symbol)  TRUTH_TEXT(symbol) /* of what a header's macro makes of it */
#define CHECKED(call, name) truth_checked((int)(call), name)

/* Calls a function by its name and counts it; the program ends when it fails. */
#define CALL(function, ...)                                    \
	do {                                                   \
		truth_count("calls", TRUTH_NAME(function), 1); \
		CHECKED(function(__VA_ARGS__), #function);     \
	} while (0)

/* A number of the command line, --name=N; `fallback` when it is not there. */
long truth_option(int argc, char **argv, const char *name, long fallback);
const char *truth_text(int argc, char **argv, const char *name);

/* Waits for a line on stdin; false: it was closed. */
bool truth_line(void);
void truth_wait(bool wait);
/* Adds to a number of the line: {"calls": {"cudaMalloc": 7}}. Names live as long as the program. */
void truth_count(const char *section, const char *name, uint64_t count);
void truth_checked(int status, const char *function);
void truth_print(void);

#endif
