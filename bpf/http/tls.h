/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * TLS sessions in clear text: what OpenSSL's SSL_read returned and SSL_write took, versions 1.1.1 and 3, wherever
 * a file exports them (libssl, copies in Python wheels, Node's program). A session is a connection of its own.
 *
 * The object SSL is opaque: only its address is used. When a session begins, and in which role, is known by its
 * setters; of one that began before observation, neither is known. Signatures: include/openssl/ssl.h.
 *
 * Calls need return probes; where those are off, TLS is not seen.
 */
#ifndef OTELGPU_TLS_H
#define OTELGPU_TLS_H

#include "capture.h"
#include "../lib/calls.h"

/* Attach cookies: see lib/calls.h. */
enum http_api {
	API_SSL_read = 1,		/* int (SSL *, void *, int) */
	API_SSL_read_ex = 2,		/* int (SSL *, void *, size_t, size_t *) */
	API_SSL_write = 3,		/* int (SSL *, const void *, int) */
	API_SSL_write_ex = 4,		/* int (SSL *, const void *, size_t, size_t *) */
	API_SSL_sendfile = 5,		/* ssize_t (SSL *, int, off_t, size_t, int); 3.0 */
	API_SSL_set_fd = 6,		/* int (SSL *, int) */
	API_SSL_set_rfd = 7,		/* int (SSL *, int) */
	API_SSL_accept = 8,		/* int (SSL *) */
	API_SSL_connect = 9,		/* int (SSL *) */
	API_SSL_set_accept_state = 10,	/* void (SSL *) */
	API_SSL_set_connect_state = 11, /* void (SSL *) */
	API_SSL_free = 12,		/* void (SSL *) */
	API_SSL_do_handshake = 13,	/* int (SSL *) */
};

#define TLS_CALLS "libssl:SSL_read,SSL_read_ex,SSL_write,SSL_write_ex,SSL_sendfile"
#define TLS_BEGINNINGS                                                               \
	"libssl:SSL_set_fd,SSL_set_rfd,SSL_accept,SSL_connect,SSL_set_accept_state," \
	"SSL_set_connect_state"

struct session_key {
	__u64 holder;
	__u64 ssl; /* SSL * */
};

/* TLS sessions in scope. Entries go at SSL_free and, for processes that ended, by user space. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, TLS_SESSIONS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct session_key);
	__type(value, struct connection);
} tls_sessions SEC(".maps");

#define TLS_NESTED 2 /* TLS within TLS, as through a proxy */

struct tls_call {
	struct open_call open;
	struct transfer transfer;
	__u64 ssl;
	__u64 moved_at; /* SSL_read_ex, SSL_write_ex: where the count will be */
};

struct tls_thread {
	struct tls_call calls[TLS_NESTED];
	struct data_chunk chunk;
	__u32 depth;
	__u32 reserved;
};

/* The calls that a thread is inside of. The kernel frees them with the thread. */
struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct tls_thread);
} tls_threads SEC(".maps");

/* That of a process; NULL: it has none, or not this one. */
static __always_inline struct connection *session_of(struct identity who, __u64 ssl)
{
	struct session_key key = { .ssl = ssl };
	struct holder *holder = holder_of(who.tgid);

	if (!holder)
		return NULL;
	key.holder = holder->number;
	return bpf_map_lookup_elem(&tls_sessions, &key);
}

/* One more. NULL, and counted, if there is no room. */
static __noinline struct connection *new_session(__u32 tgid, __u64 ssl, __u64 now)
{
	struct connection session = {
		.began_ns = now, .fd = -1, .layer = HTTP_LAYER_TLS, .late = !now, .charged = 1
	};
	struct holder *holder = begin_holding(tgid);
	struct session_key key = { .ssl = ssl };
	struct connection *found;

	if (!holder || !take_place(holder, HTTP_TABLE_SESSIONS))
		return NULL;
	key.holder = holder->number;
	session.id = next_connection();
	see_tls(tgid, 0, 1);
	if (bpf_map_update_elem(&tls_sessions, &key, &session, BPF_NOEXIST)) {
		give_place_back(tgid, HTTP_TABLE_SESSIONS, true);
		found = bpf_map_lookup_elem(&tls_sessions, &key); /* another thread's, perhaps */
		if (!found)
			count(COUNTER_CONNECTION_TABLE_FULL);
		return found;
	}
	return bpf_map_lookup_elem(&tls_sessions, &key);
}

/* It is over. */
static __always_inline void end_session(struct identity who, __u64 ssl)
{
	struct session_key key = { .ssl = ssl };
	struct holder *holder = holder_of(who.tgid);
	struct connection *session;

	if (!holder)
		return;
	key.holder = holder->number;
	session = bpf_map_lookup_elem(&tls_sessions, &key);
	if (!session)
		return;
	if (is_reported(session))
		emit_close(who, session);
	if (!bpf_map_delete_elem(&tls_sessions, &key))
		give_place_back(who.tgid, HTTP_TABLE_SESSIONS, true);
}

/* SSL_accept and the like: a session that has moved no bytes yet gets its role or socket. */
static __always_inline int begin_session(struct pt_regs *regs)
{
	__u64 ssl = ARGUMENT_1(regs);
	struct connection *session;
	struct identity who;

	if (entry_only || !in_scope(&who))
		return 0;
	session = session_of(who, ssl);
	if (session && session->state != CONNECTION_NEW) {
		end_session(who, ssl); /* the object is used again */
		session = NULL;
	}
	if (!session)
		session = new_session(who.tgid, ssl, bpf_ktime_get_ns());
	if (!session)
		return 0;
	switch ((__u32)bpf_get_attach_cookie(regs)) {
	case API_SSL_accept:
	case API_SSL_set_accept_state:
		session->role = HTTP_ROLE_SERVER;
		break;
	case API_SSL_connect:
	case API_SSL_set_connect_state:
		session->role = HTTP_ROLE_CLIENT;
		break;
	default:
		session->fd = (__s32)ARGUMENT_2(regs);
	}
	return 0;
}

static __always_inline int enter_tls(struct pt_regs *regs, bool in_session)
{
	__u64 cookie = bpf_get_attach_cookie(regs), ssl = ARGUMENT_1(regs);
	struct connection *session;
	struct tls_thread *thread;
	struct tls_call *call;
	struct open_calls calls;
	struct identity who;

	(void)in_session;
	if (!returns_of(cookie) || !in_scope(&who))
		return RETURN_IGNORED;
	thread = bpf_task_storage_get(&tls_threads, bpf_get_current_task_btf(), NULL,
				      BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!thread) {
		count(COUNTER_THREAD_STATE_FAILED);
		return RETURN_IGNORED;
	}
	calls = OPEN_CALLS(thread->calls, TLS_NESTED, thread->depth);
	call = innermost_call(calls, regs->sp, (__u32)cookie, NULL);
	if (call && call->ssl == ssl)
		return RETURN_IGNORED; /* the same bytes: LibreSSL's SSL_read_ex calls SSL_read */
	call = open_call(calls, regs, (__u32)cookie, true);
	if (!call)
		return RETURN_IGNORED;
	session = session_of(who, ssl);
	if (session)
		bind_session(session);
	call->ssl = ssl;
	call->moved_at = ARGUMENT_4(regs);
	call->transfer.who = who;
	call->transfer.at = ARGUMENT_2(regs);
	call->transfer.kind = (__u32)cookie == API_SSL_sendfile ? TRANSFER_FILE : TRANSFER_BUFFER;
	call->transfer.direction =
		(__u32)cookie <= API_SSL_read_ex ? HTTP_DIRECTION_READ : HTTP_DIRECTION_WRITE;
	call->transfer.start_ns = bpf_ktime_get_ns();
	return RETURN_WANTED;
}

/* How many bytes a call moved: -1 if none, as when it must be called again. */
static __always_inline __s64 tls_result(struct pt_regs *regs, const struct tls_call *call)
{
	__u32 api = (__u32)bpf_get_attach_cookie(regs);
	__u64 moved = 0;

	if (api == API_SSL_sendfile)
		return (__s64)RESULT(regs);
	if (api == API_SSL_read || api == API_SSL_write)
		return (__s32)RESULT(regs);
	if ((__s32)RESULT(regs) != 1 || !read_user(&moved, sizeof(moved), (void *)call->moved_at))
		return -1;
	return (__s64)moved;
}

/* The socket of a session; NULL: it is not known, or not followed. */
static __always_inline struct connection *ciphertext_of(struct identity who,
							const struct connection *session)
{
	struct connection_key key = { .fd = session->fd };
	struct holder *holder = session->sock ? holder_of(who.tgid) : NULL;
	struct connection *found;

	if (!holder)
		return NULL;
	key.holder = holder->number;
	found = bpf_map_lookup_elem(&connections, &key);
	return found && found->sock == session->sock && found->state == CONNECTION_CIPHERTEXT
		       ? found
		       : NULL;
}

/* A read has found that there is no clear text yet. */
static __always_inline void nothing_read(const struct transfer *call, __u64 ssl)
{
	struct connection *session = session_of(call->who, ssl), *socket;

	socket = session ? ciphertext_of(call->who, session) : NULL;
	if (socket)
		take_nothing(socket);
}

/* A call has moved clear text of a session that there is, or none: reported by chunks, which are made in `chunk`. */
static __always_inline int clear_text(struct transfer *call, __u64 ssl, struct data_chunk *chunk)
{
	struct connection *session, *socket;

	if (call->result <= 0) {
		if (call->direction == HTTP_DIRECTION_READ)
			nothing_read(call, ssl);
		return 0;
	}
	session = session_of(call->who, ssl);
	if (!session)
		return 0;
	if (!session->sock && session->fd >= 0)
		session->sock = (__u64)socket_of(session->fd);
	call->fd = session->fd;
	call->arrival_ns = 0;
	if (call->direction == HTTP_DIRECTION_READ) {
		socket = ciphertext_of(call->who, session);
		if (socket && socket->role != HTTP_ROLE_CLIENT)
			call->arrival_ns = take_arrival(socket);
	}
	call->end_ns = bpf_ktime_get_ns();
	if (follow_plaintext(session, call, chunk) == FOLLOW_DROP) {
		if (is_reported(session))
			emit_close(call->who, session);
		session->state = CONNECTION_LET_GO;
	}
	return 0;
}

static __always_inline int leave_tls(struct pt_regs *regs)
{
	struct tls_thread *thread =
		bpf_task_storage_get(&tls_threads, bpf_get_current_task_btf(), NULL, 0);
	__u32 api = (__u32)bpf_get_attach_cookie(regs);
	struct connection *session;
	struct tls_call *call;

	if (!thread)
		return 0;
	call = close_call(OPEN_CALLS(thread->calls, TLS_NESTED, thread->depth), regs, api, true);
	if (!call)
		return 0;
	call->transfer.result = tls_result(regs, call);
	if (call->transfer.result > 0) {
		session = session_of(call->transfer.who, call->ssl);
		if (!session)
			session = new_session(call->transfer.who.tgid, call->ssl, 0);
		if (session && call->transfer.direction == HTTP_DIRECTION_READ)
			bind_session(session);
	}
	return clear_text(&call->transfer, call->ssl, &thread->chunk);
}

CALL_PROGRAMS(tls, TLS_CALLS, enter_tls, leave_tls)

SEC("uprobe/" TLS_BEGINNINGS)
int tls_begins(struct pt_regs *regs)
{
	ON_OWN_STACK(regs);
	return begin_session(regs);
}

/* Called after each part of the handshake that was read. */
SEC("uprobe/libssl:SSL_do_handshake")
int tls_handshakes(struct pt_regs *regs)
{
	struct connection *session;
	struct identity who;

	ON_OWN_STACK(regs);
	if (entry_only || !in_scope(&who))
		return 0;
	session = session_of(who, ARGUMENT_1(regs));
	if (session)
		bind_session(session);
	return 0;
}

SEC("uprobe/libssl:SSL_free")
int tls_ends(struct pt_regs *regs)
{
	struct identity who;

	ON_OWN_STACK(regs);
	if (entry_only || !in_scope(&who))
		return 0;
	end_session(who, ARGUMENT_1(regs));
	return 0;
}

#endif
