/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Of the running kernel's types (BTF, some 150,000) those that a session's BPF objects read fields of, as a BTF of its
 * own: what `bpftool gen min_core_btf` makes. libbpf goes through all types of what it is given once for each type that
 * an object names; here the kernel's are gone through once for all objects.
 *
 * A type is taken with what lies within it. What it points to is not: the place of a field does not depend on that, and
 * libbpf compares nothing of pointers but that they are some. The order is the kernel's.
 *
 * Source: https://docs.kernel.org/bpf/btf.html, section 2.
 */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum kind {
	INT = 1,
	PTR,
	ARRAY,
	STRUCT,
	UNION,
	ENUM,
	FWD,
	TYPEDEF,
	VOLATILE,
	CONST,
	RESTRICT,
	FUNC,
	FUNC_PROTO,
	VAR,
	DATASEC,
	FLOAT,
	DECL_TAG,
	TYPE_TAG,
	ENUM64,
	KINDS
};

/* Words of 4 bytes that follow a type: of each, and of each of its ``vlen`` parts. */
static const uint8_t fixed_words[KINDS] = { [INT] = 1, [ARRAY] = 3, [VAR] = 1, [DECL_TAG] = 1 };
static const uint8_t part_words[KINDS] = {
	[STRUCT] = 3, [UNION] = 3, [ENUM] = 2, [FUNC_PROTO] = 2, [DATASEC] = 3, [ENUM64] = 3,
};
static const uint8_t is_root[KINDS] = {
	[INT] = 1, [STRUCT] = 1, [UNION] = 1, [ENUM] = 1, [TYPEDEF] = 1, [FLOAT] = 1, [ENUM64] = 1,
};

struct header {
	uint16_t magic;
	uint8_t version, flags;
	uint32_t header_bytes, types_at, types_bytes, strings_at, strings_bytes;
};

struct btf {
	const uint32_t *types; /* words */
	const char *strings;
	uint32_t words, strings_bytes, count; /* of types, with void */
	uint32_t *at;			      /* by type: its place in ``types`` */
	uint32_t *new_id;		      /* by type: 0, or its number in what is made */
	uint32_t *open;			      /* those whose parts have yet to be taken */
	uint32_t open_count;
};

static enum kind kind_of(uint32_t information)
{
	return information >> 24 & 0x1f;
}

static uint32_t length_of(const uint32_t *type)
{
	enum kind kind = kind_of(type[1]);

	return 3 + fixed_words[kind] + part_words[kind] * (type[1] & 0xffff);
}

/* ``-errno``, or 0. */
static int find_types(struct btf *btf, const uint8_t *data, size_t bytes)
{
	struct header header;
	uint64_t most, end = 0;

	if (bytes < sizeof(header))
		return -EINVAL;
	memcpy(&header, data, sizeof(header));
	if (header.magic != 0xeb9f || header.types_at % 4 || header.header_bytes % 4 ||
	    header.strings_bytes == 0 ||
	    (uint64_t)header.header_bytes + header.types_at + header.types_bytes > bytes ||
	    (uint64_t)header.header_bytes + header.strings_at + header.strings_bytes > bytes)
		return -EINVAL;
	btf->types = (const uint32_t *)(data + header.header_bytes + header.types_at);
	btf->words = header.types_bytes / 4;
	btf->strings = (const char *)data + header.header_bytes + header.strings_at;
	btf->strings_bytes = header.strings_bytes;
	if (btf->strings[btf->strings_bytes - 1])
		return -EINVAL;
	most = btf->words / 3 + 1;
	btf->at = malloc(most * sizeof(uint32_t));
	btf->new_id = calloc(most, sizeof(uint32_t));
	btf->open = malloc(most * sizeof(uint32_t));
	if (!btf->at || !btf->new_id || !btf->open)
		return -ENOMEM;
	for (btf->count = 1; end < btf->words; btf->count++) {
		const uint32_t *type = btf->types + end;

		btf->at[btf->count] = end;
		if (end + 3 > btf->words || kind_of(type[1]) >= KINDS || !kind_of(type[1]) ||
		    type[0] >= btf->strings_bytes)
			return -EINVAL;
		end += length_of(type);
	}
	return end == btf->words ? 0 : -EINVAL;
}

static int take(struct btf *btf, uint32_t id)
{
	if (id >= btf->count)
		return -EINVAL;
	if (id && !btf->new_id[id]) {
		btf->new_id[id] = 1; /* its number comes later */
		btf->open[btf->open_count++] = id;
	}
	return 0;
}

/* What an object's relocations name, up to a flavour (``inode___before_6_6`` is an inode). */
struct roots {
	struct root {
		const char *name; /* in the object's strings */
		uint32_t length;
		uint32_t is_found; /* the kernel has a type of that name */
		uint64_t objects;  /* that name it: a bit each */
	} * all;
	uint32_t count, room;
};

static uint32_t essential_length(const char *name)
{
	const char *flavour = strstr(name, "___");

	return flavour ? (size_t)(flavour - name) : strlen(name);
}

static int add_root(struct roots *roots, const char *name, uint32_t object)
{
	uint32_t length = essential_length(name), each = 0;

	while (each < roots->count &&
	       (roots->all[each].length != length || memcmp(roots->all[each].name, name, length)))
		each++;
	if (each == roots->room) {
		uint32_t room = roots->room ? 2 * roots->room : 64;
		struct root *all = realloc(roots->all, room * sizeof(*all));

		if (!all)
			return -ENOMEM;
		roots->all = all;
		roots->room = room;
	}
	if (each == roots->count)
		roots->all[roots->count++] = (struct root){ .name = name, .length = length };
	roots->all[each].objects |= 1ull << object;
	return 0;
}

/* enum bpf_core_relo_kind: of fields, and of enumerators. Of others (a type's size) it is not known what they need. */
static int is_known_relocation(uint32_t kind)
{
	return kind <= 5 || kind == 10 || kind == 11;
}

/* The names of what an object relocates, of its ``.BTF.ext``; -EINVAL: not all of it is known here. */
static int add_roots(struct roots *roots, const struct btf *btf, const uint8_t *data, size_t bytes,
		     uint32_t object)
{
	struct {
		uint16_t magic;
		uint8_t version, flags;
		uint32_t header_bytes, others[4], relocations_at, relocations_bytes;
	} header;
	uint64_t at, end;
	uint32_t record_bytes;
	int error = 0;

	if (bytes < sizeof(header))
		return -EINVAL;
	memcpy(&header, data, sizeof(header));
	at = (uint64_t)header.header_bytes + header.relocations_at;
	end = at + header.relocations_bytes;
	if (header.magic != 0xeb9f || header.header_bytes < sizeof(header) || end > bytes)
		return -EINVAL;
	if (at == end)
		return 0;
	if (end - at < 4)
		return -EINVAL;
	memcpy(&record_bytes, data + at, 4);
	at += 4;
	if (record_bytes < 16)
		return -EINVAL;
	while (at < end && !error) {
		uint32_t section[2]; /* name, number of records */

		if (end - at < sizeof(section))
			return -EINVAL;
		memcpy(section, data + at, sizeof(section));
		at += sizeof(section);
		if ((end - at) / record_bytes < section[1])
			return -EINVAL;
		for (uint32_t each = 0; each < section[1] && !error; each++, at += record_bytes) {
			uint32_t record[4]; /* instruction, type, fields, kind */

			memcpy(record, data + at, sizeof(record));
			if (!is_known_relocation(record[3]) || !record[1] ||
			    record[1] >= btf->count)
				return -EINVAL;
			error = add_root(roots, btf->strings + btf->types[btf->at[record[1]]],
					 object);
		}
	}
	return error;
}

static int is_root_name(const char *name, struct roots *roots)
{
	int is_one = 0;

	for (struct root *each = roots->all; each < roots->all + roots->count; each++)
		if (!strncmp(name, each->name, each->length) &&
		    (!name[each->length] || !strncmp(name + each->length, "___", 3)))
			is_one = each->is_found = 1;
	return is_one;
}

static int take_roots(struct btf *btf, struct roots *roots)
{
	uint8_t begins[1 << 16] = { 0 }; /* by the first two characters */

	for (uint32_t each = 0; each < roots->count; each++) {
		const uint8_t *name = (const uint8_t *)roots->all[each].name;

		if (roots->all[each].length < 2)
			return -EINVAL;
		begins[name[0] << 8 | name[1]] = 1;
	}
	for (uint32_t id = 1; id < btf->count; id++) {
		const uint32_t *type = btf->types + btf->at[id];
		const char *name = btf->strings + type[0];

		if (is_root[kind_of(type[1])] && *name &&
		    begins[(uint8_t)name[0] << 8 | (uint8_t)name[1]] && is_root_name(name, roots))
			take(btf, id);
	}
	return 0;
}

static int take_parts(struct btf *btf)
{
	int error = 0;

	while (btf->open_count && !error) {
		const uint32_t *type = btf->types + btf->at[btf->open[--btf->open_count]];

		switch (kind_of(type[1])) {
		case STRUCT:
		case UNION:
			for (uint32_t part = 0; part < (type[1] & 0xffff) && !error; part++)
				error = take(btf, type[3 + 3 * part + 1]);
			break;
		case ARRAY:
			error = take(btf, type[3]) ?: take(btf, type[4]);
			break;
		case TYPEDEF:
		case VOLATILE:
		case CONST:
		case RESTRICT:
		case TYPE_TAG:
			error = take(btf, type[2]);
			break;
		case INT:
		case PTR:
		case ENUM:
		case ENUM64:
		case FLOAT:
			break;
		default:
			error = -EINVAL; /* nothing that has a size lies within a type */
		}
	}
	return error;
}

struct output {
	uint32_t *types;
	char *strings;
	uint32_t words, strings_bytes;
};

static uint32_t put_name(struct output *out, const struct btf *btf, uint32_t name)
{
	const char *text = btf->strings + name;
	uint32_t at = out->strings_bytes, bytes = strlen(text) + 1;

	if (bytes == 1)
		return 0;
	memcpy(out->strings + at, text, bytes);
	out->strings_bytes += bytes;
	return at;
}

static void put_type(struct output *out, const struct btf *btf, const uint32_t *type)
{
	uint32_t *copy = out->types + out->words, length = length_of(type);
	enum kind kind = kind_of(type[1]);
	uint32_t parts = part_words[kind] ? type[1] & 0xffff : 0;

	memcpy(copy, type, length * sizeof(uint32_t));
	out->words += length;
	copy[0] = put_name(out, btf, type[0]);
	if (kind == PTR)
		copy[2] = 0;
	else if (kind == TYPEDEF || kind == VOLATILE || kind == CONST || kind == RESTRICT ||
		 kind == TYPE_TAG)
		copy[2] = btf->new_id[type[2]];
	else if (kind == ARRAY)
		copy[3] = btf->new_id[type[3]], copy[4] = btf->new_id[type[4]];
	for (uint32_t part = 0; part < parts; part++) {
		uint32_t *each = copy + 3 + part * part_words[kind];

		each[0] = put_name(out, btf, each[0]);
		if (kind == STRUCT || kind == UNION)
			each[1] = btf->new_id[each[1]];
	}
}

/* What the names of a type and of its parts take; ``-EINVAL``: one is outside. */
static int64_t names_bytes(const struct btf *btf, const uint32_t *type)
{
	enum kind kind = kind_of(type[1]);
	uint32_t parts = part_words[kind] ? type[1] & 0xffff : 0;
	int64_t bytes = strlen(btf->strings + type[0]) + 1;

	for (uint32_t part = 0; part < parts; part++) {
		uint32_t name = type[3 + part * part_words[kind]];

		if (name >= btf->strings_bytes)
			return -EINVAL;
		bytes += strlen(btf->strings + name) + 1;
	}
	return bytes;
}

static int write_all(int descriptor, const void *data, size_t bytes)
{
	while (bytes) {
		ssize_t written = write(descriptor, data, bytes);

		if (written < 0 && errno != EINTR)
			return -errno;
		if (written > 0)
			data = (const char *)data + written, bytes -= written;
	}
	return 0;
}

static int write_taken(struct btf *btf, int descriptor)
{
	struct header header = { .magic = 0xeb9f, .version = 1, .header_bytes = sizeof(header) };
	struct output out = { .strings_bytes = 1 };
	uint64_t words = 0, bytes = 1;
	uint32_t number = 0;
	int error;

	for (uint32_t id = 1; id < btf->count; id++)
		if (btf->new_id[id]) {
			const uint32_t *type = btf->types + btf->at[id];
			int64_t names = names_bytes(btf, type);

			if (names < 0)
				return names;
			btf->new_id[id] = ++number;
			words += length_of(type);
			bytes += names;
		}
	out.types = malloc(words * sizeof(uint32_t) + 1);
	out.strings = calloc(1, bytes);
	if (out.types && out.strings) {
		for (uint32_t id = 1; id < btf->count; id++)
			if (btf->new_id[id])
				put_type(&out, btf, btf->types + btf->at[id]);
		header.types_bytes = header.strings_at = out.words * sizeof(uint32_t);
		header.strings_bytes = out.strings_bytes;
		error = write_all(descriptor, &header, sizeof(header)) ?:
			write_all(descriptor, out.types, header.types_bytes) ?:
			write_all(descriptor, out.strings, out.strings_bytes);
	} else {
		error = -ENOMEM;
	}
	free(out.types);
	free(out.strings);
	return error;
}

static void forget(struct btf *btf)
{
	free(btf->at);
	free(btf->new_id);
	free(btf->open);
}

struct section {
	const uint8_t *data;
	uint64_t bytes;
};

/* A BPF object's ``.BTF`` and ``.BTF.ext``, aligned to 4 bytes. */
struct object {
	struct section types, relocations;
	uint64_t
		is_served; /* out: what is written has all that it relocates, and all that is known of that */
};

static int add_objects(struct roots *roots, struct object *objects, uint32_t count)
{
	for (uint32_t each = 0; each < count; each++) {
		struct object *object = objects + each;
		struct btf btf = { 0 };
		int error = find_types(&btf, object->types.data, object->types.bytes);

		error = error
				?: add_roots(roots, &btf, object->relocations.data,
					     object->relocations.bytes, each);
		object->is_served = !error;
		forget(&btf);
		if (error && error != -EINVAL)
			return error;
	}
	return 0;
}

/* A name that the kernel itself does not have may be one of its modules'. */
static void leave_out_unserved(const struct roots *roots, struct object *objects, uint32_t count)
{
	for (const struct root *root = roots->all; root < roots->all + roots->count; root++)
		for (uint32_t each = 0; each < count && !root->is_found; each++)
			if (root->objects >> each & 1)
				objects[each].is_served = 0;
}

/*
 * Write to ``descriptor`` what the ``objects`` need of ``data``, the kernel's BTF, aligned to 4 bytes. 0, or ``-errno``:
 * -EINVAL for what is no BTF that is known here.
 */
int core_btf_write(const uint8_t *data, uint64_t bytes, struct object *objects, uint32_t count,
		   int descriptor)
{
	struct roots roots = { 0 };
	struct btf btf = { 0 };
	int error = count <= 64 ? find_types(&btf, data, bytes) : -E2BIG;

	error = error ?: add_objects(&roots, objects, count);
	error = error ?: take_roots(&btf, &roots);
	error = error ?: take_parts(&btf);
	error = error ?: write_taken(&btf, descriptor);
	if (!error)
		leave_out_unserved(&roots, objects, count);
	free(roots.all);
	forget(&btf);
	return error;
}
