/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * TLS sessions of Go programs in clear text: what (*tls.Conn).Read returned and Write took. Probes are at the functions'
 * entries and at each of their returns (otelgpu/processes/go_functions.py), as Go moves its stacks, return addresses
 * included.
 *
 * A call belongs to a goroutine, which may go on on another thread; which of its calls a return ends is known by how deep
 * in the goroutine's stack it is, for that stays when the stack is moved. A function that finds its stack too small has it
 * moved and begins again: its entry is then seen twice, at one depth.
 *
 *     Read            goroutine g, depth 800     goes on in Read of the connection that it is tunnelled through
 *       Read          goroutine g, depth 2000    stack too small: moved
 *       Read          goroutine g, depth 2000    the same call
 *       returns       goroutine g, depth 2000    ends the inner one
 *     returns         goroutine g, depth 800     ends the outer one
 *
 * Registers: src/cmd/compile/abi-internal.md. Layouts, of Go 1.20 to 1.26, are checked where they are read:
 * src/crypto/tls/conn.go, src/net/fd_posix.go, src/internal/poll/fd_unix.go, src/runtime/runtime2.go.
 */
#ifndef OTELGPU_GO_TLS_H
#define OTELGPU_GO_TLS_H

#include "tls.h"

#define GO_TLS "crypto/tls.(*Conn)"

#define GOROUTINE(regs)	    ((regs)->r14) /* struct g *, at a function's entry and at its return */
#define GO_ARGUMENT_1(regs) ((regs)->ax)
#define GO_ARGUMENT_2(regs) ((regs)->bx)
#define GO_ARGUMENT_3(regs) ((regs)->cx)
#define GO_RESULT_1(regs)   ((regs)->ax)

/* What struct g begins with. */
struct go_stack {
	__u64 low;
	__u64 high;
};

/* The beginning of struct tls.Conn: an interface, and the role. */
struct go_tls_conn {
	__u64 type;
	__u64 conn; /* *net.TCPConn, if the connection is no other */
	__u8 is_client;
	__u8 padding[7];
};

/* The beginning of struct net.netFD, which is struct poll.FD. */
struct go_net_fd {
	__u64 lock;
	__u32 semaphores[2];
	__s64 descriptor;
	__u64 vectors;
	__u64 poll;
	__u32 close_semaphore;
	__u32 is_blocking;
	__u8 flags[8]; /* IsStream, ZeroReadIsEOF, isFile */
	__s64 family;
	__s64 type;
};
_Static_assert(__builtin_offsetof(struct go_net_fd, descriptor) == 16, "poll.FD.Sysfd");
_Static_assert(__builtin_offsetof(struct go_net_fd, family) == 56, "netFD.family");

struct go_call_key {
	__u64 holder;
	__u64 goroutine;
	__u64 depth; /* bytes of its stack, the return address among them */
};

struct go_call {
	struct transfer transfer;
	__u64 conn;    /* struct tls.Conn * */
	__u64 length;  /* of the buffer */
	__u8 in_stack; /* the buffer: it may have moved when the call returns */
	__u8 reported; /* at its entry */
	__u8 reserved[6];
};

/* Calls under way: one that waits of each session that is idle. Those of processes that ended go by user space. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, GO_CALLS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct go_call_key);
	__type(value, struct go_call);
} go_calls SEC(".maps");

static __noinline bool go_call_of(struct pt_regs *regs, __u64 holder, struct go_call_key *key,
				  struct go_stack *stack)
{
	key->holder = holder;
	key->goroutine = GOROUTINE(regs);
	if (!read_user(stack, sizeof(*stack), (void *)key->goroutine))
		return false;
	key->depth = stack->high - regs->sp;
	return true;
}

#define GO_CLOSED    (-1)
#define GO_NO_SOCKET (-2) /* it is in another connection, or of another layout */

static __always_inline struct tls_thread *go_thread(void)
{
	struct tls_thread *thread = bpf_task_storage_get(&tls_threads, bpf_get_current_task_btf(),
							 NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);

	if (!thread)
		count(COUNTER_THREAD_STATE_FAILED);
	return thread;
}

/* The socket of a connection, or why there is none. */
static __noinline __s32 go_descriptor(__u64 at, __u8 *role)
{
	struct go_tls_conn conn = {};
	struct go_net_fd fd = {};
	struct sock *sock;
	__u64 tcp = 0;

	if (!read_user(&conn, sizeof(conn), (void *)at))
		return GO_NO_SOCKET;
	*role = conn.is_client ? HTTP_ROLE_CLIENT : HTTP_ROLE_SERVER;
	if (bpf_probe_read_user(&tcp, sizeof(tcp), (void *)conn.conn) ||
	    bpf_probe_read_user(&fd, sizeof(fd), (void *)tcp))
		return GO_NO_SOCKET;
	if (fd.type != SOCK_STREAM || fd.descriptor < -1 || fd.descriptor > 1 << 20)
		return GO_NO_SOCKET;
	if (fd.descriptor == -1)
		return GO_CLOSED;
	sock = socket_of((__s32)fd.descriptor);
	if (!sock || !is_stream(sock) ||
	    BPF_CORE_READ(sock, __sk_common.skc_family) != (__u64)fd.family)
		return GO_NO_SOCKET;
	return (__s32)fd.descriptor;
}

static __noinline void end_go_session(const struct identity *who, __u64 conn)
{
	end_session(*who, conn);
}

static __noinline void go_write_begins(const struct identity *who, __u64 conn)
{
	struct connection *session = session_of(*who, conn);

	if (session)
		__sync_fetch_and_add(&session->writes, 1);
}

/* Its bytes were reported: what was closed meanwhile is over. */
static __noinline void go_write_returned(const struct identity *who, __u64 conn)
{
	struct connection *session = session_of(*who, conn);

	if (!session || !session->writes)
		return;
	__sync_fetch_and_add(&session->writes, -1);
	if (session->closing && !session->writes)
		end_go_session(who, conn);
}

/* It returned, and its bytes were reported. */
static __noinline void forget_go_call(const struct identity *who, const struct go_call_key *key,
				      const struct go_call *call)
{
	if (call->transfer.direction == HTTP_DIRECTION_WRITE)
		go_write_returned(who, call->conn);
	if (!bpf_map_delete_elem(&go_calls, key))
		give_place_back(who->tgid, HTTP_TABLE_GO_CALLS, true);
}

/* One more session; `began_ns`: 0 where bytes of it may have been missed. */
static __noinline void begin_go_session(const struct identity *who, __u64 conn, __u64 began_ns)
{
	__u8 role = HTTP_ROLE_UNKNOWN;
	__s32 fd = go_descriptor(conn, &role);
	struct connection *session;

	if (fd < 0 && !began_ns) {
		if (fd == GO_NO_SOCKET)
			count(COUNTER_SOCKET_UNREADABLE);
		return;
	}
	session = new_session(who->tgid, conn, began_ns);
	if (!session)
		return;
	session->role = role;
	if (fd < 0)
		return;
	session->fd = fd;
	session->sock = (__u64)socket_of(fd);
}

/* The object at an address may be another than before, which nobody has closed: then its socket is another too. */
static __noinline void check_go_session(const struct identity *who, __u64 conn)
{
	struct connection *session = session_of(*who, conn);
	__u8 role;
	__s32 fd;

	if (!session || !session->sock)
		return;
	fd = go_descriptor(conn, &role);
	if (fd >= 0 && (__u64)socket_of(fd) != session->sock)
		end_go_session(who, conn);
}

/* serverHandshake, clientHandshake: before the first Read or Write of a connection. */
SEC("uprobe/go:" GO_TLS ".serverHandshake," GO_TLS ".clientHandshake")
int go_tls_begins(struct pt_regs *regs)
{
	struct identity who;

	ON_OWN_STACK(regs);
	if (!in_scope(&who))
		return 0;
	end_go_session(&who, GO_ARGUMENT_1(regs)); /* of what was at this address before */
	begin_go_session(&who, GO_ARGUMENT_1(regs), bpf_ktime_get_ns());
	return 0;
}

/* Bytes of a session will be missing. */
static __noinline void let_go_session(const struct identity *who, __u64 conn)
{
	struct connection *session = session_of(*who, conn);

	if (!session)
		return;
	if (is_reported(session))
		emit_close(*who, session);
	session->state = CONNECTION_LET_GO;
}

/* Whether the return will find the call, by `key`. */
static __noinline bool keep_go_call(const struct identity *who, struct pt_regs *regs,
				    __u8 direction, struct go_call_key *key)
{
	struct go_call call = { .conn = GO_ARGUMENT_1(regs), .length = GO_ARGUMENT_3(regs) };
	struct holder *holder = begin_holding(who->tgid);
	struct go_stack stack = {};
	struct go_call *before;

	if (!holder || !go_call_of(regs, holder->number, key, &stack))
		return false;
	call.transfer.at = GO_ARGUMENT_2(regs);
	call.in_stack = call.transfer.at >= stack.low && call.transfer.at < stack.high;
	call.transfer.who = *who;
	call.transfer.kind = TRANSFER_BUFFER;
	call.transfer.direction = direction;
	call.transfer.start_ns = bpf_ktime_get_ns();
	before = bpf_map_lookup_elem(&go_calls, key);
	if (before && before->reported && before->conn == call.conn &&
	    before->length == call.length &&
	    (before->in_stack || before->transfer.at == call.transfer.at))
		return true; /* the same call, which has begun again */
	if (!before && !take_place(holder, HTTP_TABLE_GO_CALLS))
		return false;
	if (!bpf_map_update_elem(&go_calls, key, &call, BPF_ANY)) {
		if (!before && direction == HTTP_DIRECTION_WRITE)
			go_write_begins(who, call.conn);
		return true;
	}
	if (!before)
		give_place_back(who->tgid, HTTP_TABLE_GO_CALLS, true);
	count(COUNTER_CONNECTION_TABLE_FULL);
	return false;
}

static __always_inline bool enter_go_tls(struct pt_regs *regs, __u8 direction, struct identity *who,
					 struct go_call_key *key)
{
	if (!in_scope(who))
		return false;
	check_go_session(who, GO_ARGUMENT_1(regs));
	if (keep_go_call(who, regs, direction, key))
		return true;
	let_go_session(who, GO_ARGUMENT_1(regs));
	return false;
}

SEC("uprobe/go:" GO_TLS ".Read")
int go_tls_reads(struct pt_regs *regs)
{
	struct go_call_key key = {};
	struct identity who;

	ON_OWN_STACK(regs);
	enter_go_tls(regs, HTTP_DIRECTION_READ, &who, &key);
	return 0;
}

/*
 * What a client writes is reported when it begins to: another goroutine may have read the response before the call
 * returns. It is written whole, or the connection is of no use any more.
 */
SEC("uprobe/go:" GO_TLS ".Write")
int go_tls_writes(struct pt_regs *regs)
{
	struct go_call_key key = {};
	struct connection *session;
	struct tls_thread *thread;
	struct identity who;
	struct go_call *call;

	ON_OWN_STACK(regs);
	if (!enter_go_tls(regs, HTTP_DIRECTION_WRITE, &who, &key))
		return 0;
	session = session_of(who, GO_ARGUMENT_1(regs));
	call = bpf_map_lookup_elem(&go_calls, &key);
	if (!session || session->role != HTTP_ROLE_CLIENT || !call || call->reported)
		return 0;
	thread = go_thread();
	if (!thread)
		return 0;
	call->reported = 1;
	call->transfer.result = (__s64)call->length;
	return clear_text(&call->transfer, call->conn, &thread->chunk);
}

SEC("uprobe/go_returns:" GO_TLS ".Read," GO_TLS ".Write")
int go_tls_returns(struct pt_regs *regs)
{
	struct go_call_key key = {};
	struct go_stack stack = {};
	struct tls_thread *thread;
	struct holder *holder;
	struct identity who;
	struct go_call *call;

	ON_OWN_STACK(regs);
	if (!in_scope(&who))
		return 0;
	holder = holder_of(who.tgid);
	if (!holder || !go_call_of(regs, holder->number, &key, &stack))
		return 0;
	call = bpf_map_lookup_elem(&go_calls, &key);
	if (!call) {
		count(COUNTER_RETURN_WITHOUT_ENTRY);
		return 0;
	}
	thread = call->reported ? NULL : go_thread();
	if (thread) {
		if (call->in_stack)
			call->transfer.at = 0;
		call->transfer.who = who;
		call->transfer.result = (__s64)GO_RESULT_1(regs);
		if (call->transfer.result > 0 && !session_of(who, call->conn))
			begin_go_session(&who, call->conn, 0);
		clear_text(&call->transfer, call->conn, &thread->chunk);
	}
	forget_go_call(&who, &key, call);
	return 0;
}

/*
 * Again and again, perhaps. The client may have the whole response, be gone and be noticed, all before the Write on
 * another goroutine returns, where its bytes are reported: the session is over then.
 */
SEC("uprobe/go:" GO_TLS ".Close")
int go_tls_closes(struct pt_regs *regs)
{
	struct connection *session;
	struct identity who;

	ON_OWN_STACK(regs);
	if (!in_scope(&who))
		return 0;
	session = session_of(who, GO_ARGUMENT_1(regs));
	if (session && session->writes)
		session->closing = 1;
	else
		end_go_session(&who, GO_ARGUMENT_1(regs));
	return 0;
}

#endif
