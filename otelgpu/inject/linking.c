// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "linking.h"

#include <string.h>
#include <unistd.h>

#define HIDDEN __attribute__((visibility("hidden")))

typedef unsigned int u32;
typedef unsigned long long u64;

extern const char __ehdr_start[] HIDDEN, etext[] HIDDEN;

int is_ours(const void *address)
{
	return (const char *)address >= __ehdr_start && (const char *)address < etext;
}

/* -- One object --------------------------------------------------------------------------- */

static const void *table(u64 base, u64 value)
{
	return (const void *)(value < base ? base + value
					   : value); /* glibc has relocated it, mostly */
}

struct tables read_tables(const ElfW(Dyn) * dynamic, u64 base)
{
	struct tables found = { 0 };
	u64 soname = 0;

	for (; dynamic && dynamic->d_tag != DT_NULL; dynamic++) {
		u64 value = dynamic->d_un.d_ptr;

		if (dynamic->d_tag == DT_SYMTAB)
			found.symbols = table(base, value);
		else if (dynamic->d_tag == DT_STRTAB)
			found.strings = table(base, value);
		else if (dynamic->d_tag == DT_SONAME)
			soname = value;
		else if (dynamic->d_tag == DT_GNU_HASH)
			found.gnu_hash = table(base, value);
		else if (dynamic->d_tag == DT_HASH)
			found.hash = table(base, value);
		else if (dynamic->d_tag == DT_VERSYM)
			found.versions = table(base, value);
		else if (dynamic->d_tag == DT_VERDEF)
			found.defined = table(base, value);
		else if (dynamic->d_tag == DT_VERDEFNUM)
			found.defined_count = value;
		else if (dynamic->d_tag == DT_VERNEED)
			found.needed = table(base, value);
		else if (dynamic->d_tag == DT_VERNEEDNUM)
			found.needed_count = value;
	}
	if (soname && found.strings)
		found.soname = found.strings + soname;
	return found;
}

/* The definitions of one name in one object, one after the other: they differ in their versions. */
struct definitions {
	const struct tables *tables;
	const char *name;
	u32 hash;
	u32 next; /* place in the symbol table to look at */
	int ended;
};

static u32 gnu_hash_of(const char *name)
{
	u32 hash = 5381;

	for (const unsigned char *at = (const unsigned char *)name; *at; at++)
		hash = hash * 33 + *at;
	return hash;
}

static u32 hash_of(const char *name)
{
	u32 hash = 0;

	for (const unsigned char *at = (const unsigned char *)name; *at; at++) {
		hash = (hash << 4) + *at;
		hash = (hash ^ (hash >> 24 & 0xf0)) & 0x0fffffff;
	}
	return hash;
}

static struct definitions definitions_of(const struct tables *tables, const char *name)
{
	struct definitions all = { .tables = tables, .name = name };
	const u32 *header = tables->gnu_hash ? tables->gnu_hash : tables->hash;

	if (!header || !tables->symbols || !tables->strings || !header[0]) {
		all.ended = 1;
	} else if (tables->gnu_hash) {
		const u32 *buckets = header + 4 + header[2] * (sizeof(ElfW(Addr)) / sizeof(u32));

		all.hash = gnu_hash_of(name);
		all.next = buckets[all.hash % header[0]];
		all.ended = all.next < header[1];
	} else {
		all.hash = hash_of(name);
		all.next = header[2 + all.hash % header[0]];
	}
	return all;
}

/* Steps on; whether the symbol that it was at may be of the name, as far as hashes report. */
static int step_on(struct definitions *all)
{
	const u32 *header = all->tables->gnu_hash;
	u32 at = all->next, word;

	if (!header) {
		header = all->tables->hash;
		all->next = header[2 + header[0] + at]; /* chain */
		return 1;
	}
	word = header[4 + header[2] * (sizeof(ElfW(Addr)) / sizeof(u32)) + header[0] + at -
		      header[1]];
	all->ended = word & 1;
	all->next++;
	return (word | 1) == (all->hash | 1);
}

/* Place in the symbol table; 0: there is no more. */
static u32 next_definition(struct definitions *all)
{
	while (!all->ended && all->next) {
		u32 at = all->next;
		const ElfW(Sym) *symbol = &all->tables->symbols[at];

		if (step_on(all) && symbol->st_shndx != SHN_UNDEF && symbol->st_value &&
		    !strcmp(all->tables->strings + symbol->st_name, all->name))
			return at;
	}
	return 0;
}

static void *address_of(const struct tables *tables, u64 base, u32 at)
{
	const ElfW(Sym) *symbol = &tables->symbols[at];
	void *address = (void *)(base + symbol->st_value);

	if (ELF64_ST_TYPE(symbol->st_info) == STT_GNU_IFUNC)
		return ((void *(*)(void))address)();
	return address;
}

void *defined(const struct tables *tables, u64 base, const char *name)
{
	struct definitions all = definitions_of(tables, name);
	u32 at = next_definition(&all);

	return at ? address_of(tables, base, at) : NULL;
}

/* -- Versions ----------------------------------------------------------------------------- */

#define VERSION_HIDDEN 0x8000 /* not the one that is meant where none is named */

static const char *version_name(const struct tables *tables, unsigned int version)
{
	const ElfW(Verdef) *definition = tables->defined;

	for (u64 i = 0; i < tables->defined_count && definition; i++) {
		if ((definition->vd_ndx & ~VERSION_HIDDEN) == (version & ~VERSION_HIDDEN)) {
			const ElfW(Verdaux) *name =
				(const void *)((const char *)definition + definition->vd_aux);

			return tables->strings + name->vda_name;
		}
		definition = (const void *)((const char *)definition + definition->vd_next);
	}
	return NULL;
}

static int needs_version(const struct tables *caller, const char *name)
{
	const ElfW(Verneed) *needed = caller->needed;

	for (u64 i = 0; i < caller->needed_count && needed; i++) {
		const ElfW(Vernaux) *version =
			(const void *)((const char *)needed + needed->vn_aux);

		for (u32 j = 0; j < needed->vn_cnt; j++) {
			if (!strcmp(caller->strings + version->vna_name, name))
				return 1;
			version = (const void *)((const char *)version + version->vna_next);
		}
		needed = (const void *)((const char *)needed + needed->vn_next);
	}
	return 0;
}

enum fitness {
	IS_NONE = 0,
	IS_HIDDEN = 1, /* of a version for those who name it, and the caller does not */
	IS_DEFAULT = 2,
	IS_WANTED = 3, /* of a version that the caller was built with, or of none at all */
};

static enum fitness fitness_of(const struct tables *tables, const struct tables *caller, u32 at)
{
	unsigned int version = tables->versions ? tables->versions[at] : VER_NDX_GLOBAL;
	const char *name;

	if ((version & ~VERSION_HIDDEN) <= VER_NDX_GLOBAL)
		return IS_WANTED;
	name = version_name(tables, version);
	if (name && needs_version(caller, name))
		return IS_WANTED;
	return version & VERSION_HIDDEN ? IS_HIDDEN : IS_DEFAULT;
}

/* -- All objects -------------------------------------------------------------------------- */

/* The list is that of the linker: in the order in which objects were loaded, dependencies after who needs them. */

struct walk {
	int (*look)(const struct link_map *object, void *data); /* 1: enough */
	void *data;
};

static int walk_list(struct dl_phdr_info *unused, size_t size, void *data)
{
	const struct walk *walk = data;

	(void)unused;
	(void)size;
	for (const struct link_map *object = _r_debug.r_map; object; object = object->l_next)
		if (object->l_ld && walk->look(object, walk->data))
			break;
	return 1;
}

/* dlfcn.h of glibc 2.35, which is the first that has it: by address, without a lock. */
struct found_object {
	u64 flags;
	void *start, *end;
	struct link_map *object;
	u64 rest[8];
};
static int (*find_object)(void *address, struct found_object *found);

static const struct link_map *last_at_start; /* up to there, objects are for everybody */
static pid_t process;			     /* that the library was loaded into */

static int note_object(const struct link_map *object, void *unused)
{
	(void)unused;
	if (strstr(object->l_name, "/libc.so.6")) {
		struct tables tables = read_tables(object->l_ld, object->l_addr);

		find_object = defined(&tables, object->l_addr, "_dl_find_object");
	}
	last_at_start = object;
	return 0;
}

__attribute__((constructor)) static void note_start(void)
{
	struct walk walk = { note_object, NULL };

	if (process)
		return; /* a call came before this constructor */
	dl_iterate_phdr(walk_list, &walk);
	process = getpid();
}

/*
 * Nothing is unloaded meanwhile: dl_iterate_phdr() holds the lock for that, which glibc takes for as long as it changes
 * the list. A child of fork() may have got it locked by a thread that is not there; that child has one thread.
 */
static void for_each_object(int (*look)(const struct link_map *object, void *data), void *data)
{
	struct walk walk = { look, data };

	if (!process)
		note_start();
	if (getpid() == process)
		dl_iterate_phdr(walk_list, &walk);
	else
		walk_list(NULL, 0, &walk);
}

/* A signal handler may have interrupted its own thread while that unloads an object. */
static int is_there(const struct link_map *object)
{
	struct found_object found;

	return !find_object || (!find_object(object->l_ld, &found) && found.object == object);
}

struct place {
	const void *address;
	const struct link_map *object; /* that begins last before it */
};

static int look_for_place(const struct link_map *object, void *data)
{
	struct place *place = data;

	if (object->l_addr <= (u64)place->address &&
	    (!place->object || object->l_addr >= place->object->l_addr))
		place->object = object;
	return 0;
}

const struct link_map *object_at(const void *address)
{
	struct place place = { .address = address };
	struct found_object found;

	if (find_object)
		return find_object((void *)address, &found) ? NULL : found.object;
	for_each_object(look_for_place, &place);
	return place.object;
}

/* -- What a caller is linked to ----------------------------------------------------------- */

/* Greater is better. */
struct rank {
	enum fitness fitness;
	int is_for_all;
	int is_needed; /* by the caller's object, or that itself */
	int is_after;  /* the caller's object: as what that needs is */
};

struct search {
	const char *name;
	const struct link_map *caller;
	struct tables caller_tables;
	int passed_ours, passed_caller, passed_start;
	struct rank rank;
	void *found;
};

static int is_named(const struct link_map *object, const struct tables *tables, const char *name)
{
	const char *base = strrchr(object->l_name, '/');

	return !strcmp(base ? base + 1 : object->l_name, name) ||
	       (tables->soname && !strcmp(tables->soname, name));
}

static int is_needed(const struct search *search, const struct link_map *object,
		     const struct tables *tables)
{
	const ElfW(Dyn) *entry = search->caller ? search->caller->l_ld : NULL;

	if (object == search->caller)
		return 1;
	for (; entry && entry->d_tag != DT_NULL; entry++)
		if (entry->d_tag == DT_NEEDED &&
		    is_named(object, tables, search->caller_tables.strings + entry->d_un.d_val))
			return 1;
	return 0;
}

static int is_better(const struct rank *one, const struct rank *other)
{
	if (one->fitness != other->fitness)
		return one->fitness > other->fitness;
	if (one->is_for_all != other->is_for_all)
		return one->is_for_all > other->is_for_all;
	if (one->is_for_all) /* the first of these */
		return 0;
	if (one->is_needed != other->is_needed)
		return one->is_needed > other->is_needed;
	return one->is_after > other->is_after;
}

static int look_for_name(const struct link_map *object, void *data)
{
	struct search *search = data;
	int is_for_all = !search->passed_start;
	struct definitions all;
	struct tables tables;
	u32 at;

	search->passed_start |= object == last_at_start;
	search->passed_caller |= object == search->caller;
	if (object->l_ld == _DYNAMIC) {
		search->passed_ours = 1;
		return 0;
	}
	if (!is_there(object))
		return 0;
	tables = read_tables(object->l_ld, object->l_addr);
	all = definitions_of(&tables, search->name);
	while ((at = next_definition(&all))) {
		struct rank rank = {
			.fitness = fitness_of(&tables, &search->caller_tables, at),
			.is_for_all = is_for_all && search->passed_ours,
			.is_needed = is_needed(search, object, &tables),
			.is_after = search->passed_caller,
		};

		if (is_better(&rank, &search->rank)) {
			search->rank = rank;
			search->found = address_of(&tables, object->l_addr, at);
		}
	}
	return 0;
}

void *linked_to(const char *name, const void *caller)
{
	struct search search = { .name = name, .caller = object_at(caller) };

	if (search.caller)
		search.caller_tables = read_tables(search.caller->l_ld, search.caller->l_addr);
	for_each_object(look_for_name, &search);
	return search.found;
}
