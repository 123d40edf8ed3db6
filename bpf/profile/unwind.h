/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * From one native frame of user space to its caller, by tables that user space makes of .eh_frame
 * (otelgpu/families/profiles/discover/unwind_tables.py), and by frame pointers where there is none.
 *
 * A process has mappings, sorted by address; each names a file; a file has rows, sorted by address, which say how the
 * caller's registers are found. Included by stack.h, after struct stack.
 */
#ifndef OTELGPU_UNWIND_H
#define OTELGPU_UNWIND_H

#include "stack.h"

/* The kernel has bpf_loop() (Linux 5.17); else frame pointers are followed by the kernel. */
const volatile bool unwind_loops = true;

#include "unwind_row.h"

ENUM(unwind_cfa);
ENUM(unwind_rbp);
RECORD(unwind_row);

#define BLOCK_ROWS  64 /* what one look into a map gives */
#define BLOCK_STEPS 6
struct unwind_block {
	struct unwind_row rows[BLOCK_ROWS];
};
RECORD(unwind_block);

#define UNWIND_PROCESSES 8192
#define UNWIND_FILES	 4096
#define MAPPING_STEPS	 15 /* as many bits as the number of mappings may have */
#define FILE_STEPS	 18 /* ... of a file's blocks */

RECORD(unwind_mapping);

#define BPF_F_INNER_MAP (1U << 12) /* inner maps differ in size */

struct unwind_mappings {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_INNER_MAP);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size,
	       sizeof(struct unwind_mapping)); /* clang 14 does not follow a type here */
};

/* tgid -> its mappings, ascending. Filled and emptied by user space. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH_OF_MAPS);
	__uint(max_entries, UNWIND_PROCESSES);
	__type(key, __u32);
	__array(values, struct unwind_mappings);
} unwind_processes SEC(".maps");

struct unwind_rows {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_INNER_MAP);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(struct unwind_block));
};

/* Number of a file -> its rows, ascending. Filled and emptied by user space. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH_OF_MAPS);
	__uint(max_entries, UNWIND_FILES);
	__type(key, __u32);
	__array(values, struct unwind_rows);
} unwind_files SEC(".maps");

/* -- Tables --------------------------------------------------------------------------------------------- */

/* The mapping that holds `address`, into `found`; 0: there is one. Of its own for the verifier. */
__attribute__((noinline)) int find_mapping(struct unwind_mapping *found, __u64 address, __u32 tgid)
{
	struct unwind_mapping *mapping;
	__u32 low = 0, high, zero = 0;
	void *mappings;

	if (!found)
		return 1;
	mappings = bpf_map_lookup_elem(&unwind_processes, &tgid);
	if (!mappings) {
		found->why = STACK_NOT_READY;
		return 1;
	}
	found->why = STACK_UNMAPPED;
	mapping = bpf_map_lookup_elem(mappings, &zero);
	if (!mapping)
		return 1;
	high = mapping->mappings;
	for (int i = 0; i < MAPPING_STEPS; i++) {
		__u32 middle = low + (high - low) / 2;

		if (low >= high)
			return 1;
		mapping = bpf_map_lookup_elem(mappings, &middle);
		if (!mapping)
			return 1;
		if (address < mapping->start) {
			high = middle;
		} else if (address >= mapping->end) {
			low = middle + 1;
		} else {
			*found = *mapping;
			return 0;
		}
	}
	return 1;
}

/* The row that holds for `pc` of a file, as one word; 0: there is none. Of its own for the verifier. */
__attribute__((noinline)) __u64 find_row(__u32 file, __u32 blocks, __u32 pc)
{
	__u32 low = 0, high = blocks, at = 0;
	struct unwind_block *block;
	void *rows = bpf_map_lookup_elem(&unwind_files, &file);

	if (!rows)
		return 0;
	/* The last block that begins at or before pc: it is in [low, high). */
	for (int i = 0; i < FILE_STEPS; i++) {
		__u32 middle = low + (high - low) / 2;

		if (high - low <= 1 || high <= low)
			break;
		block = bpf_map_lookup_elem(rows, &middle);
		if (!block)
			return 0;
		if (block->rows[0].pc <= pc)
			low = middle;
		else
			high = middle;
	}
	block = bpf_map_lookup_elem(rows, &low);
	if (!block || block->rows[0].pc > pc)
		return 0;
	for (int step = BLOCK_ROWS / 2; step; step /= 2) {
		__u64 next = (at + step) & (BLOCK_ROWS - 1);

		asm volatile("" : "+r"(next));
		if (next < BLOCK_ROWS && block->rows[next].pc <= pc)
			at = next;
	}
	at &= BLOCK_ROWS - 1;
	return *(__u64 *)&block->rows[at];
}

/*
 * Rows that were found: the same places of the same files are on most stacks, and looking one up takes twenty steps
 * through memory. Files' numbers are never used again, so that nothing here goes out of date; a place is forgotten
 * for another one. Two CPUs may write at once, or an interrupt in between: `check` holds for this row only.
 */
#define KNOWN_ROWS 16384

struct known_row {
	__u64 check; /* a hash of file and place, and the row */
	__u64 row;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, KNOWN_ROWS);
	__type(key, __u32);
	__type(value, struct known_row);
} known_rows SEC(".maps");

/* find_row(), for most places in one step. */
static __always_inline __u64 row_of(const struct unwind_mapping *mapping, __u64 pc)
{
	__u64 at = (__u64)mapping->file << 32 | (__u32)(pc - mapping->bias);
	__u64 hash = mix(HASH_PRIME, at), row;
	__u32 place = hash & (KNOWN_ROWS - 1);
	struct known_row *known = bpf_map_lookup_elem(&known_rows, &place);

	if (!known)
		return 0;
	row = known->row;
	if (row && (known->check ^ row) == hash)
		return row;
	row = find_row(mapping->file, mapping->blocks, (__u32)at);
	known->row = row;
	known->check = hash ^ row;
	return row;
}

/* -- Steps ---------------------------------------------------------------------------------------------- */

static __always_inline bool read_stack(__u64 *into, __u64 address)
{
	return !bpf_probe_read_user(into, sizeof(*into), (void *)address);
}

/* struct ucontext at a signal handler's caller, from rsp on: arch/x86/include/uapi/asm/sigcontext.h. */
#define SIGNAL_RBP 120
#define SIGNAL_RSP 160
#define SIGNAL_RIP 168

enum step {
	STEP_ON = 0,
	STEP_ENDED = 1,
};

/* What was followed by frame pointers for lack of a table may have passed over frames. */
static __always_inline enum step end_walk(struct stack *stack, __u8 why)
{
	stack->end = stack->doubt ? stack->doubt : why;
	return STEP_ENDED;
}

/* A function's first instruction: whatever its table says, and if it has none. */
static __always_inline enum step by_entry(struct stack *stack)
{
	stack->exact = 0;
	if (!read_stack(&stack->ip, stack->sp))
		return end_walk(stack, STACK_UNREADABLE);
	stack->sp += 8;
	return STEP_ON;
}

/* `why` there is no table for the frame; it may have a frame pointer. */
static __always_inline enum step by_frame_pointer(struct stack *stack, __u8 why)
{
	__u64 frame[2] = {};

	/* Where no code of a file has a table, the outermost frame is reported by its frame pointer only. */
	if (!stack->bp && stack->pointed && why == STACK_NO_TABLE && stack->doubt == STACK_NO_TABLE)
		return STEP_ENDED;
	if (!stack->doubt && why != STACK_UNMAPPED)
		stack->doubt = why;
	if (stack->bp < stack->sp || stack->bp & 7 ||
	    bpf_probe_read_user(frame, sizeof(frame), (void *)stack->bp) || !frame[1])
		return end_walk(stack, why);
	stack->sp = stack->bp + 16;
	stack->bp = frame[0];
	stack->ip = frame[1];
	stack->exact = 0;
	stack->pointed = 1;
	return STEP_ON;
}

static __always_inline enum step by_signal(struct stack *stack)
{
	__u64 sp = stack->sp;

	if (!read_stack(&stack->ip, sp + SIGNAL_RIP) || !read_stack(&stack->bp, sp + SIGNAL_RBP) ||
	    !read_stack(&stack->sp, sp + SIGNAL_RSP))
		return end_walk(stack, STACK_UNREADABLE);
	stack->exact = 1;
	stack->entered = 0;
	return STEP_ON;
}

static __always_inline enum step by_row(struct stack *stack, __u64 word)
{
	struct unwind_row row = *(struct unwind_row *)&word;
	__u64 cfa, bp = stack->bp, from;
	bool read = true;

	switch (row.rule & 15) {
	case UNWIND_RSP:
		cfa = stack->sp + 8LL * row.cfa;
		break;
	case UNWIND_RBP:
		cfa = stack->bp + 8LL * row.cfa;
		break;
	case UNWIND_PLT:
		cfa = stack->sp + 8 + ((stack->ip & 15) >= (__u64)row.cfa ? 8 : 0);
		break;
	case UNWIND_AT_RBP:
		read = read_stack(&from, stack->bp + 8LL * row.cfa);
		cfa = from;
		break;
	case UNWIND_AT_RSP:
		read = read_stack(&from, stack->sp + 8LL * row.cfa);
		cfa = from;
		break;
	case UNWIND_SIGNAL:
		return by_signal(stack);
	case UNWIND_END:
		return end_walk(stack, STACK_COMPLETE);
	default:
		return end_walk(stack, STACK_NO_ROW);
	}
	if (!read)
		return end_walk(stack, STACK_UNREADABLE);
	if (cfa <= stack->sp)
		return end_walk(stack, STACK_NO_ROW);
	if (row.rule >> 4 == UNWIND_RBP_AT_CFA)
		read = read_stack(&bp, cfa + 8LL * row.rbp);
	else if (row.rule >> 4 == UNWIND_RBP_AT_RBP)
		read = read_stack(&bp, stack->bp + 8LL * row.rbp);
	if (!read || !read_stack(&stack->ip, cfa - 8))
		return end_walk(stack, STACK_UNREADABLE);
	stack->sp = cfa;
	stack->bp = bp;
	stack->exact = 0;
	return stack->ip ? STEP_ON : end_walk(stack, STACK_COMPLETE);
}

#define RETURNS_DEEPEST 64 /* include/linux/uprobes.h: MAX_URETPROBE_DEPTH */

/* The trampoline has popped the address, and may have pushed three registers (Linux 6.11: a system call). */
#define TRAMPOLINE_PUSHES 24
#define PAGE_BYTES	  4096

#define INSTRUCTION_BYTES 15 /* of the longest */

/* The thread executes a copy of a probed instruction, or has just done so: it is at the instruction itself. */
static __always_inline bool leave_copy(struct stack *stack, struct task_struct *task)
{
	__u64 copy = BPF_CORE_READ(task, utask, xol_vaddr);

	if (!stack->exact || !BPF_CORE_READ(task, utask, active_uprobe) || stack->ip < copy ||
	    stack->ip > copy + INSTRUCTION_BYTES)
		return false;
	stack->ip += BPF_CORE_READ(task, utask, vaddr) - copy;
	return true;
}

/*
 * A probed function returns to the kernel's trampoline, and where it would have returned to is in the kernel's list:
 * of a return address that lay at stack->sp - 8, or that a thread in the trampoline has come by. Behind the trampoline
 * are copies of probed instructions. 1: went to where the program itself is. Of its own for the verifier.
 */
__attribute__((noinline)) int follow_probed(struct stack *stack)
{
	struct task_struct *task = (struct task_struct *)bpf_get_current_task();
	struct return_instance *instance = BPF_CORE_READ(task, utask, return_instances);
	__u64 trampoline = BPF_CORE_READ(task, mm, uprobes_state.xol_area, vaddr);
	__u64 low, high;

	if (!stack || !trampoline || stack->ip < trampoline || stack->ip >= trampoline + PAGE_BYTES)
		return 0;
	if (leave_copy(stack, task))
		return 1;
	/* What was left by longjmp() is in the list still, at a place that means something else by now. */
	low = stack->sp - 8;
	high = low;
	if (stack->exact)
		high += TRAMPOLINE_PUSHES;
	for (int i = 0; i < RETURNS_DEEPEST; i++) {
		__u64 slot;

		if (!instance)
			break;
		slot = BPF_CORE_READ(instance, stack);
		if (slot >= low && slot <= high) {
			stack->ip = BPF_CORE_READ(instance, orig_ret_vaddr);
			stack->sp = slot + 8;
			stack->exact = 0;
			return 1;
		}
		instance = BPF_CORE_READ(instance, next);
	}
	return 0;
}

/* Into stack->mapping; 0: there is one. Neighbours on a stack are often of one file. */
static __always_inline int mapping_of(struct stack *stack, __u64 pc)
{
	if (pc >= stack->mapping.start && pc < stack->mapping.end)
		return 0;
	return find_mapping(&stack->mapping, pc, stack->who.tgid);
}

/* One frame, which stack->ip is in, and on to its caller. Of its own for the verifier. */
__attribute__((noinline)) int unwind_frame(struct stack *stack)
{
	__u64 pc;
	int missing;

	if (!stack)
		return STEP_ENDED;
	pc = stack->ip - !stack->exact;
	missing = mapping_of(stack, pc);
	if (missing && follow_probed(stack)) {
		pc = stack->ip - !stack->exact;
		missing = mapping_of(stack, pc);
	}
	if (!push_word(stack, stack->ip))
		return end_walk(stack, STACK_TOO_DEEP);
	stack->user++;
	if (stack->entered && stack->exact)
		return by_entry(stack);
	if (missing || !stack->mapping.file)
		return by_frame_pointer(stack, stack->mapping.why);
	return by_row(stack, row_of(&stack->mapping, pc));
}

struct walk {
	struct stack *stack;
};

static int walk_frame(__u32 number, void *context)
{
	struct stack *stack = ((struct walk *)context)->stack;

	if (!stack)
		return 1;
	if (number >= MAX_USER_FRAMES) {
		stack->end = STACK_TOO_DEEP;
		return 1;
	}
	return unwind_frame(stack) == STEP_ENDED;
}

/* All frames of user space from stack->ip on. Of its own for the verifier. */
__attribute__((noinline)) int walk_user(struct stack *stack)
{
	struct walk walk = { .stack = stack };

	if (!stack)
		return 0;
	if (unwind_loops) /* here: kernels before 6.8 look at functions that nobody calls */
		bpf_loop(MAX_USER_FRAMES + 1, walk_frame, &walk, 0);
	return 0;
}

/* Where user space is, by what the kernel saved of it. Of its own: the verifier has one kind of pointer at a load. */
__attribute__((noinline)) int take_saved_registers(struct stack *stack)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct pt_regs *saved = (struct pt_regs *)bpf_task_pt_regs(task);

	if (!stack)
		return 0;
	stack->ip = saved->ip;
	stack->sp = saved->sp;
	stack->bp = saved->bp;
	if (!BPF_CORE_READ(task, mm))
		stack->ip = 0; /* a thread that ends has no user space any more */
	return 0;
}

/* The same, or by `regs` of a probe on a function's entry. */
static __always_inline void take_registers(struct stack *stack, struct pt_regs *regs)
{
	stack->mapping.start = 0; /* none */
	stack->mapping.end = 0;
	stack->exact = 1;
	stack->pointed = 0;
	stack->doubt = STACK_COMPLETE;
	stack->entered = regs != NULL;
	if (!regs) {
		take_saved_registers(stack);
		return;
	}
	stack->ip = regs->ip;
	stack->sp = regs->sp;
	stack->bp = regs->bp;
}

#endif
