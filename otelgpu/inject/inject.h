/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The in-process source: a library that is loaded into the observed program by
 * LD_PRELOAD, stands in for every function of the CUDA API that bpf/cuda/calls.h
 * lists, calls the real one and writes what BPF programs would have written.
 *
 *   wrappers.c    the functions that stand in
 *   symbols.c     which real function a wrapper calls; dlsym and cuGetProcAddress
 *   linking.c     what the linker would have bound a caller to, without its locks
 *   recording.c   a call → a record in the thread's ring; what runs at every call
 *   connection.c  the memory that the agent gives; threads, fork
 *
 * Whatever fails, the program's own call is made, and its errno, its signals and
 * its output are left alone.
 */
#ifndef OTELGPU_INJECT_H
#define OTELGPU_INJECT_H

#include "memory.h"
#include "clock.h"
#include "arguments.h" /* before what would include that of the BPF programs */
#include "cuda/contexts.h"

#define EXPORTED    __attribute__((visibility("default")))
#define likely(x)   __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

/*
 * Arguments of the CUDA API are integers, pointers and small structs by value, so
 * that six registers and STACK_WORDS words of stack are all of them, whatever the
 * function (most: the 64-byte handle of cudaIpcOpenMemHandle). Of functions that
 * have fewer, words of the caller's frame are copied along.
 */
#define STACK_WORDS 8

struct stack_words {
	__u64 word[STACK_WORDS];
};

typedef __u64 cuda_function(__u64, __u64, __u64, __u64, __u64, __u64, struct stack_words);

struct thread;

enum recorded {
	NOT_RECORDED = 0,
	FOLLOWED =
		1, /* not reported: it is inside another call, and may change the current device */
	RECORDED = 2,
};

/* A call under way; lies in the wrapper's frame, so that its address says what it is inside of. */
struct call {
	struct cuda_call
		record; /* a slot that is a result says where it will be, until the return */
	const void *caller;
	__u64 spent_ns; /* on taking the stack of the call: in no duration */
	__u32 generation;
	__u8 recorded; /* enum recorded */
	__u8 is_outermost;
} __attribute__((aligned(16)));

/* recording.c */
void call_begin(struct call *call, __u16 api, struct pt_regs *regs);
void call_end(struct call *call, __u64 result);

/* What a thread knows of itself, in thread-local storage. */
struct thread {
	__u32 generation; /* of the connection that the rest belongs to; 0: none */
	__u32 tgid;
	__u32 tid;
	struct inject_thread *control; /* in the memory */
	__u8 *ring;
	__u64 mask;	/* ring's size - 1 */
	__u64 position; /* bytes written */
	__u64 consumer; /* bytes read when last looked at */
	struct clock clock;
	const struct call *outermost;  /* still under way, or left by longjmp */
	struct context_stack contexts; /* device 0 until one is chosen */
	__u8 opening;	 /* in thread_open(): a signal handler's calls are let through */
	__u8 registered; /* its end will be reported */
};

/*
 * The connection of this process. In a page that fork() empties, so that a child
 * finds no generation, whichever way it was forked, and connects for itself.
 */
struct connection {
	__u32 generation;
	__u32 state;
	__u64 missed; /* calls that were not recorded, and are not counted in the memory yet */
	struct inject_header *header;
	int socket;
	__u32 tgid; /* whose it is; 0 after a fork */
	__u64 socket_inode;
};

/* connection.c */
extern struct connection *connection;
int thread_open(struct thread *thread);

/* Whether what the thread knows is of this process's connection. */
static inline bool is_current(const struct thread *thread)
{
	return thread->generation &&
	       thread->generation == __atomic_load_n(&connection->generation, __ATOMIC_ACQUIRE);
}

/* For what belongs to no thread. */
void count_globally(enum inject_counter counter);

/* wrappers.c */
void *own_function(__u16 api,
		   unsigned int copy); /* 0: the exported one; from 1 on: the bound ones */
extern const char *const api_names[API_COUNT];

/* symbols.c */
__u16 api_number(const char *name); /* 0: none of those that are observed */
#define COPIES 3
extern cuda_function *bound[API_COUNT][COPIES];
cuda_function *called_from(__u16 api, const void *caller);
__u64 cuGetProcAddress(const char *symbol, void **address, int version, __u64 flags, void *found);
__u64 cuGetProcAddress_v2(const char *symbol, void **address, int version, __u64 flags,
			  void *found);

#endif
