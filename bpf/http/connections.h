/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The connections that are followed, and what is recorded of their beginning and end.
 *
 * A connection is reported from its first bytes on, once they may be of a protocol that user space knows: one that
 * never sends, is refused, or has another protocol costs no record.
 */
#ifndef OTELGPU_CONNECTIONS_H
#define OTELGPU_CONNECTIONS_H

#include "arrival.h"
#include "holders.h"
#include "protocol_detection.h"
#include "../lib/emit.h"
#include "../lib/quiet.h"

/* The last number emitted: enum connection_number. */
__u64 http_connections = 0;

enum connection_state {
	CONNECTION_NEW = 0,	 /* its protocol is not detected yet */
	CONNECTION_FOLLOWED = 1, /* http_open was emitted */
	CONNECTION_BOUNDED = 2,	 /* the same, of an unknown protocol: until http_unknown_bytes */
	CONNECTION_LET_GO =
		3, /* a TLS session that is ignored, kept so that it is not taken for new */
	CONNECTION_CIPHERTEXT = 4, /* a TLS socket: ciphertext.h */
};

/* Where TLS records begin in what a socket received. */
struct tls_records {
	__u64 first_ns; /* arrival of the first that began since clear text was taken from them; 0: none did */
	__u64 last_ns; /* of the last */
	__u32 left;    /* bytes that the record under way still has */
	__u8 known;    /* whether that is known */
	__u8 taken;    /* clear text was taken from them */
	__u8 reserved[2];
};

/* Where a frame of HTTP/2 begins in what a direction moves: frames.h. */
struct frame_walk {
	struct prefix head; /* what was read of a head that a call ended in */
	__u32 left;	    /* bytes until the next head */
	__u8 known;	    /* whether that is known */
	__u8 reserved[3];
};

/* User space adds those that it finds open, with id, role and late. */
struct connection {
	__u64 id;
	__u64 sock;	     /* struct sock, compared only; 0: not known yet, or no socket */
	__u64 began_ns;	     /* 0: before observation began */
	__u64 offset[2];     /* bytes moved, by enum http_direction */
	__u64 captured[2];   /* bytes captured that still count: allow_more() */
	__u64 counted_ns[2]; /* framed protocols: until when they are counted */
	__u32 sequence;
	__s32 fd;
	__u8 state;
	__u8 direction; /* of the last chunk */
	__u8 late;	/* found open: the first bytes may be the middle of a message */
	__u8 role;
	__u8 layer;
	__u8 protocol;
	__u8 is_tcp;
	__u8 charged;	     /* to its holder */
	__u8 carries_events; /* a stream of events, since the direction turned: carries_events() */
	__u8 event_tries;    /* calls that were looked at for that */
	__u8 closing; /* Go's TLS: closed while a Write was under way, at whose return it is over */
	__u8 reserved;
	__u32 writes; /* Go's TLS: Writes under way */
	struct tls_records records;
	struct frame_walk frames[2]; /* by enum http_direction */
};

struct connection_key {
	__u64 holder;
	__s32 fd;
	__u32 reserved;
};

/*
 * Sockets in scope, by holder and descriptor. Entries are deleted at close, when the protocol is none that is
 * followed, when the descriptor has become another socket's, and, for processes that ended, by user space.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, CONNECTIONS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct connection_key);
	__type(value, struct connection);
} connections SEC(".maps");

static __always_inline __u64 next_connection(void)
{
	return __sync_fetch_and_add(&http_connections, 1) + 1;
}

/*
 * Report that a connection began, before its first chunk. `moved` bytes of `direction` were moved since: the TCP
 * sequence numbers are those of the first byte that is reported. -1: their count is unknown.
 */
#define O_NONBLOCK 04000 /* include/uapi/asm-generic/fcntl.h */

static __always_inline bool is_nonblocking(__s32 fd)
{
	struct file *file = file_of(fd);

	return !file || BPF_CORE_READ(file, f_flags) & O_NONBLOCK;
}

static __noinline void emit_open(const struct identity *who, const struct connection *connection,
				 __u64 now, __u8 direction, __s64 moved)
{
	__u64 began = connection->began_ns ? connection->began_ns : now;
	struct http_open *record = EMIT_BEGIN(http_open, HTTP_OPEN, *who, began, began);
	struct sock *sock = (struct sock *)connection->sock;

	if (!record)
		return;
	record->connection = connection->id;
	record->fd = connection->fd;
	record->late = connection->late;
	record->role = connection->role;
	record->layer = connection->layer;
	record->nonblocking = is_nonblocking(connection->fd);
	if (sock) {
		read_endpoints(record, sock);
		if (connection->layer == HTTP_LAYER_SOCKET && connection->is_tcp && moved >= 0 &&
		    tcp_position(sock, record->sequence)) {
			record->sequence[direction & 1] -= (__u32)moved;
			record->sequences_known =
				1 << HTTP_DIRECTION_READ | 1 << HTTP_DIRECTION_WRITE;
		}
	} else if (connection->fd >= 0) {
		count(COUNTER_SOCKET_UNREADABLE);
	}
	submit_of(who->tgid, record);
}

static __always_inline void emit_close(struct identity who, const struct connection *connection)
{
	__u64 now = bpf_ktime_get_ns();
	struct http_close *record = EMIT_BEGIN(http_close, HTTP_CLOSE, who, now, now);

	if (!record)
		return;
	record->connection = connection->id;
	record->fd = connection->fd;
	record->sequence = connection->sequence;
	submit(record);
}

/* Whether it was reported to user space. */
static __always_inline bool is_reported(const struct connection *connection)
{
	return connection->state == CONNECTION_FOLLOWED || connection->state == CONNECTION_BOUNDED;
}

/* Stop following it. Global, so that the verifier proves it once. */
__noinline int let_go(__u64 holder, __s32 fd, __u32 tgid, __u32 tid)
{
	struct connection_key key = { .holder = holder, .fd = fd };
	struct connection *connection = bpf_map_lookup_elem(&connections, &key);
	bool charged;

	if (!connection)
		return 0;
	charged = connection->charged;
	if (connection->is_tcp)
		forget_arrivals(connection->sock);
	if (is_reported(connection)) {
		struct identity who = { .tgid = tgid, .tid = tid };

		emit_close(who, connection);
	}
	if (!bpf_map_delete_elem(&connections, &key))
		give_place_back(tgid, HTTP_TABLE_CONNECTIONS, charged);
	return 0;
}

/* A descriptor is a connection's from now on: it was accepted, or is being made. It is put together in `connection`. */
static __noinline void begin_connection(const struct identity *who, __s32 fd, __u8 role, __u64 now,
					struct connection *connection)
{
	struct connection_key key = { .fd = fd };
	struct sock *sock = socket_of(fd);
	struct connection *before;
	struct holder *holder;

	if (!sock || !is_stream(sock))
		return;
	holder = begin_holding(who->tgid);
	if (!holder)
		return;
	key.holder = holder->number;
	__builtin_memset(connection, 0, sizeof(*connection));
	connection->began_ns = now;
	connection->fd = fd;
	connection->role = role;
	connection->charged = 1;
	connection->sock = (__u64)sock;
	before = bpf_map_lookup_elem(&connections, &key);
	if (before) {
		if (role == HTTP_ROLE_CLIENT && before->sock == connection->sock)
			return; /* connect() again: to get its result */
		count(COUNTER_CLOSE_UNSEEN);
		let_go(key.holder, fd, who->tgid, who->tid);
	}
	if (!take_place(holder, HTTP_TABLE_CONNECTIONS))
		return;
	connection->id = next_connection();
	connection->is_tcp = is_inet(sock);
	if (bpf_map_update_elem(&connections, &key, connection, BPF_NOEXIST)) {
		give_place_back(who->tgid, HTTP_TABLE_CONNECTIONS, true);
		count(COUNTER_CONNECTION_TABLE_FULL);
		return;
	}
	if (connection->is_tcp)
		watch_arrivals(connection->sock);
}

/* The entry for a descriptor of the current process, or NULL; fills in the key's holder. */
static __always_inline struct connection *connection_at(struct identity who,
							struct connection_key *key)
{
	struct holder *holder = holder_of(who.tgid);

	if (!holder)
		return NULL;
	key->holder = holder->number;
	return bpf_map_lookup_elem(&connections, key);
}

/*
 * The connection of a descriptor of the current process, or NULL: most calls are on none, so that is found out first.
 * The descriptor may have become another file's unseen (dup2, exec, close_range, io_uring), so it is compared; what
 * user space found gets its socket here.
 */
static __always_inline struct connection *wanted_connection(struct identity who,
							    struct connection_key *key)
{
	struct connection *connection = connection_at(who, key);
	struct sock *sock;

	if (!connection || !is_wanted(who))
		return NULL;
	sock = socket_of(key->fd);
	if (connection->sock == (__u64)sock && sock)
		return connection;
	if (connection->sock || !sock) {
		count(COUNTER_CLOSE_UNSEEN);
		let_go(key->holder, key->fd, who.tgid, who.tid);
		return NULL;
	}
	connection->sock = (__u64)sock;
	connection->fd = key->fd;
	connection->is_tcp = is_inet(sock);
	if (connection->is_tcp)
		watch_arrivals(connection->sock);
	return connection;
}

#endif
