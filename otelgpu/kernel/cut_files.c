/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of others are mapped to be read, and may be cut off meanwhile: touching what lies behind the new end raises
 * SIGBUS, which would end the agent. Here such a page becomes one of zeros, and is counted; whoever reads them finds
 * no ELF file. systemd does the same for journals (src/basic/sigbus.c).
 *
 * Source: sigaction(2) (BUS_ADRERR), mmap(2).
 */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

static uintptr_t page_bytes;
static unsigned long pages;

static void replace_page(int number, siginfo_t *reported, void *context)
{
	int before = errno;
	uintptr_t page = (uintptr_t)reported->si_addr & ~(page_bytes - 1);

	(void)context;
	/* Others are of broken memory, or sent by a process: those end the program, when it goes on or at once. */
	if (reported->si_code != BUS_ADRERR ||
	    mmap((void *)page, page_bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
		 0) == MAP_FAILED) {
		signal(number, SIG_DFL);
		if (reported->si_code <= 0)
			raise(number);
	} else {
		__atomic_fetch_add(&pages, 1, __ATOMIC_RELAXED);
	}
	errno = before;
}

/* From now on; 0, or -1 with errno. */
int cut_files_survive(void)
{
	struct sigaction action = { .sa_sigaction = replace_page,
				    .sa_flags = SA_SIGINFO | SA_RESTART };

	page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
	return sigaction(SIGBUS, &action, NULL);
}

/* How many pages have become zeros so far. */
unsigned long cut_files_pages(void)
{
	return __atomic_load_n(&pages, __ATOMIC_RELAXED);
}
