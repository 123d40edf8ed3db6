// SPDX-License-Identifier: Apache-2.0
/*
 * The way to the agent: asked for at the first call of the CUDA API, so that
 * programs that make none never connect. A process sends one message over a Unix
 * socket and gets the descriptor of its memory; it closes both once the memory is
 * mapped, so that no descriptor of ours is there for the program to stumble on.
 *
 * Nothing here blocks for longer than ANSWER_MS, once in the life of a process.
 */
#define _GNU_SOURCE
#include "inject.h"
#include "cupti.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define ANSWER_MS	100
#define SOCKET_VARIABLE "OTELGPU_INJECT_SOCKET"

enum state {
	STATE_NEW = 0,	 /* also after a fork: the page is emptied */
	STATE_BUSY = 1,	 /* a thread is at it */
	STATE_ASKED = 2, /* the agent has not answered yet */
	STATE_READY = 3,
	STATE_OFF = 4, /* for good */
};

static struct connection unopened; /* until there is a page */
struct connection *connection = &unopened;

static __u32 generations; /* an ordinary variable: a child goes on counting */
static struct inject_header *mapped;
static __u64 mapped_bytes; /* a child lets go of its parent's memory */

static void debug(const char *what, const char *more)
{
	if (getenv("OTELGPU_INJECT_DEBUG"))
		dprintf(STDERR_FILENO, "otelgpu-inject[%d]: %s%s\n", (int)getpid(), what, more);
}

/* Of the functions and records that this library was built with: the agent's must be the same. */
static __u64 interface_digest(void)
{
	__u64 hash = 0xcbf29ce484222325ULL;

	for (__u16 api = 1; api < API_COUNT; api++)
		for (const char *at = api_names[api];; at++) {
			hash = (hash ^ (unsigned char)*at) * 0x100000001b3ULL;
			if (!*at)
				break;
		}
	return hash;
}

__u8 clock_has_ticks;

/* The kernel's own choice: it watches the counter, and leaves it when it is not steady. */
static void find_clock(void)
{
	char name[8] = { 0 };
	int file = open("/sys/devices/system/clocksource/clocksource0/current_clocksource",
			O_RDONLY | O_CLOEXEC);

	if (file < 0)
		return;
	clock_has_ticks = read(file, name, sizeof(name) - 1) == 4 && !memcmp(name, "tsc\n", 4);
	close(file);
}

/* -- Connecting --------------------------------------------------------------------------- */

/* The page that fork() empties, or NULL where the kernel has no such pages (before 4.14). */
static struct connection *open_page(void)
{
	struct connection *page, *seen = &unopened;
	size_t size = (size_t)sysconf(_SC_PAGESIZE);

	page = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (page == MAP_FAILED)
		return NULL;
	if (madvise(page, size, MADV_WIPEONFORK)) {
		munmap(page, size);
		return NULL;
	}
	page->tgid = (__u32)getpid();
	if (!__atomic_compare_exchange_n(&connection, &seen, page, 0, __ATOMIC_ACQ_REL,
					 __ATOMIC_ACQUIRE)) {
		munmap(page, size);
		return seen;
	}
	return page;
}

static int say_hello(int asking)
{
	struct inject_hello hello = { .magic = INJECT_MAGIC,
				      .version = INJECT_VERSION,
				      .digest = interface_digest() };

	return send(asking, &hello, sizeof(hello), MSG_NOSIGNAL) == sizeof(hello);
}

static int ask(const char *path)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int asking;

	if (!path || !*path || getauxval(AT_SECURE))
		return -1;
	if (strlen(path) >= sizeof(address.sun_path)) {
		debug("the path is too long: ", path);
		return -1;
	}
	strcpy(address.sun_path, path);
	asking = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (asking < 0)
		return -1;
	if (connect(asking, (struct sockaddr *)&address, sizeof(address)) || !say_hello(asking)) {
		debug("no agent at ", path); /* strerror() may take a lock */
		close(asking);
		return -1;
	}
	return asking;
}

/* The descriptor of the memory, -1 when there will be none, -2 when there is none yet. */
static int take_answer(int asking)
{
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(sizeof(int))];
	} control;
	__u32 word;
	struct iovec data = { &word, sizeof(word) };
	struct msghdr message = { .msg_iov = &data,
				  .msg_iovlen = 1,
				  .msg_control = &control,
				  .msg_controllen = sizeof(control) };
	struct cmsghdr *passed;
	int memory;
	ssize_t got;

	do
		got = recvmsg(asking, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
	while (got < 0 && errno == EINTR);
	if (got < 0 && errno == EAGAIN)
		return -2;
	passed = CMSG_FIRSTHDR(&message);
	if (got != sizeof(word) || !passed || passed->cmsg_level != SOL_SOCKET ||
	    passed->cmsg_type != SCM_RIGHTS || passed->cmsg_len != CMSG_LEN(sizeof(int)))
		return -1;
	memcpy(&memory, CMSG_DATA(passed), sizeof(memory));
	return memory;
}

static int is_sound(const struct inject_header *header, __u64 bytes)
{
	return header->magic == INJECT_MAGIC && header->version == INJECT_VERSION &&
	       header->ring_bytes >= 4096 && !(header->ring_bytes & (header->ring_bytes - 1)) &&
	       header->threads && header->threads <= 65536 && header->rings <= bytes &&
	       INJECT_HEADER_BYTES + header->threads * sizeof(struct inject_thread) <=
		       header->rings &&
	       (bytes - header->rings) / header->ring_bytes >= header->threads;
}

/* fstat() of older glibc has another name. */
static int get_status(int descriptor, struct stat *status)
{
	return syscall(SYS_fstat, descriptor, status) == 0;
}

static int map_memory(struct connection *page, int memory)
{
	struct inject_header *header;
	struct stat status;

	if (!get_status(memory, &status) || status.st_size < INJECT_HEADER_BYTES)
		return 0;
	header = mmap(NULL, (size_t)status.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
	if (header == MAP_FAILED)
		return 0;
	if (!is_sound(header, (__u64)status.st_size)) {
		munmap(header, (size_t)status.st_size);
		return 0;
	}
	if (mapped) /* the parent's */
		munmap(mapped, mapped_bytes);
	mapped = header;
	mapped_bytes = (__u64)status.st_size;
	find_clock();
	page->header = header;
	return 1;
}

/* The program may have closed our descriptor and opened something else by its number. */
static int is_our_socket(const struct connection *page)
{
	struct stat status;

	return get_status(page->socket, &status) && status.st_ino == page->socket_inode;
}

static void await_answer(int asking, __u64 within_ms)
{
	struct pollfd answer = { .fd = asking, .events = POLLIN };
	__u64 until_ns = clock_read() + within_ms * 1000000ULL, now_ns;

	while ((now_ns = clock_read()) < until_ns) {
		int left_ms = (int)((until_ns - now_ns + 999999) / 1000000);

		if (poll(&answer, 1, left_ms) >= 0 || errno != EINTR)
			return;
	}
}

static enum state proceed(struct connection *page, enum state state)
{
	struct stat status;
	int memory, is_ready;

	if (state == STATE_NEW) {
		page->socket = ask(getenv(SOCKET_VARIABLE));
		if (page->socket < 0)
			return STATE_OFF;
		if (get_status(page->socket, &status))
			page->socket_inode = status.st_ino;
		await_answer(page->socket, ANSWER_MS);
	} else if (!is_our_socket(page)) {
		return STATE_OFF;
	}
	memory = take_answer(page->socket);
	if (memory == -2)
		return STATE_ASKED;
	close(page->socket);
	if (memory < 0) {
		debug("the agent refused: is it of another version?", "");
		return STATE_OFF;
	}
	is_ready = map_memory(page, memory);
	close(memory);
	debug(is_ready ? "connected" : "the memory is not as it should be", "");
	return is_ready ? STATE_READY : STATE_OFF;
}

static void flush_missed(struct connection *page)
{
	__u64 missed = __atomic_exchange_n(&page->missed, 0, __ATOMIC_ACQ_REL);

	if (missed)
		__atomic_fetch_add(&page->header->counters[INJECT_NOT_CONNECTED], missed,
				   __ATOMIC_RELAXED);
}

/* Wait for the thread that connects, as long as that may take. */
static __u32 await(const struct connection *page)
{
	const struct timespec pause = { .tv_nsec = 50000 };
	__u32 state = STATE_BUSY;

	for (int i = 0; i < 2 * ANSWER_MS * 20 && state == STATE_BUSY; i++) {
		nanosleep(&pause, NULL);
		state = __atomic_load_n(&page->state, __ATOMIC_ACQUIRE);
	}
	return state;
}

/*
 * A child by vfork() lives in its parent's memory, which must not be connected in
 * its name. After a fork() the page is empty, and so does not name the parent.
 */
static int is_vforked(struct connection *page)
{
	__u32 tgid = (__u32)getpid(), nobody = 0;

	return !__atomic_compare_exchange_n(&page->tgid, &nobody, tgid, 0, __ATOMIC_ACQ_REL,
					    __ATOMIC_ACQUIRE) &&
	       nobody != tgid;
}

/* Early, so that a child can be distinguished from its parent. */
__attribute__((constructor)) static void library_loaded(void)
{
	int saved = errno;

	if (getenv(SOCKET_VARIABLE))
		open_page();
	errno = saved;
}

static struct connection *connected(void)
{
	struct connection *page = __atomic_load_n(&connection, __ATOMIC_ACQUIRE);
	__u32 state;

	if (page == &unopened)
		page = open_page();
	if (!page)
		return NULL;
	state = __atomic_load_n(&page->state, __ATOMIC_ACQUIRE);
	if ((state == STATE_NEW || state == STATE_ASKED) && !is_vforked(page)) {
		__u32 before = state;

		if (__atomic_compare_exchange_n(&page->state, &state, STATE_BUSY, 0,
						__ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
			state = proceed(page, before);
			if (state == STATE_READY)
				__atomic_store_n(&page->generation, ++generations,
						 __ATOMIC_RELEASE);
			__atomic_store_n(&page->state, state, __ATOMIC_RELEASE);
			if (state == STATE_READY)
				cupti_start(); /* counts what it cannot do */
		}
	}
	if (state == STATE_BUSY)
		state = await(page);
	return state == STATE_READY ? page : NULL;
}

/* A call that is not recorded because the agent has not answered yet. */
static void count_missed(void)
{
	struct connection *page = __atomic_load_n(&connection, __ATOMIC_ACQUIRE);

	if (page == &unopened || __atomic_load_n(&page->state, __ATOMIC_ACQUIRE) == STATE_OFF)
		return;
	__atomic_fetch_add(&page->missed, 1, __ATOMIC_ACQ_REL);
	if (__atomic_load_n(&page->state, __ATOMIC_ACQUIRE) == STATE_READY)
		flush_missed(page); /* it was answered in this moment */
}

void count_globally(enum inject_counter counter)
{
	struct connection *page = __atomic_load_n(&connection, __ATOMIC_ACQUIRE);

	if (__atomic_load_n(&page->state, __ATOMIC_ACQUIRE) == STATE_READY)
		__atomic_fetch_add(&page->header->counters[counter], 1, __ATOMIC_RELAXED);
}

void inject_count_device_time(enum cupti_counter counter, uint64_t count)
{
	struct connection *page = __atomic_load_n(&connection, __ATOMIC_ACQUIRE);

	if (__atomic_load_n(&page->state, __ATOMIC_ACQUIRE) == STATE_READY)
		__atomic_fetch_add(&page->header->device_time[counter], count, __ATOMIC_RELAXED);
}

/* -- Threads ------------------------------------------------------------------------------ */

static struct inject_thread *threads_of(struct inject_header *header)
{
	return (struct inject_thread *)((char *)header + INJECT_HEADER_BYTES);
}

/* The next owner goes on where this one has stopped. */
static void thread_ended(void *ended)
{
	struct thread *thread = ended;

	if (is_current(thread))
		__atomic_store_n(&thread->control->owner, 0, __ATOMIC_RELEASE);
	thread->generation = 0;
	thread->registered = 0;
}

/* glibc 2.18: what C++ calls for thread_local objects. */
int __cxa_thread_atexit_impl(void (*function)(void *), void *object, void *library);
extern void *__dso_handle __attribute__((visibility("hidden")));

extern __typeof__(pthread_key_create) pthread_key_create __attribute__((weak)); /* glibc.h */
static pthread_key_t end_key;
static __u8 has_end_key;

__attribute__((constructor)) static void make_end_key(void)
{
	has_end_key = pthread_key_create && !pthread_key_create(&end_key, thread_ended);
}

/*
 * A thread's value of one of the first 32 keys lies in the thread itself (nptl/descr.h), and loaded before others this
 * library has one of these. C++'s way allocates, under the linker's lock: for programs without libpthread, and those
 * that have used up the keys.
 */
#define KEYS_IN_THREAD 32

static __u8 report_end(struct thread *thread)
{
	if (has_end_key && end_key < KEYS_IN_THREAD)
		return !pthread_setspecific(end_key, thread);
	return !__cxa_thread_atexit_impl(thread_ended, thread, &__dso_handle);
}

/* A free ring that the agent has emptied, or else one that it has not. */
static struct inject_thread *claim_ring(struct inject_header *header, __u32 tid)
{
	struct inject_thread *threads = threads_of(header);

	for (__u32 i = 0; i < 2 * header->threads; i++) {
		struct inject_thread *ring = &threads[i % header->threads];
		__u32 nobody = 0;

		if (__atomic_load_n(&ring->owner, __ATOMIC_RELAXED) ||
		    (i < header->threads && ring->producer != ring->consumer))
			continue;
		if (__atomic_compare_exchange_n(&ring->owner, &nobody, tid, 0, __ATOMIC_ACQ_REL,
						__ATOMIC_RELAXED))
			return ring;
	}
	count_globally(INJECT_THREAD_STATE_FAILED);
	return NULL;
}

static int take_ring(struct thread *thread, const struct connection *page)
{
	struct inject_header *header = page->header;
	__u32 tid = (__u32)syscall(SYS_gettid);
	struct inject_thread *ring = claim_ring(header, tid);

	if (!ring)
		return 0;
	thread->tgid = page->tgid;
	thread->tid = tid;
	thread->control = ring;
	thread->ring = (__u8 *)header + header->rings +
		       (__u64)(ring - threads_of(header)) * header->ring_bytes;
	thread->mask = header->ring_bytes - 1;
	thread->position = __atomic_load_n(&ring->producer, __ATOMIC_RELAXED);
	thread->consumer = __atomic_load_n(&ring->consumer, __ATOMIC_ACQUIRE);
	thread->generation = page->generation;
	if (!thread->registered)
		thread->registered = report_end(thread);
	return 1;
}

int thread_open(struct thread *thread)
{
	struct connection *page;
	int saved = errno, opened = 0;

	/* Off for good is asked at every call of every thread. */
	if (thread->opening || __atomic_load_n(&connection->state, __ATOMIC_RELAXED) == STATE_OFF)
		return 0;
	thread->opening = 1;
	page = connected();
	if (page) {
		flush_missed(page);
		opened = take_ring(thread, page);
	} else {
		count_missed();
	}
	thread->opening = 0;
	errno = saved;
	return opened;
}

/* -- CUDA_INJECTION64_PATH ---------------------------------------------------------------- */

/*
 * libcuda loads the library named by CUDA_INJECTION64_PATH when it is initialised
 * and calls this. Calls that are linked already then are not caught: see docs/explanation/inject.md.
 */
EXPORTED int InitializeInjection(void);
EXPORTED int InitializeInjection(void)
{
	int saved = errno;

	connected();
	errno = saved;
	return 1;
}

/* -- Loaded into a process that runs --------------------------------------------------------- */

#define LIVE_ANSWER_MS 10000	      /* nobody's call waits for it */
#define UNHEARD_NS     15000000000ULL /* an agent looks fifty times a second */

bool inject_is_heard(void)
{
	struct connection *page = __atomic_load_n(&connection, __ATOMIC_ACQUIRE);
	__u64 heard_ns;

	if (__atomic_load_n(&page->state, __ATOMIC_ACQUIRE) != STATE_READY)
		return false;
	heard_ns = __atomic_load_n(&page->header->heard_ns, __ATOMIC_RELAXED);
	return heard_ns != HEARD_LAST && clock_read() < heard_ns + UNHEARD_NS;
}

void inject_live_ended(void)
{
	struct connection *page = __atomic_load_n(&connection, __ATOMIC_ACQUIRE);

	__atomic_store_n(&page->generation, 0, __ATOMIC_RELEASE);
	__atomic_store_n(&page->state, STATE_OFF, __ATOMIC_RELEASE);
	if (mapped)
		munmap(mapped, mapped_bytes);
	mapped = NULL;
}

static enum state connect_live(struct connection *page, int asking)
{
	int memory, is_ready;

	page->tgid = (__u32)getpid(); /* a child's page is empty */
	if (!say_hello(asking))
		return STATE_OFF;
	await_answer(asking, LIVE_ANSWER_MS);
	memory = take_answer(asking);
	if (memory < 0)
		return STATE_OFF;
	is_ready = map_memory(page, memory);
	close(memory);
	return is_ready ? STATE_READY : STATE_OFF;
}

/*
 * What a thread that was started for it calls, in a process that runs already (otelgpu/processes/live_injection).
 * All signals are blocked in it, and in the thread that device time has from it. The agent has the other end of the
 * socket ``asking``, which the caller closes.
 */
EXPORTED __u64 otelgpu_live_begin(const struct live_request *request, int asking);
EXPORTED __u64 otelgpu_live_begin(const struct live_request *request, int asking)
{
	struct connection *page = __atomic_load_n(&connection, __ATOMIC_ACQUIRE);
	enum cupti_counter reason;
	__u32 state;

	if (request->magic != INJECT_MAGIC || request->version != INJECT_VERSION)
		return LIVE_MALFORMED;
	if (getenv(SOCKET_VARIABLE))
		return LIVE_ALREADY; /* its calls come through here: what was not connected stays so */
	if (page == &unopened)
		page = open_page();
	if (!page)
		return LIVE_NOT_CONNECTED;
	state = __atomic_load_n(&page->state, __ATOMIC_ACQUIRE);
	if ((state != STATE_NEW && state != STATE_OFF) ||
	    !__atomic_compare_exchange_n(&page->state, &state, STATE_BUSY, 0, __ATOMIC_ACQ_REL,
					 __ATOMIC_ACQUIRE))
		return LIVE_ALREADY;
	state = connect_live(page, asking);
	if (state == STATE_READY)
		__atomic_store_n(&page->generation, ++generations, __ATOMIC_RELEASE);
	__atomic_store_n(&page->state, state, __ATOMIC_RELEASE);
	if (state != STATE_READY)
		return LIVE_NOT_CONNECTED;
	reason = cupti_live_start(request->per_second, request->buffers_mib);
	if (reason == CUPTI_COUNTER_COUNT)
		return LIVE_OBSERVED;
	inject_live_ended();
	return LIVE_CUPTI + reason;
}
