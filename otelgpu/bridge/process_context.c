// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "process_context.h"

#define NAME	"OTEL_CTX"
#define VERSION 2

/* linux/memfd.h from 6.3 and linux/prctl.h from 5.17, which older headers lack */
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8U
#endif
#ifndef PR_SET_VMA
#define PR_SET_VMA	     0x53564d41
#define PR_SET_VMA_ANON_NAME 0
#endif

struct header {
	char signature[8]; /* NAME without its end, written once everything else is there */
	uint32_t version;
	uint32_t payload_size;
	_Atomic uint64_t
		published_at_ns; /* CLOCK_BOOTTIME; 0 while the rest changes; no two alike */
	const void *payload;
};

_Static_assert(sizeof(struct header) == 32 && sizeof(void *) == 8, "OTEP 4719");

static struct header *published; /* NULL also in a child, which has no mapping */

static void forget(void)
{
	published = NULL;
}

static size_t mapping_size(void)
{
	return (size_t)sysconf(_SC_PAGESIZE);
}

/* The mapping is of a memfd, which /proc/<pid>/maps names everywhere; of nothing where there is none. */
static struct header *map(void)
{
	int fd = memfd_create(NAME, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
	int flags = MAP_PRIVATE;
	void *at;

	if (fd < 0)
		fd = memfd_create(NAME, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd >= 0 && ftruncate(fd, (off_t)mapping_size()) != 0) {
		close(fd);
		fd = -1;
	}
	if (fd < 0)
		flags |= MAP_ANONYMOUS;
	at = mmap(NULL, mapping_size(), PROT_READ | PROT_WRITE, flags, fd, 0);
	if (fd >= 0)
		close(fd);
	return at == MAP_FAILED ? NULL : at;
}

/* Kernels that cannot name a mapping refuse; readers may watch for the call itself. */
static void name(struct header *header)
{
	int before = errno;

	prctl(PR_SET_VMA, PR_SET_VMA_ANON_NAME, header, mapping_size(), NAME);
	errno = before;
}

static uint64_t now_after(uint64_t earlier)
{
	struct timespec now;
	uint64_t ns;

	clock_gettime(CLOCK_BOOTTIME, &now);
	ns = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
	return ns > earlier ? ns : earlier + 1;
}

int publish_process(const void *payload, size_t size)
{
	static int forgets;
	struct header *header = published;
	void *copy = malloc(size ? size : 1), *old = NULL;
	uint64_t earlier = 0;
	int error;

	if (copy == NULL)
		return ENOMEM;
	if (!forgets && (error = pthread_atfork(NULL, NULL, forget)) != 0) {
		free(copy);
		return error;
	}
	forgets = 1;
	memcpy(copy, payload, size);
	if (header == NULL) {
		header = map();
		if (header == NULL || madvise(header, mapping_size(), MADV_DONTFORK) != 0) {
			error = errno;
			if (header != NULL)
				munmap(header, mapping_size());
			free(copy);
			return error;
		}
	} else {
		earlier = header->published_at_ns;
		old = (void *)header->payload;
	}
	header->published_at_ns = 0;
	atomic_thread_fence(memory_order_seq_cst);
	header->version = VERSION;
	header->payload_size = (uint32_t)size;
	header->payload = copy;
	atomic_thread_fence(memory_order_seq_cst);
	header->published_at_ns = now_after(earlier);
	if (header != published) {
		atomic_thread_fence(memory_order_seq_cst);
		memcpy(header->signature, NAME, sizeof(header->signature));
		published = header;
	}
	name(header);
	free(old);
	return 0;
}
