/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Sockets that carry TLS: which session their bytes are for, and when those arrived.
 *
 * A session's clear text arrived with the records that it was in. Records are found by their headers, which are not
 * encrypted. The first clear text of a session may have come in one read with the end of the handshake, and which
 * records are which is encrypted: it is taken to have arrived with the last of them, so that no request begins too
 * early. Where headers are lost (split between reads, or too many), arrivals are unknown until a read begins with one.
 *
 *     read()       [rest of a record][header][record]     first_ns, last_ns: when the header came; left: 0
 *     SSL_read()   1000 bytes                             arrived at first_ns; none from now on
 *     read()       [header][half a record]                first_ns; left: the other half
 *     SSL_read()   wants more                             stays: left is not 0
 */
#ifndef OTELGPU_CIPHERTEXT_H
#define OTELGPU_CIPHERTEXT_H

#include "connections.h"
#include "../lib/arguments.h"

#define RECORDS_WALKED	16 /* headers looked at in one read */
#define HEADER_BYTES	5
#define RECORD_BYTES	(16384 + 2048) /* RFC 5246, 6.2.3; less in RFC 8446, 5.2 */
#define ARRIVAL_UNKNOWN (~0ULL)

/*
 * The TLS socket that a thread read last, until it passes the bytes to the TLS session: programs that keep TLS apart
 * from sockets (asyncio, uvloop, Node) do the one right after the other.
 */
struct ciphertext {
	__u64 sock; /* 0: none, or the session has it */
	__s32 fd;
	__u32 ambiguous; /* another was read before the bytes went to a session */
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct ciphertext);
} ciphertext_read SEC(".maps");

#define CIPHERTEXT_CALLS \
	16 /* a handshake and the first records after it: then it has no session that is seen */

static __always_inline void note_ciphertext(const struct connection *connection)
{
	struct ciphertext *read = bpf_task_storage_get(&ciphertext_read, bpf_get_current_task_btf(),
						       NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);

	if (!read) {
		count(COUNTER_THREAD_STATE_FAILED);
		return;
	}
	if (read->sock && read->sock != connection->sock)
		read->ambiguous = 1;
	read->sock = connection->sock;
	read->fd = connection->fd;
}

/* The TLS session that the bytes go to has this socket, unless SSL_set_fd gave it one. */
static __always_inline void bind_session(struct connection *session)
{
	struct ciphertext *read =
		bpf_task_storage_get(&ciphertext_read, bpf_get_current_task_btf(), NULL, 0);

	if (!read || !read->sock)
		return;
	if (session->fd < 0 && session->state == CONNECTION_NEW && !read->ambiguous) {
		session->fd = read->fd;
		session->sock = read->sock;
	}
	read->sock = 0;
	read->ambiguous = 0;
}

/* What a process has of TLS: sockets that carry it, and sessions whose clear text is seen. */
struct tls_seen {
	__u64 sockets;
	__u64 sessions;
};

/* By tgid. User space takes out those that ended; of the least busy it is forgotten. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, __u32);
	__type(value, struct tls_seen);
} tls_seen SEC(".maps");

static __always_inline void see_tls(__u32 tgid, __u64 sockets, __u64 sessions)
{
	struct tls_seen *seen = bpf_map_lookup_elem(&tls_seen, &tgid), none = {};

	if (!seen) {
		bpf_map_update_elem(&tls_seen, &tgid, &none, BPF_NOEXIST);
		seen = bpf_map_lookup_elem(&tls_seen, &tgid);
	}
	if (!seen)
		return;
	__sync_fetch_and_add(&seen->sockets, sockets);
	__sync_fetch_and_add(&seen->sessions, sessions);
}

/* Bytes of a record with this header; 0: it is none. RFC 8446, 5.1. */
static __always_inline __u32 record_bytes(const __u8 header[HEADER_BYTES])
{
	__u32 bytes = header[3] << 8 | header[4];
	bool is_header = header[0] >= 20 && header[0] <= 23 && header[1] == 3 && header[2] <= 4;

	return is_header && bytes <= RECORD_BYTES ? HEADER_BYTES + bytes : 0;
}

/* Global, so that the verifier proves it once and not for each record. */
__noinline int record_begins(struct connection *connection, __u32 number)
{
	__u64 arrival;

	if (!connection)
		return 0;
	arrival = arrival_of(connection->sock, number);
	connection->records.last_ns = arrival ? arrival : ARRIVAL_UNKNOWN;
	if (!connection->records.first_ns)
		connection->records.first_ns = connection->records.last_ns;
	return 0;
}

/* Find the records in `bytes` that a read left at `from`; 0: in several places, which are not looked at. */
__noinline int walk_records(struct connection *connection, __u64 from, __u64 bytes)
{
	__u64 at, last = ~0ULL;
	__u32 position[2];

	if (!connection || !connection->is_tcp ||
	    !tcp_position((struct sock *)connection->sock, position))
		return 0;
	position[HTTP_DIRECTION_READ] -= (__u32)bytes;
	at = connection->records.known ? connection->records.left : 0;
	connection->records.known = 0;
	if (!from)
		return 0;
	for (__u32 i = 0; i < RECORDS_WALKED; i++) {
		__u8 header[HEADER_BYTES] = {};
		__u32 record;

		if (at >= bytes) {
			connection->records.left = (__u32)(at - bytes);
			connection->records.known = 1;
			break;
		}
		if (bytes - at < HEADER_BYTES ||
		    !read_user(header, sizeof(header), (void *)(from + at)))
			break;
		record = record_bytes(header);
		if (!record)
			break;
		if (!connection->records.first_ns)
			record_begins(connection, position[HTTP_DIRECTION_READ] + (__u32)at);
		last = at;
		at += record;
	}
	if (last != ~0ULL)
		record_begins(connection, position[HTTP_DIRECTION_READ] + (__u32)last);
	return 0;
}

/* When the clear text arrived that a session has just given; 0: not known. */
static __always_inline __u64 take_arrival(struct connection *connection)
{
	struct tls_records *records = &connection->records;
	__u64 arrival = records->taken ? records->first_ns : records->last_ns;

	records->taken = 1;
	records->first_ns = records->known && records->left ? records->last_ns : 0;
	return arrival == ARRIVAL_UNKNOWN ? 0 : arrival;
}

/* A session has nothing to give: records that are whole were none of clear text. */
static __always_inline void take_nothing(struct connection *connection)
{
	if (connection->records.known && !connection->records.left)
		connection->records.first_ns = 0;
}

#endif
