/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the dynamic linker knows, read from its own tables: which object an address lies in, what an object defines,
 * and what a caller would have been linked to without this library. Nothing here allocates, as dlsym() does for what
 * it does not find, and nothing waits for a lock that is held while code of the program runs: a call of the CUDA API
 * may come from a signal handler that has interrupted malloc(), from a child of fork(), and while another thread is
 * in the constructor of a library that it loads.
 */
#ifndef OTELGPU_LINKING_H
#define OTELGPU_LINKING_H

#include <link.h>

struct tables {
	const ElfW(Sym) * symbols;
	const char *strings;
	const char *soname;
	const unsigned int *gnu_hash; /* DT_GNU_HASH */
	const unsigned int *hash;     /* DT_HASH: what libraries of old linkers have instead */
	const unsigned short *versions;
	const ElfW(Verdef) * defined;
	unsigned long long defined_count;
	const ElfW(Verneed) * needed;
	unsigned long long needed_count;
};

/* Of an object at `base`, by its dynamic section. */
struct tables read_tables(const ElfW(Dyn) * dynamic, unsigned long long base);

/* A function that an object defines, in whichever version comes first; NULL: none. */
void *defined(const struct tables *tables, unsigned long long base, const char *name);

/* The object that an address of code lies in; NULL: in none. */
const struct link_map *object_at(const void *address);

/*
 * What a call of `name` from `caller` goes to without this library: a definition in a version that the caller's object
 * was built with before others, then the objects that the program was started with before those loaded since, then
 * what the caller's object itself needs; NULL: nobody defines it.
 */
void *linked_to(const char *name, const void *caller);

/* Whether an address is in this library's code. */
int is_ours(const void *address);

#endif
