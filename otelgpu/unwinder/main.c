// SPDX-License-Identifier: Apache-2.0
/*
 * unwinder OFFSET SIZE ADDRESS: the unwind table of one file, by a process of its own.
 *
 * In: the file as standard input, where its .eh_frame lies in it and where that is loaded. Out: struct unwinder_head and the
 * rows, on standard output; the exit code is 0 when that is all of them. What an observed program may have written is read
 * here and nowhere else: before the first byte is looked at, privileges are given up and system calls other than read,
 * write and exit are, so that a file that misleads this program, cuts itself off under it or wants memory and time
 * without end costs this process, and nothing else. It ends with its parent.
 *
 * It needs no C library: it starts in a fraction of a millisecond, takes as much memory as the table, and runs whatever
 * the system has.
 */
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/mman.h>
#include <linux/prctl.h>
#include <linux/resource.h>
#include <linux/seccomp.h>
#include <linux/signal.h>
#include <stddef.h>
#include <asm/unistd.h>

#include "frames.h"

#define MEMORY_LIMIT  (1ull << 30) /* addresses; pages are taken as they are written to */
#define SECONDS_LIMIT 20 /* of a CPU: the largest library that is known takes a quarter of one */
#define NICE	      5
#define PAGE	      4096

enum exit_code { DONE, CALLED_WRONG, NO_ROOM, NOT_WRITTEN };

/* What comes before the rows. */
struct unwinder_head {
	u32 rows;
	u32 damaged;
};

static long call(long number, long a, long b, long c, long d, long e, long f)
{
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = e;
	register long r9 __asm__("r9") = f;
	long result;

	__asm__ volatile("syscall"
			 : "=a"(result)
			 : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	return result;
}

static void __attribute__((noreturn)) leave(enum exit_code code)
{
	for (;;)
		call(__NR_exit, code, 0, 0, 0, 0, 0);
}

/* The compiler makes calls of these. */
void *memset(void *to, int value, size_t count)
{
	for (size_t i = 0; i < count; i++)
		((volatile u8 *)to)[i] = value;
	return to;
}

void *memcpy(void *to, const void *from, size_t count)
{
	for (size_t i = 0; i < count; i++)
		((volatile u8 *)to)[i] = ((const u8 *)from)[i];
	return to;
}

static void *get(u64 bytes)
{
	long at = call(__NR_mmap, 0, bytes + !bytes, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (at < 0 && at > -PAGE)
		leave(NO_ROOM);
	return (void *)at;
}

static u64 number_of(const char *text)
{
	u64 value = 0;

	if (!*text)
		leave(CALLED_WRONG);
	for (; *text; text++) {
		if (*text < '0' || *text > '9')
			leave(CALLED_WRONG);
		value = 10 * value + (*text - '0');
	}
	return value;
}

static void limit(int what, u64 value)
{
	struct rlimit64 both = { value, value };

	call(__NR_prlimit64, 0, what, (long)&both, 0, 0, 0);
}

/* No privileges, no time and memory without end, and nobody's child to be left behind. */
static void give_up(void)
{
	struct __user_cap_header_struct header = { _LINUX_CAPABILITY_VERSION_3, 0 };
	struct __user_cap_data_struct none[2] = { 0 };

	call(__NR_prctl, PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0, 0);
	call(__NR_prctl, PR_SET_DUMPABLE, 0, 0, 0, 0, 0);
	call(__NR_setpriority, PRIO_PROCESS, 0, NICE, 0, 0, 0);
	limit(RLIMIT_AS, MEMORY_LIMIT);
	limit(RLIMIT_CPU, SECONDS_LIMIT);
	limit(RLIMIT_CORE, 0);
	call(__NR_capset, (long)&header, (long)none, 0, 0, 0, 0);
	if (call(__NR_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0))
		leave(CALLED_WRONG);
}

/* From here on read, write and exit; a kernel without seccomp goes on without, for what was given up before is given up. */
static void shut(void)
{
	struct sock_filter rules[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 0, 4),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_read, 3, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_write, 2, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_exit, 1, 0),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { sizeof(rules) / sizeof(*rules), rules };

	call(__NR_prctl, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, (long)&program, 0, 0, 0);
}

static void put(const void *from, u64 bytes)
{
	const u8 *at = from;

	while (bytes) {
		long written = call(__NR_write, 1, (long)at, bytes, 0, 0, 0);

		if (written <= 0 && written != -4) /* EINTR */
			leave(NOT_WRITTEN);
		if (written > 0) {
			at += written;
			bytes -= written;
		}
	}
}

static void __attribute__((noreturn, used)) begin(long *stack)
{
	char **arguments = (char **)(stack + 1);
	struct section section = { 0 };
	struct table table = { 0 };
	struct unwinder_head head;
	u64 offset, before;
	long at;

	if (*stack != 4)
		leave(CALLED_WRONG);
	offset = number_of(arguments[1]);
	section.size = number_of(arguments[2]);
	section.address = number_of(arguments[3]);
	if (!section.size || section.size > SECTION_LIMIT)
		leave(NO_ROOM);
	give_up();
	before = offset % PAGE;
	/* Behind it a page that nobody can read: what would read too far ends there. */
	at = call(__NR_mmap, 0, section.size + before + 2 * PAGE, PROT_NONE,
		  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (at < 0 && at > -PAGE)
		leave(NO_ROOM);
	at = call(__NR_mmap, at, section.size + before, PROT_READ, MAP_PRIVATE | MAP_FIXED, 0,
		  offset - before);
	if (at < 0 && at > -PAGE)
		leave(CALLED_WRONG);
	section.bytes = (const u8 *)at + before;
	table.rows_limit = section.size < ROWS_LIMIT ? section.size : ROWS_LIMIT;
	table.shared = get(SHARED_LIMIT * sizeof(*table.shared));
	table.functions = get(section.size / FDE_BYTES * sizeof(*table.functions));
	table.functions_spare = get(section.size / FDE_BYTES * sizeof(*table.functions));
	table.rows = get(table.rows_limit * sizeof(*table.rows));
	table.rows_spare = get(table.rows_limit * sizeof(*table.rows));
	shut();
	make_table(&section, &table);
	if (table.is_full)
		leave(NO_ROOM);
	head = (struct unwinder_head){ table.rows_count, table.damaged };
	put(&head, sizeof(head));
	put(table.rows, table.rows_count * sizeof(*table.rows));
	leave(DONE);
}

__asm__(".globl _start\n"
	"_start:\n"
	"	xor %ebp, %ebp\n"
	"	mov %rsp, %rdi\n"
	"	and $-16, %rsp\n"
	"	call begin\n");
