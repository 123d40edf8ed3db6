// SPDX-License-Identifier: Apache-2.0
/*
 * .eh_frame -> rows by which stacks are unwound in the kernel (struct unwind_row, bpf/profile/unwind.h).
 *
 * In: the section's bytes. Out: rows by ascending address, each holds up to the next. A CIE is what functions share, an
 * FDE is a function; both hold instructions, which are run once. What cannot be followed is a row of kind
 * UNWIND_UNSUPPORTED; entries that make no sense are left out and counted. Every byte may lie: none is read outside of the
 * section, and every number that is computed from them is bounded before it is used as a place.
 *
 * Sources: Linux Standard Base Core 5.0, 10.6 (exception frames); DWARF 5, 6.4.2 (instructions). Only x86-64.
 *
 * Example: `push %rbp; mov %rsp,%rbp; ...; pop %rbp; ret` has the rows (rsp + 8), (rsp + 16, rbp at -16),
 * (rbp + 16, rbp at -16), (rsp + 8).
 */
#include "frames.h"

#include "rows.h"
#include "sort.h"

enum { RBP = 6, RSP = 7, RETURN = 16 }; /* DWARF numbers (System V ABI x86-64, figure 3.36) */

#define RETURN_OFFSET (-8)
#define REMEMBERED    4 /* states; compilers use one */

/* DW_EH_PE_*: how an address is written. */
enum {
	PE_SIGNED = 8,
	PE_PC_RELATIVE = 0x10,
	PE_DATA_RELATIVE = 0x30,
	PE_HOW = 0x70,
	PE_INDIRECT = 0x80
};

struct reader {
	const struct section *section;
	u64 at;
};

static u8 byte_at(const struct section *section, u64 at)
{
	return at < section->size ? section->bytes[at] : 0;
}

static u64 number_at(const struct section *section, u64 at, u32 size)
{
	u64 value = 0;

	for (u32 i = 0; i < size; i++)
		value |= (u64)byte_at(section, at + i) << (8 * i);
	return value;
}

static u8 next_byte(struct reader *in)
{
	return byte_at(in->section, in->at++);
}

static u64 next_number(struct reader *in, u32 size)
{
	u64 value = number_at(in->section, in->at, size);

	in->at += size;
	return value;
}

/* LEB128; of more than 35 bits the rest is cut off, of more than ten bytes the number ends. */
static s64 next_leb(struct reader *in, int is_signed)
{
	s64 value = 0;
	u32 shift = 0;
	u8 byte = 0;

	for (int i = 0; i < 10; i++) {
		byte = next_byte(in);
		if (shift < 35) {
			value |= (s64)(byte & 0x7f) << shift;
			shift += 7;
		}
		if (!(byte & 0x80))
			break;
	}
	if (is_signed && byte & 0x40)
		value -= (s64)1 << shift;
	return value;
}

/* -- Instructions --------------------------------------------------------------------------------------- */

struct machine {
	struct reader in;
	u64 end;
	u64 pc;
	u64 stop; /* of the function; no row at or behind it is reported */
	struct state now;
	struct state kept[REMEMBERED];
	u32 depth;
	const struct shared *shared;
	struct table *table; /* NULL for a CIE's */
};

static void report(struct machine *machine)
{
	if (machine->table && machine->pc < machine->stop)
		add_row(machine->table, pack(machine->pc, &machine->now, machine->shared->signal));
}

static void advance(struct machine *machine, u64 delta)
{
	report(machine);
	machine->pc += delta * machine->shared->scale;
}

static u8 by_register(u64 number)
{
	return number == RSP ? UNWIND_RSP : number == RBP ? UNWIND_RBP : CFA_OTHER;
}

static void save(struct machine *machine, u64 number, s64 offset)
{
	if (number == RBP) {
		machine->now.rbp = UNWIND_RBP_AT_CFA;
		machine->now.rbp_offset = offset;
	} else if (number == RETURN) {
		machine->now.returns = offset == RETURN_OFFSET ? RETURN_AT_CFA : RETURN_ELSEWHERE;
	}
}

static void restore(struct machine *machine, u64 number)
{
	const struct state *initial = &machine->shared->initial;

	if (number == RBP) {
		machine->now.rbp = initial->rbp;
		machine->now.rbp_offset = initial->rbp_offset;
	} else if (number == RETURN) {
		machine->now.returns = initial->returns;
	}
}

/* What linkers write for the CFA in a procedure linkage table; byte 6 is the literal of a push, of 8 bytes each. */
static int is_plt(const struct section *section, u64 at, u64 size, u8 *literal)
{
	static const u8 text[] = { 0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x30, 0x2a, 0x33, 0x24, 0x22 };

	if (size != sizeof(text))
		return 0;
	for (u32 i = 0; i < sizeof(text); i++)
		if (i != 6 && byte_at(section, at + i) != text[i])
			return 0;
	*literal = byte_at(section, at + 6) - text[6];
	return *literal < 16;
}

/* The few forms of DWARF expressions that compilers and linkers make. */
static void express(struct machine *machine, u8 opcode, u64 number, u64 at, u64 size)
{
	enum { DEREF = 6, BREG = 0x70 };
	const struct section *section = machine->in.section;
	struct reader in = { section, at };
	u8 head = next_byte(&in), literal;
	s64 offset = next_leb(&in, 1);
	int is_plain = in.at == at + size && head == BREG + RBP;
	int is_load = in.at == at + size - 1 && byte_at(section, in.at) == DEREF;
	struct state *now = &machine->now;

	if (opcode == 0x0f) { /* def_cfa_expression */
		now->cfa = UNWIND_UNSUPPORTED;
		now->offset = offset;
		if (is_load && head == BREG + RBP) {
			now->cfa = UNWIND_AT_RBP;
		} else if (is_load && head == BREG + RSP) {
			now->cfa = UNWIND_AT_RSP;
		} else if (is_plt(section, at, size, &literal)) {
			now->cfa = UNWIND_PLT;
			now->offset = 8 * literal;
		}
	} else if (number == RETURN) {
		now->returns = RETURN_ELSEWHERE;
	} else if (opcode == 0x10 && number == RBP) { /* expression */
		if (is_plain) {
			now->rbp = UNWIND_RBP_AT_RBP;
			now->rbp_offset = offset;
		} else {
			now->returns = RETURN_ELSEWHERE;
		}
	}
}

/* One whose upper two bits are zero. 0: it is known. */
static int step_low(struct machine *machine, u8 opcode)
{
	struct reader *in = &machine->in;
	struct state *now = &machine->now;
	s64 factor = machine->shared->factor;
	u64 number, size;

	switch (opcode) {
	case 0x00: /* nop */
	case 0x2d: /* GNU_window_save */
		return 0;
	case 0x02: /* advance_loc1 */
	case 0x03:
	case 0x04:
		advance(machine, next_number(in, 1 << (opcode - 2)));
		return 0;
	case 0x05: /* offset_extended */
	case 0x11: /* offset_extended_sf */
		number = next_leb(in, 0);
		save(machine, number, next_leb(in, opcode == 0x11) * factor);
		return 0;
	case 0x2f: /* GNU_negative_offset_extended */
		number = next_leb(in, 0);
		save(machine, number, -next_leb(in, 0) * factor);
		return 0;
	case 0x06: /* restore_extended */
		restore(machine, next_leb(in, 0));
		return 0;
	case 0x07: /* undefined */
	case 0x08: /* same_value */
		number = next_leb(in, 0);
		if (number == RBP)
			now->rbp = UNWIND_RBP_SAME;
		else if (number == RETURN)
			now->returns = opcode == 0x07 ? RETURN_NONE : RETURN_ELSEWHERE;
		return 0;
	case 0x09: /* register */
	case 0x14: /* val_offset */
	case 0x15: /* val_offset_sf */
		number = next_leb(in, 0);
		next_leb(in, 0);
		if (number == RETURN || number == RBP)
			now->returns = RETURN_ELSEWHERE;
		return 0;
	case 0x0a: /* remember_state */
		if (machine->depth == REMEMBERED)
			return -1;
		machine->kept[machine->depth++] = *now;
		return 0;
	case 0x0b: /* restore_state */
		if (!machine->depth)
			return -1;
		*now = machine->kept[--machine->depth];
		return 0;
	case 0x0c: /* def_cfa */
	case 0x12: /* def_cfa_sf */
		now->cfa = by_register(next_leb(in, 0));
		now->offset = next_leb(in, opcode == 0x12) * (opcode == 0x12 ? factor : 1);
		return 0;
	case 0x0d: /* def_cfa_register; after an expression there is no offset for it */
		number = next_leb(in, 0);
		if (now->cfa >= UNWIND_PLT && now->cfa != CFA_OTHER)
			now->cfa = UNWIND_UNSUPPORTED;
		else
			now->cfa = by_register(number);
		return 0;
	case 0x0e: /* def_cfa_offset */
		now->offset = next_leb(in, 0);
		return 0;
	case 0x13: /* def_cfa_offset_sf */
		now->offset = next_leb(in, 1) * factor;
		return 0;
	case 0x2e: /* GNU_args_size */
		next_leb(in, 0);
		return 0;
	case 0x0f: /* def_cfa_expression */
	case 0x10: /* expression */
	case 0x16: /* val_expression */
		number = opcode == 0x0f ? 0 : next_leb(in, 0);
		size = next_leb(in, 0);
		express(machine, opcode, number, in->at, size);
		in->at += size;
		return 0;
	default: /* set_loc among them: linkers leave none */
		return -1;
	}
}

/* Run what is there; 0: all of it makes sense. What comes after something that does not is not known. */
static int run(struct machine *machine)
{
	struct reader *in = &machine->in;
	int error = 0;
	u64 number;
	u8 code;

	while (in->at < machine->end && !error) {
		code = next_byte(in);
		switch (code >> 6) {
		case 1: /* advance_loc */
			advance(machine, code & 63);
			break;
		case 2: /* offset */
			number = code & 63;
			save(machine, number, next_leb(in, 0) * machine->shared->factor);
			break;
		case 3: /* restore */
			restore(machine, code & 63);
			break;
		default:
			error = step_low(machine, code);
		}
	}
	if (error)
		machine->now.cfa = UNWIND_UNSUPPORTED;
	report(machine);
	return error;
}

/* -- Entries -------------------------------------------------------------------------------------------- */

/* Bytes of an address that is written so; 0: in no way that is known. */
static u32 size_of(u8 encoding)
{
	static const u8 sizes[16] = {
		[0] = 8, [2] = 2, [3] = 4, [4] = 8, [10] = 2, [11] = 4, [12] = 8
	};

	return sizes[encoding & 15];
}

/* The augmentation's letters, and their data; 0: they are known, or what is not can be passed over. */
static int read_letters(struct shared *shared, struct reader *letters, struct reader data)
{
	u8 letter, encoding;

	while ((letter = next_byte(letters))) {
		switch (letter) {
		case 'R':
			shared->encoding = next_byte(&data);
			break;
		case 'L':
			next_byte(&data);
			break;
		case 'P':
			encoding = next_byte(&data);
			if ((encoding & PE_HOW && (encoding & PE_HOW) != PE_PC_RELATIVE &&
			     (encoding & PE_HOW) != PE_DATA_RELATIVE) ||
			    !size_of(encoding))
				return -1;
			data.at += size_of(encoding);
			break;
		case 'S':
			shared->signal = 1;
			break;
		default:
			return 0;
		}
	}
	return 0;
}

/* The CIE from `at` to `end`, `body` is behind its number. 0: it makes sense. */
static int read_shared(const struct section *section, u64 body, u64 end, struct shared *shared)
{
	struct reader in = { section, body }, letters;
	struct machine machine;
	s64 scale, factor;
	u64 size, number, stop;
	u8 version = next_byte(&in);

	if (version != 1 && version != 3)
		return -1;
	letters = in;
	for (stop = in.at + 16; in.at < stop && in.at < end && byte_at(section, in.at);)
		in.at++;
	if (in.at == stop || in.at >= end)
		return -1;
	in.at++;
	scale = next_leb(&in, 0);
	factor = next_leb(&in, 1);
	number = version == 1 ? next_byte(&in) : (u64)next_leb(&in, 0);
	shared->augmented = byte_at(section, letters.at) != 0;
	if (shared->augmented) {
		if (next_byte(&letters) != 'z')
			return -1;
		size = next_leb(&in, 0);
		if (read_letters(shared, &letters, in))
			return -1;
		in.at += size;
	}
	if (number != RETURN || in.at > end || scale < 1 || scale > 1024 || factor < -1024 ||
	    factor > 1024)
		return -1;
	if ((shared->encoding & PE_HOW && (shared->encoding & PE_HOW) != PE_PC_RELATIVE) ||
	    shared->encoding & PE_INDIRECT || !size_of(shared->encoding))
		return -1;
	shared->scale = scale;
	shared->factor = factor;
	machine = (struct machine){ .in = in, .end = end, .shared = shared };
	machine.now.cfa = CFA_OTHER;
	shared->initial = machine.now;
	shared->damaged = run(&machine) != 0;
	shared->initial = machine.now;
	return 0;
}

static int is_too_far(s64 value)
{
	return value >> 40 && value >> 40 != -1;
}

/* The FDE whose body begins at `at`; its place among the functions, or none and it is counted. */
static void read_function(const struct section *section, u64 at, u64 end, u32 owner,
			  struct table *table)
{
	const struct shared *shared = &table->shared[owner];
	u32 size = size_of(shared->encoding);
	struct reader in = { section, at };
	s64 begin = next_number(&in, size);
	s64 length = next_number(&in, size);
	struct function *function;

	if (shared->encoding & PE_SIGNED && size < 8 && begin >> (8 * size - 1))
		begin -= (s64)1 << (8 * size);
	if (is_too_far(begin) || is_too_far(length))
		begin = -1;
	else if (shared->encoding & PE_PC_RELATIVE)
		begin += at + section->address;
	if (shared->augmented)
		in.at += next_leb(&in, 0);
	if (begin < 0 || length <= 0 || begin + length > 0xffffffffLL || in.at > end ||
	    shared->damaged) {
		table->damaged++;
		return;
	}
	function = &table->functions[table->functions_count++];
	*function = (struct function){ begin, length, in.at, end, owner };
}

/* The CIE that lies at `at`, among those that were met; they were in order of their places. */
static s64 find_shared(const struct table *table, s64 at)
{
	u32 low = 0, high = table->shared_count, middle;

	if (table->last < table->shared_count && table->shared[table->last].at == at)
		return table->last;
	while (low < high) {
		middle = (low + high) / 2;
		if (table->shared[middle].at == at)
			return middle;
		if (table->shared[middle].at < at)
			low = middle + 1;
		else
			high = middle;
	}
	return -1;
}

static void read_entries(const struct section *section, struct table *table)
{
	u64 at = 0, body, end, length, owner;
	s64 found;

	while (at + 8 <= section->size) {
		length = number_at(section, at, 4);
		body = at + 4;
		if (!length) { /* a terminator; linkers leave some in between */
			at += 4;
			continue;
		}
		if (length == 0xffffffff) {
			if (at + 16 > section->size)
				return;
			length = number_at(section, at + 4, 8);
			body = at + 12;
		}
		if (length < 4 || length > section->size - body) {
			table->damaged++; /* where the next begins is not known */
			return;
		}
		end = body + length;
		owner = number_at(section, body, 4);
		if (owner) {
			found = find_shared(table, (s64)body - (s64)owner);
			if (found < 0) {
				table->damaged++;
			} else {
				table->last = found;
				read_function(section, body + 4, end, found, table);
			}
		} else if (table->shared_count == SHARED_LIMIT) {
			table->damaged++;
		} else {
			table->shared[table->shared_count] = (struct shared){ .at = at };
			if (read_shared(section, body + 4, end,
					&table->shared[table->shared_count]))
				table->damaged++;
			else
				table->shared_count++;
		}
		at = end;
	}
}

static void run_functions(const struct section *section, struct table *table)
{
	u32 damaged = 0;

	table->rows_count = 0;
	for (u32 i = 0; i < table->functions_count; i++) {
		const struct function *function = &table->functions[i];
		const struct shared *shared = &table->shared[function->owner];
		struct machine machine = {
			.in = { section, function->code },
			.end = function->code_end,
			.pc = function->begin,
			.stop = (u64)function->begin + function->length,
			.now = shared->initial,
			.shared = shared,
			.table = table,
		};

		damaged += run(&machine) != 0;
		add_row(table, (struct unwind_row){ .pc = machine.stop });
	}
	if (!table->is_unordered || table->keeps_all)
		table->damaged += damaged;
}

void make_table(const struct section *section, struct table *table)
{
	read_entries(section, table);
	sort(table->functions, table->functions_spare, table->functions_count,
	     sizeof(*table->functions));
	run_functions(section, table);
	if (table->is_unordered) { /* functions overlap: as a whole */
		table->keeps_all = 1;
		run_functions(section, table);
		order_rows(table);
	}
}
