// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Family http: the bytes of connections that a process accepted or made, bounded: by syscall tracepoints here, of
 * TLS sessions in clear text by tls.h and go_tls.h. Connections of no known protocol are dropped: protocol_detection.h.
 */
#include "capture.h"
#include "go_tls.h"

RECORD(http_open);
RECORD(http_data_256);
RECORD(http_data_1k);
RECORD(http_data_4k);
RECORD(http_data_16k);
RECORD(http_close);
ENUM(http_kind);
ENUM(http_counter);
ENUM(http_direction);
ENUM(http_role);
ENUM(http_table);
ENUM(http_layer);
ENUM(http_api);
ENUM(connection_number);
ENUM(go_stream_task);

#define MSG_PEEK 2 /* leaves the bytes in the socket: the next call moves them */

/* uapi/asm-generic/errno-base.h and errno.h; include/linux/errno.h */
#define EINTR	    4
#define EAGAIN	    11
#define EINPROGRESS 115
#define ERESTARTSYS 512

/*
 * Threads may have been inside a call since before the programs were there: an
 * accept, or the read of a kept-alive connection. Then the call is known at its
 * return only. Off where every observed process starts under observation.
 */
const volatile bool calls_before = false;

/* Of struct pt_regs: from r10 to di. */
struct call_arguments {
	__u64 r10, r9, r8, ax, cx, dx, si, di;
};

struct socket_call {
	struct transfer transfer;
	union { /* at its return, where the stack is short: kernels before 6.13 have 512 bytes */
		struct data_chunk chunk;	 /* of one that moved bytes */
		struct connection made;		 /* by one that made a connection */
		struct call_arguments arguments; /* of one whose entry was not seen */
	};
};

/* A system call under way. The kernel frees it with the thread. */
struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct socket_call);
} socket_calls SEC(".maps");

static __always_inline struct socket_call *thread_call(__u64 flags)
{
	struct socket_call *call =
		bpf_task_storage_get(&socket_calls, bpf_get_current_task_btf(), NULL, flags);

	if (!call && flags)
		count(COUNTER_THREAD_STATE_FAILED);
	return call;
}

static __always_inline int start(struct identity who, __u64 holder, __s32 fd, __u16 kind,
				 __u8 direction, __u64 at, __u64 parts)
{
	struct socket_call *call = thread_call(BPF_LOCAL_STORAGE_GET_F_CREATE);

	if (!call)
		return 0;
	call->transfer.who = who;
	call->transfer.holder = holder;
	call->transfer.fd = fd;
	call->transfer.direction = direction;
	call->transfer.at = at;
	call->transfer.parts = parts;
	call->transfer.start_ns = bpf_ktime_get_ns();
	call->transfer.kind = kind;
	return 0;
}

/* Global, so that the verifier proves it once for all calls. */
__noinline int begin(__s32 fd, __u16 kind, __u8 direction, __u64 at, __u64 parts)
{
	struct identity who = current_identity();
	struct connection_key key = { .fd = fd };

	if (!wanted_connection(who, &key))
		return 0;
	return start(who, key.holder, fd, kind, direction, at, parts);
}

static __always_inline int begin_new(__s32 fd, __u16 kind)
{
	struct identity who;

	if (!in_scope(&who))
		return 0;
	return start(who, 0, fd, kind, HTTP_DIRECTION_READ, 0, 0);
}

static __always_inline int begin_message(__s32 fd, __u8 direction, __u64 at)
{
	struct message_vectors message = {};

	if (bpf_probe_read_user(&message, sizeof(message), (void *)(at + MESSAGE_VECTORS_AT)))
		return 0; /* the call itself will fail the same way */
	return begin(fd, TRANSFER_VECTOR, direction, message.vectors, message.vector_count);
}

/* arch/x86/entry/syscalls/syscall_64.tbl */
enum {
	NR_READ = 0,
	NR_WRITE = 1,
	NR_READV = 19,
	NR_WRITEV = 20,
	NR_SENDFILE = 40,
	NR_CONNECT = 42,
	NR_ACCEPT = 43,
	NR_SENDTO = 44,
	NR_RECVFROM = 45,
	NR_SENDMSG = 46,
	NR_RECVMSG = 47,
	NR_SPLICE = 275,
	NR_ACCEPT4 = 288,
	NR_RECVMMSG = 299,
	NR_SENDMMSG = 307,
};

/* A call by its number, with its first arguments. One that peeks is none; of those with a fourth the caller knows. */
static __always_inline int begin_call(__s64 number, __u64 first, __u64 second, __u64 third)
{
	__s32 fd = (__s32)first;

	switch (number) {
	case NR_READ:
	case NR_RECVFROM:
		return begin(fd, TRANSFER_BUFFER, HTTP_DIRECTION_READ, second, 0);
	case NR_WRITE:
	case NR_SENDTO:
		return begin(fd, TRANSFER_BUFFER, HTTP_DIRECTION_WRITE, second, 0);
	case NR_READV:
		return begin(fd, TRANSFER_VECTOR, HTTP_DIRECTION_READ, second, third);
	case NR_WRITEV:
		return begin(fd, TRANSFER_VECTOR, HTTP_DIRECTION_WRITE, second, third);
	case NR_RECVMSG:
		if (third & MSG_PEEK)
			return 0;
		return begin_message(fd, HTTP_DIRECTION_READ, second);
	case NR_SENDMSG:
		return begin_message(fd, HTTP_DIRECTION_WRITE, second);
	case NR_RECVMMSG:
		return begin(fd, TRANSFER_MESSAGES, HTTP_DIRECTION_READ, second, 0);
	case NR_SENDMMSG:
		return begin(fd, TRANSFER_MESSAGES, HTTP_DIRECTION_WRITE, second, 0);
	case NR_ACCEPT:
	case NR_ACCEPT4:
		return begin_new(fd, TRANSFER_ACCEPT);
	case NR_CONNECT:
		return begin_new(fd, TRANSFER_CONNECT);
	case NR_SENDFILE:
		return begin(fd, TRANSFER_FILE, HTTP_DIRECTION_WRITE, 0, 0);
	case NR_SPLICE: /* one of the two is a pipe */
		begin(fd, TRANSFER_FILE, HTTP_DIRECTION_READ, 0, 0);
		return begin((__s32)third, TRANSFER_FILE, HTTP_DIRECTION_WRITE, 0, 0);
	default:
		return 0;
	}
}

/*
 * The call that a thread is returning from, whose entry was not seen: from its
 * registers, which keep the arguments. It counts as begun now; what it waited
 * before is no part of a request. A thread comes here once, then it has a state.
 */
static __noinline int begun_before(struct syscall_exit *exit)
{
	struct call_arguments *arguments;
	struct socket_call *thread;
	struct pt_regs *regs;
	struct identity who;

	if (!in_scope(&who))
		return 0;
	thread = thread_call(BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!thread)
		return 0;
	arguments = &thread->arguments;
	regs = (struct pt_regs *)bpf_task_pt_regs(bpf_get_current_task_btf());
	if (bpf_probe_read_kernel(arguments, sizeof(*arguments), &regs->r10)) {
		count(COUNTER_ARGUMENT_UNREADABLE);
		return 0;
	}
	if ((exit->number == NR_RECVFROM || exit->number == NR_RECVMMSG) &&
	    arguments->r10 & MSG_PEEK)
		return 0;
	return begin_call(exit->number, arguments->di, arguments->si, arguments->dx);
}

/* The connection of a call that has moved bytes, or found its end; NULL: there is none, or nothing happened. */
static __noinline struct connection *moved(struct transfer *call)
{
	struct connection_key key = { .holder = call->holder, .fd = call->fd };
	struct connection *connection = bpf_map_lookup_elem(&connections, &key);
	__u32 position[2];

	if (!connection)
		return NULL;
	/* A non-blocking call that would block, or a signal. */
	if (call->result == -EAGAIN || call->result == -EINTR || call->result == -ERESTARTSYS)
		return NULL;
	call->arrival_ns = 0;
	if (connection->is_tcp && call->direction == HTTP_DIRECTION_READ && call->result > 0 &&
	    call->kind != TRANSFER_MESSAGES &&
	    tcp_position((struct sock *)connection->sock, position))
		call->arrival_ns = arrival_of(connection->sock,
					      position[HTTP_DIRECTION_READ] - (__u32)call->result);
	return connection;
}

/* One program for every exit: user space attaches it to each name in the list. */
SEC("tracepoint/syscalls/"
    "sys_exit_accept,accept4,connect,read,recvfrom,write,sendto,readv,writev,recvmsg,"
    "sendmsg,recvmmsg,sendmmsg,sendfile64,splice")
int exit_call(struct syscall_exit *exit)
{
	struct socket_call *thread = thread_call(0);
	struct connection *connection;
	struct transfer *call;
	__u16 kind;

	if (!thread && calls_before) {
		begun_before(exit);
		thread = thread_call(0);
	}
	if (!thread || thread->transfer.kind == TRANSFER_NONE)
		return 0;
	call = &thread->transfer;
	kind = call->kind;
	call->end_ns = bpf_ktime_get_ns();
	call->result = exit->ret;
	if (kind == TRANSFER_ACCEPT) {
		if (exit->ret >= 0)
			begin_connection(&call->who, (__s32)exit->ret, HTTP_ROLE_SERVER,
					 call->end_ns, &thread->made);
	} else if (kind == TRANSFER_CONNECT) {
		if (!exit->ret || exit->ret == -EINPROGRESS)
			begin_connection(&call->who, call->fd, HTTP_ROLE_CLIENT, call->end_ns,
					 &thread->made);
	} else {
		connection = moved(call);
		if (connection && follow(connection, call, &thread->chunk) == FOLLOW_DROP)
			let_go(call->holder, call->fd, call->who.tgid, call->who.tid);
	}
	call->kind = TRANSFER_NONE;
	return 0;
}

#define ARGUMENT(n)   (call->args[n])
#define DESCRIPTOR(n) ((__s32)call->args[n])

/* As with the exits. A program may read as many arguments as each of its calls has: all have three. */
SEC("tracepoint/syscalls/"
    "sys_enter_accept,accept4,connect,read,write,sendto,readv,writev,recvmsg,sendmsg,"
    "sendmmsg,sendfile64,splice")
int enter_call(struct syscall_enter *call)
{
	return begin_call(call->number, ARGUMENT(0), ARGUMENT(1), ARGUMENT(2));
}

/* Whose flags are the fourth. */
SEC("tracepoint/syscalls/sys_enter_recvfrom,recvmmsg")
int enter_receive(struct syscall_enter *call)
{
	if (ARGUMENT(3) & MSG_PEEK)
		return 0;
	return begin_call(call->number, ARGUMENT(0), ARGUMENT(1), ARGUMENT(2));
}

SEC("tracepoint/syscalls/sys_enter_close")
int enter_close(struct syscall_enter *call)
{
	struct connection_key key = { .fd = DESCRIPTOR(0) };
	struct identity who = current_identity();

	if (connection_at(who, &key) && is_wanted(who))
		let_go(key.holder, key.fd, who.tgid, who.tid);
	return 0;
}

/* include/linux/net.h: SHUT_RD is 0 */
SEC("tracepoint/syscalls/sys_enter_shutdown")
int enter_shutdown(struct syscall_enter *call)
{
	struct connection_key key = { .fd = DESCRIPTOR(0) };
	struct identity who = current_identity();
	struct connection *connection = ARGUMENT(1) ? wanted_connection(who, &key) : NULL;
	struct socket_call *thread;

	if (!connection || !is_reported(connection))
		return 0;
	thread = thread_call(BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (thread)
		end_writes(connection, &thread->chunk, who);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
