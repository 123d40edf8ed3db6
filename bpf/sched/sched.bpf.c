// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Family sched: hand-offs of work between the threads of a process, by futex.
 *
 * A worker waits for work on a futex with no time limit, or with a long one. Waits
 * for a mutex, and short ones, by which CPython's threads take turns with the
 * interpreter lock, hand nothing over; neither does waking a thread in such a wait. Only
 * wake-ups by a thread that is inside futex(FUTEX_WAKE) on the very address count:
 * an interrupt wakes threads in the context of any thread.
 *
 * A thread that waits for a result waits at a semaphore that it has just made and taken itself, as CPython's
 * Condition.wait does up to 3.13; one that waits for a lock, at an older one.
 */
#include "sched.h"
#include "../lib/arguments.h"
#include "../lib/emit.h"
#include "../lib/files.h"
#include "../lib/own_stack.h"
#include <bpf/bpf_tracing.h>

RECORD(sched_handoff);
ENUM(sched_kind);
ENUM(sched_event);

/* include/uapi/linux/futex.h */
#define FUTEX_WAIT	     0
#define FUTEX_WAKE	     1
#define FUTEX_WAKE_OP	     5
#define FUTEX_WAIT_BITSET    9
#define FUTEX_WAKE_BITSET    10
#define FUTEX_COMMAND	     0x7f /* without FUTEX_PRIVATE_FLAG and FUTEX_CLOCK_REALTIME */
#define FUTEX_CLOCK_REALTIME 256

/* glibc and Rust's std: the value of a lock that somebody waits for. */
#define LOCK_CONTENDED 2

#define IDLE_AT_LEAST_NS  50000000ULL /* shorter timeouts are lock turns, not idle waits */
#define SECOND_NS	  1000000000ULL
#define ABSOLUTE_BEYOND_S 1000000000ULL /* of CLOCK_REALTIME: since 2001 */

enum wait_state {
	WAIT_NONE = 0,
	WAIT_IDLE = 1,	/* inside an idle wait */
	WAIT_WOKEN = 2, /* ... which another thread has ended */
};

/* What a thread does. The kernel frees it with the thread. */
struct handoff_state {
	__u64 idle_ns;
	__u64 address; /* waited on */
	__u64 woken_ns;
	__u64 waking; /* address that it wakes others at; 0: none */
	__u64 made;   /* the semaphore that it made last, until it waits; 0: none */
	__u32 waker;
	__u8 state;   /* enum wait_state */
	__u8 engaged; /* was woken for something, and has not signalled since */
	__u8 reserved[2];
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct handoff_state);
} handoff_states SEC(".maps");

struct futex_key {
	__u64 address;
	__u32 tgid;
	__u32 reserved;
};

/* Futexes that threads wait for in turn: waking there is no signal. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct futex_key);
	__type(value, __u8);
} turns SEC(".maps") BY_PROCESSORS;

static __always_inline struct handoff_state *state_of(struct task_struct *task, __u64 flags)
{
	return bpf_task_storage_get(&handoff_states, task, NULL, flags);
}

static __always_inline void emit_handoff(struct identity who, const struct handoff_state *state,
					 __u16 event, __u64 time_ns)
{
	struct sched_handoff *record =
		EMIT_BEGIN(sched_handoff, SCHED_HANDOFF, who, time_ns, time_ns);

	if (!record)
		return;
	record->event = event;
	if (event == SCHED_WOKEN || event == SCHED_TIMED_OUT) {
		record->idle_ns = state->idle_ns;
		record->waker = event == SCHED_WOKEN ? state->waker : 0;
	}
	submit(record);
}

struct timespec {
	__s64 seconds;
	__s64 nanoseconds;
};

/* Whether a wait with this timeout is an idle one. */
static __always_inline bool is_long(__u64 limit, __u32 operation, __u64 now)
{
	struct timespec until = {};
	__u64 ns;

	if (!limit)
		return true;
	if (bpf_probe_read_user(&until, sizeof(until), (void *)limit))
		return false;
	ns = (__u64)until.seconds * SECOND_NS + (__u64)until.nanoseconds;
	if ((operation & FUTEX_COMMAND) == FUTEX_WAIT)
		return ns >= IDLE_AT_LEAST_NS; /* relative */
	if (operation & FUTEX_CLOCK_REALTIME || (__u64)until.seconds > ABSOLUTE_BEYOND_S)
		return false; /* BPF has no clock to compare it with */
	return ns >= now + IDLE_AT_LEAST_NS;
}

static __always_inline void take_turns(__u32 tgid, __u64 address)
{
	struct futex_key key = { .address = address, .tgid = tgid };
	__u8 one = 1;

	if (!bpf_map_lookup_elem(&turns, &key))
		bpf_map_update_elem(&turns, &key, &one, BPF_ANY);
}

static __always_inline int waits(struct identity who, struct syscall_enter *call)
{
	__u64 address = call->args[0], now = bpf_ktime_get_ns();
	__u32 operation = (__u32)call->args[1];
	struct handoff_state *state;
	bool lock =
		(operation & FUTEX_COMMAND) == FUTEX_WAIT && (__u32)call->args[2] == LOCK_CONTENDED;

	if (lock || !is_long(call->args[3], operation, now)) {
		take_turns(who.tgid, address);
		return 0;
	}
	state = state_of(bpf_get_current_task_btf(), BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!state) {
		count(COUNTER_THREAD_STATE_FAILED);
		return 0;
	}
	state->idle_ns = now;
	state->address = address;
	state->waker = 0;
	state->state = WAIT_IDLE;
	if (state->made == address)
		emit_handoff(who, state, SCHED_AWAITS, now);
	state->made = 0;
	return 0;
}

static __always_inline int wakes(struct identity who, struct syscall_enter *call)
{
	struct futex_key key = { .address = call->args[0], .tgid = who.tgid };
	struct handoff_state *state;

	if (bpf_map_lookup_elem(&turns, &key))
		return 0;
	state = state_of(bpf_get_current_task_btf(), BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!state) {
		count(COUNTER_THREAD_STATE_FAILED);
		return 0;
	}
	state->waking = key.address;
	return 0;
}

SEC("tracepoint/syscalls/sys_enter_futex")
int enter_futex(struct syscall_enter *call)
{
	struct identity who;

	if (!in_scope(&who))
		return 0;
	switch (call->args[1] & FUTEX_COMMAND) {
	case FUTEX_WAIT:
	case FUTEX_WAIT_BITSET:
		return waits(who, call);
	case FUTEX_WAKE:
	case FUTEX_WAKE_OP:
	case FUTEX_WAKE_BITSET:
		return wakes(who, call);
	}
	return 0;
}

SEC("tp_btf/sched_waking")
int BPF_PROG(on_waking, struct task_struct *task)
{
	struct task_struct *current = bpf_get_current_task_btf();
	struct handoff_state *woken, *waker;

	(void)ctx;
	woken = state_of(task, 0);
	if (!woken || woken->state != WAIT_IDLE)
		return 0;
	waker = state_of(current, 0);
	if (!waker || !waker->waking || waker->waking != woken->address)
		return 0;
	if (BPF_CORE_READ(current, tgid) != BPF_CORE_READ(task, tgid))
		return 0;
	woken->waker = current_identity().tid;
	woken->woken_ns = bpf_ktime_get_ns();
	woken->state = WAIT_WOKEN;
	return 0;
}

SEC("tracepoint/syscalls/sys_exit_futex")
int exit_futex(struct syscall_exit *call)
{
	struct handoff_state *state = state_of(bpf_get_current_task_btf(), 0);
	struct identity who;

	(void)call;
	if (!state)
		return 0;
	if (state->waking) {
		state->waking = 0;
		/* Emitted after the wake-up: for the thread that it woke, the wake-up comes first. */
		if (state->engaged && in_scope(&who)) {
			state->engaged = 0;
			emit_handoff(who, state, SCHED_SIGNALLED, bpf_ktime_get_ns());
		}
		return 0;
	}
	if (state->state == WAIT_NONE)
		return 0;
	if (state->state == WAIT_WOKEN && in_scope(&who)) {
		state->engaged = 1;
		emit_handoff(who, state, SCHED_WOKEN, state->woken_ns);
	} else if (state->engaged && in_scope(&who)) {
		state->engaged = 0;
		emit_handoff(who, state, SCHED_TIMED_OUT, bpf_ktime_get_ns());
	}
	state->state = WAIT_NONE;
	return 0;
}

/* sem_init(3): semaphore, shared between processes, value. */
SEC("uprobe/libc:sem_init")
int on_sem_init(struct pt_regs *regs)
{
	struct handoff_state *state;
	struct identity who;

	ON_OWN_STACK(regs);
	if ((__u32)ARGUMENT_2(regs) || (__u32)ARGUMENT_3(regs) != 1 || !in_scope(&who))
		return 0;
	state = state_of(bpf_get_current_task_btf(), BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!state) {
		count(COUNTER_THREAD_STATE_FAILED);
		return 0;
	}
	state->made = ARGUMENT_1(regs);
	emit_handoff(who, state, SCHED_MADE, bpf_ktime_get_ns());
	return 0;
}

/* arch/x86: what an event loop's other threads write to wake it (a pipe, an eventfd, a pair of sockets). */
#define MODE_TYPE   0170000
#define MODE_SOCKET 0140000
#define MODE_FIFO   0010000
#define AF_UNIX	    1

static __always_inline bool wakes_a_loop(__s32 fd)
{
	struct file *file = file_of(fd);
	struct socket *socket;
	__u16 type;

	if (!file)
		return false;
	type = BPF_CORE_READ(file, f_inode, i_mode) & MODE_TYPE;
	if (type == MODE_SOCKET) {
		socket = BPF_CORE_READ(file, private_data);
		return BPF_CORE_READ(socket, sk, __sk_common.skc_family) == AF_UNIX;
	}
	return type == MODE_FIFO || !type; /* an eventfd's inode has no type */
}

SEC("tracepoint/syscalls/sys_enter_write,sendto")
int enter_write(struct syscall_enter *call)
{
	struct handoff_state *state = state_of(bpf_get_current_task_btf(), 0);
	struct identity who;

	if (!state || !state->engaged || !wakes_a_loop((__s32)call->args[0]) || !in_scope(&who))
		return 0;
	state->engaged = 0;
	emit_handoff(who, state, SCHED_SIGNALLED, bpf_ktime_get_ns());
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
