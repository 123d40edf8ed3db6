// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Family http: the bytes of accepted connections, bounded, by syscall
 * tracepoints. What is not HTTP/1 by its first byte is dropped here.
 */
#include "http.h"
#include "../lib/arguments.h"
#include "../lib/emit.h"
#include "../lib/files.h"

RECORD(http_open);
RECORD(http_data_256);
RECORD(http_data_4k);
RECORD(http_data_16k);
RECORD(http_close);
ENUM(http_kind);
ENUM(http_direction);
ENUM(connection_number);

#define AF_UNIX	 1
#define AF_INET	 2
#define AF_INET6 10

#define SMALL_BYTES  256
#define MEDIUM_BYTES 4096
#define LARGE_BYTES  16384
#define VECTORS	     16 /* iovecs followed in one call */

#define MSG_PEEK 2 /* leaves the bytes in the socket: the next call moves them */

/*
 * Bytes captured per direction until the direction turns: a request's body,
 * a response's. Calls of up to MEDIUM_BYTES (a streamed token) have a bound
 * of their own, so that a long stream stays whole.
 */
const volatile __u64 http_bulk_bytes = 1 << 20;
const volatile __u64 http_stream_bytes = 64 << 20;

/*
 * Threads may have been inside a call since before the programs were there: an
 * accept, or the read of a kept-alive connection. Then the call is known at its
 * return only. Off where every observed process starts under observation.
 */
const volatile bool calls_before = false;

/* The last number given out: enum connection_number. */
__u64 http_connections = 0;
#define FIRST_FOUND (1ULL << CONNECTION_FOUND_SHIFT)

struct connection_key {
	__u32 tgid;
	__s32 fd;
};

enum connection_state {
	CONNECTION_NEW = 0,	 /* nothing was read yet */
	CONNECTION_FOLLOWED = 1, /* its first byte may start a request */
};

struct connection {
	__u64 id;
	__u64 offset[2];   /* bytes moved, by enum http_direction */
	__u64 captured[2]; /* bytes captured since the direction turned */
	__u32 sequence;
	__u16 state;
	__u8 direction; /* of the last piece */
	__u8 late;	/* found open by user space: `open` is not yet told */
};

/*
 * Accepted sockets in scope. Entries go at close, when the peer turns out to
 * speak something else, and, for processes that ended, by user space.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct connection_key);
	__type(value, struct connection);
} connections SEC(".maps");

enum call_kind {
	CALL_NONE = 0,
	CALL_ACCEPT = 1,
	CALL_BUFFER = 2,  /* read, recvfrom, write, sendto */
	CALL_VECTOR = 3,  /* readv, writev */
	CALL_MESSAGE = 4, /* recvmsg, sendmsg */
	CALL_FILE = 5,	  /* sendfile: nothing to capture */
};

struct iovec {
	__u64 base;
	__u64 bytes;
};

/* struct user_msghdr, include/linux/socket.h (x86-64) */
struct user_msghdr {
	__u64 name;
	__u64 name_bytes;
	__u64 vectors;
	__u64 vector_count;
};

/* A system call under way. The kernel frees it with the thread. */
struct socket_call {
	struct identity who;
	__u64 start_ns;
	__u64 buffer; /* or iovec array */
	__u64 vectors;
	__s32 fd;
	__u16 kind;
	__u8 direction;
	__u8 reserved;
};

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

static __always_inline int begin(__s32 fd, __u16 kind, __u8 direction, __u64 buffer, __u64 vectors)
{
	struct socket_call *call;
	struct identity who;

	if (!in_scope(&who))
		return 0;
	if (kind != CALL_ACCEPT) {
		struct connection_key key = { .tgid = who.tgid, .fd = fd };

		if (!bpf_map_lookup_elem(&connections, &key))
			return 0;
	}
	call = thread_call(BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!call)
		return 0;
	call->who = who;
	call->fd = fd;
	call->direction = direction;
	call->buffer = buffer;
	call->vectors = vectors;
	call->start_ns = bpf_ktime_get_ns();
	call->kind = kind;
	return 0;
}

static __always_inline void read_addresses(struct http_open *record, __s32 fd)
{
	struct file *file = file_of(fd);
	struct socket *socket = file ? BPF_CORE_READ(file, private_data) : NULL;
	struct sock *sock = socket ? BPF_CORE_READ(socket, sk) : NULL;

	if (!sock) {
		count(COUNTER_SOCKET_UNREADABLE);
		return;
	}
	record->address_family = BPF_CORE_READ(sock, __sk_common.skc_family);
	if (record->address_family == AF_INET) {
		__u32 local = BPF_CORE_READ(sock, __sk_common.skc_rcv_saddr);
		__u32 peer = BPF_CORE_READ(sock, __sk_common.skc_daddr);

		__builtin_memcpy(record->local_address, &local, sizeof(local));
		__builtin_memcpy(record->peer_address, &peer, sizeof(peer));
	} else if (record->address_family == AF_INET6) {
		BPF_CORE_READ_INTO(&record->local_address, sock, __sk_common.skc_v6_rcv_saddr);
		BPF_CORE_READ_INTO(&record->peer_address, sock, __sk_common.skc_v6_daddr);
	} else {
		return;
	}
	record->local_port = BPF_CORE_READ(sock, __sk_common.skc_num);
	record->peer_port = __builtin_bswap16(BPF_CORE_READ(sock, __sk_common.skc_dport));
}

static __always_inline void emit_open(struct identity who, __s32 fd, __u64 id, __u64 now, __u8 late)
{
	struct http_open *record = EMIT_BEGIN(http_open, HTTP_OPEN, who, now, now);

	if (!record)
		return;
	record->connection = id;
	record->fd = fd;
	record->late = late;
	read_addresses(record, fd);
	submit(record);
}

static __always_inline int accepted(struct socket_call *call, __s64 fd, __u64 now)
{
	struct connection_key key = { .tgid = call->who.tgid, .fd = (__s32)fd };
	struct connection connection = {};

	if (fd < 0)
		return 0;
	connection.id = __sync_fetch_and_add(&http_connections, 1) + 1;
	if (bpf_map_update_elem(&connections, &key, &connection, BPF_ANY)) {
		count(COUNTER_CONNECTION_TABLE_FULL);
		return 0;
	}
	emit_open(call->who, key.fd, connection.id, now, 0);
	return 0;
}

static __always_inline void emit_close(struct identity who, __s32 fd,
				       const struct connection *connection)
{
	__u64 now = bpf_ktime_get_ns();
	struct http_close *record = EMIT_BEGIN(http_close, HTTP_CLOSE, who, now, now);

	if (!record)
		return;
	record->connection = connection->id;
	record->fd = fd;
	record->sequence = connection->sequence;
	submit(record);
}

/* One piece: what a call moved at `from`, of which `bytes` are captured. */
struct piece {
	struct identity who;
	__u64 start_ns;
	__u64 end_ns;
	__u64 connection;
	__u64 offset;
	__u64 from;
	__s64 result;
	__u32 bytes;
	__u32 sequence;
	__s32 fd;
	__u8 direction;
	__u8 reserved[3];
};

static __always_inline void fill_piece(struct http_data_head *head, const struct piece *piece,
				       __u16 kind)
{
	__builtin_memset(head, 0, sizeof(*head));
	fill_head(&head->head, kind, piece->who, piece->start_ns, piece->end_ns);
	head->connection = piece->connection;
	head->stream_offset = piece->offset;
	head->result = piece->result;
	head->sequence = piece->sequence;
	head->fd = piece->fd;
	head->captured = (__u16)piece->bytes;
	head->direction = piece->direction;
}

/*
 * Bytes of data[] past `captured` keep what the ring held before: earlier
 * records, never kernel memory. Zeroing 16 KiB for 300 would cost more than
 * the copy.
 */
#define EMIT_PIECE(type, kind, piece)                                                              \
	do {                                                                                       \
		struct type *_record = bpf_ringbuf_reserve(&ring, sizeof(*_record), 0);            \
		__u32 _bytes = (piece)->bytes;                                                     \
		if (!_record) {                                                                    \
			count(COUNTER_RING_FULL);                                                  \
			break;                                                                     \
		}                                                                                  \
		fill_piece(&_record->piece, piece, kind);                                          \
		if (_bytes > sizeof(_record->data))                                                \
			_bytes = sizeof(_record->data);                                            \
		if (_bytes && bpf_probe_read_user(_record->data, _bytes, (void *)(piece)->from)) { \
			count(COUNTER_ARGUMENT_UNREADABLE);                                        \
			_record->piece.captured = 0;                                               \
		}                                                                                  \
		submit(_record);                                                                   \
	} while (0)

/* Global, so that the verifier proves it once and not on every path to it. */
__noinline int emit_piece(const struct piece *piece)
{
	if (!piece)
		return 0;
	if (piece->bytes <= SMALL_BYTES)
		EMIT_PIECE(http_data_256, HTTP_DATA_256, piece);
	else if (piece->bytes <= MEDIUM_BYTES)
		EMIT_PIECE(http_data_4k, HTTP_DATA_4K, piece);
	else
		EMIT_PIECE(http_data_16k, HTTP_DATA_16K, piece);
	return 0;
}

/* How many of `bytes` may still be captured in this direction. */
static __always_inline __u32 allowance(struct connection *connection, __u8 direction, __u64 bytes)
{
	__u64 bound = bytes <= MEDIUM_BYTES ? http_stream_bytes : http_bulk_bytes;
	__u64 wanted = bytes < LARGE_BYTES ? bytes : LARGE_BYTES;
	__u64 used = connection->captured[direction & 1];

	if (used >= bound)
		return 0;
	connection->captured[direction & 1] = used + wanted;
	return (__u32)wanted;
}

static __always_inline void move(struct connection *connection, struct piece *piece, __u64 from,
				 __u64 bytes)
{
	__u8 direction = piece->direction & 1;
	__u64 offset = connection->offset[direction];
	__u32 captured = allowance(connection, direction, from ? bytes : 0);

	connection->offset[direction] = offset + bytes;
	piece->offset = offset;
	piece->from = from;
	piece->bytes = captured;
	piece->sequence = __sync_fetch_and_add(&connection->sequence, 1);
	emit_piece(piece);
	if (bytes <= captured)
		return;
	/* The tail holds what ends a message: `usage`, the last chunk. */
	if (captured && bytes >= LARGE_BYTES + MEDIUM_BYTES) {
		piece->offset = offset + bytes - MEDIUM_BYTES;
		piece->from = from + bytes - MEDIUM_BYTES;
		piece->bytes = MEDIUM_BYTES;
		captured += MEDIUM_BYTES;
	} else if (captured) {
		piece->offset = offset + captured;
		piece->from = from + captured;
		piece->bytes = (__u32)(bytes - captured);
		captured = (__u32)bytes;
	} else {
		count_many(COUNTER_BYTES_NOT_CAPTURED, bytes);
		return;
	}
	count_many(COUNTER_BYTES_NOT_CAPTURED, bytes - captured);
	piece->sequence = __sync_fetch_and_add(&connection->sequence, 1);
	emit_piece(piece);
}

/* The first byte that a read gave, or -1. */
static __always_inline int first_byte(const struct socket_call *call)
{
	__u64 at = call->buffer;
	__u8 first = 0;

	if (call->kind != CALL_BUFFER) {
		struct iovec vector = {};

		if (!read_user(&vector, sizeof(vector), (void *)call->buffer))
			return -1;
		at = vector.base;
	}
	if (!read_user(&first, sizeof(first), (void *)at))
		return -1;
	return first;
}

enum speech {
	SPEECH_HTTP,	/* an HTTP method starts with a capital letter */
	SPEECH_UNKNOWN, /* so far: a connection found open may be in the middle of a body */
	SPEECH_OTHER,
};

static __always_inline enum speech speech_of(const struct connection *connection,
					     const struct socket_call *call)
{
	int first = first_byte(call);
	/* RFC 8446, 5.1: 20 to 23, of which a connection starts with 22 */
	bool tls = first == 22 || (connection->id >= FIRST_FOUND && first >= 20 && first <= 23);

	if (first >= 'A' && first <= 'Z')
		return SPEECH_HTTP;
	if (connection->id >= FIRST_FOUND && !tls)
		return SPEECH_UNKNOWN;
	count(tls ? COUNTER_CONNECTION_TLS : COUNTER_CONNECTION_NOT_HTTP);
	return SPEECH_OTHER;
}

/* arch/x86/entry/syscalls/syscall_64.tbl */
enum {
	NR_READ = 0,
	NR_WRITE = 1,
	NR_READV = 19,
	NR_WRITEV = 20,
	NR_SENDFILE = 40,
	NR_ACCEPT = 43,
	NR_SENDTO = 44,
	NR_RECVFROM = 45,
	NR_SENDMSG = 46,
	NR_RECVMSG = 47,
	NR_ACCEPT4 = 288,
};

/*
 * The call that a thread is returning from, whose entry was not seen: from its
 * registers, which keep the arguments. It counts as begun now; what it waited
 * before is no part of a request. A thread comes here once, then it has a state.
 */
static __noinline int begun_before(struct syscall_exit *exit)
{
	struct connection_key key = {};
	struct user_msghdr message = {};
	struct socket_call *call;
	struct pt_regs regs = {};
	struct identity who;

	if (!in_scope(&who))
		return 0;
	call = thread_call(BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!call)
		return 0;
	if (bpf_probe_read_kernel(&regs, sizeof(regs),
				  (void *)bpf_task_pt_regs(bpf_get_current_task_btf()))) {
		count(COUNTER_ARGUMENT_UNREADABLE);
		return 0;
	}
	call->who = who;
	call->fd = (__s32)regs.di;
	call->buffer = regs.si;
	call->vectors = 0;
	call->start_ns = bpf_ktime_get_ns();
	call->direction = HTTP_DIRECTION_READ;
	switch (exit->number) {
	case NR_ACCEPT:
	case NR_ACCEPT4:
		call->kind = CALL_ACCEPT;
		return 0;
	case NR_RECVFROM:
		if (regs.r10 & MSG_PEEK)
			return 0;
		call->kind = CALL_BUFFER;
		break;
	case NR_WRITE:
	case NR_SENDTO:
		call->direction = HTTP_DIRECTION_WRITE;
		call->kind = CALL_BUFFER;
		break;
	case NR_READ:
		call->kind = CALL_BUFFER;
		break;
	case NR_WRITEV:
		call->direction = HTTP_DIRECTION_WRITE;
		call->vectors = regs.dx;
		call->kind = CALL_VECTOR;
		break;
	case NR_READV:
		call->vectors = regs.dx;
		call->kind = CALL_VECTOR;
		break;
	case NR_SENDMSG:
		call->direction = HTTP_DIRECTION_WRITE;
		call->kind = CALL_MESSAGE;
		break;
	case NR_RECVMSG:
		if (regs.dx & MSG_PEEK)
			return 0;
		call->kind = CALL_MESSAGE;
		break;
	case NR_SENDFILE:
		call->direction = HTTP_DIRECTION_WRITE;
		call->kind = CALL_FILE;
		break;
	default:
		return 0;
	}
	key.tgid = who.tgid;
	key.fd = call->fd;
	if (!bpf_map_lookup_elem(&connections, &key)) {
		call->kind = CALL_NONE;
		return 0;
	}
	if (call->kind == CALL_MESSAGE) {
		if (!read_user(&message, sizeof(message), (void *)regs.si)) {
			call->kind = CALL_NONE;
			return 0;
		}
		call->buffer = message.vectors;
		call->vectors = message.vector_count;
	}
	return 0;
}

/* One program for every exit: user space attaches it to each name in the list. */
SEC("tracepoint/syscalls/sys_exit_accept,accept4,read,recvfrom,write,sendto,readv,writev,recvmsg,"
    "sendmsg,sendfile64")
int exit_call(struct syscall_exit *exit)
{
	struct socket_call *call = thread_call(0);
	struct connection *connection;
	struct connection_key key;
	struct piece piece = {};
	__u64 left;

	if (!call && calls_before) {
		begun_before(exit);
		call = thread_call(0);
	}
	if (!call || call->kind == CALL_NONE)
		return 0;
	piece.end_ns = bpf_ktime_get_ns();
	if (call->kind == CALL_ACCEPT) {
		call->kind = CALL_NONE;
		return accepted(call, exit->ret, piece.end_ns);
	}
	key.tgid = call->who.tgid;
	key.fd = call->fd;
	connection = bpf_map_lookup_elem(&connections, &key);
	if (!connection) {
		call->kind = CALL_NONE;
		return 0;
	}
	/* Nothing happened: a non-blocking call that would block, or a signal. */
	if (exit->ret == -11 || exit->ret == -4 || exit->ret == -512) {
		call->kind = CALL_NONE;
		return 0;
	}
	if (connection->late) {
		connection->late = 0;
		emit_open(call->who, key.fd, connection->id, piece.end_ns, 1);
	}
	if (connection->state == CONNECTION_NEW && exit->ret > 0 &&
	    call->direction == HTTP_DIRECTION_READ) {
		enum speech speech = speech_of(connection, call);

		if (speech == SPEECH_UNKNOWN) {
			call->kind = CALL_NONE;
			count_many(COUNTER_BYTES_NOT_CAPTURED, (__u64)exit->ret);
			return 0;
		}
		if (speech == SPEECH_OTHER) {
			call->kind = CALL_NONE;
			emit_close(call->who, key.fd, connection);
			bpf_map_delete_elem(&connections, &key);
			return 0;
		}
		connection->state = CONNECTION_FOLLOWED;
	}
	if (connection->direction != call->direction) {
		connection->direction = call->direction;
		connection->captured[call->direction & 1] = 0;
	}
	piece.who = call->who;
	piece.start_ns = call->start_ns;
	piece.connection = connection->id;
	piece.fd = call->fd;
	piece.direction = call->direction;
	piece.result = exit->ret;
	left = exit->ret > 0 ? (__u64)exit->ret : 0;
	if (!left || call->kind == CALL_BUFFER || call->kind == CALL_FILE) {
		move(connection, &piece, call->kind == CALL_BUFFER ? call->buffer : 0, left);
	} else {
		for (__u32 i = 0; i < VECTORS; i++) {
			struct iovec vector = {};
			__u64 bytes;

			if (i >= call->vectors || !left)
				break;
			if (!read_user(&vector, sizeof(vector),
				       (void *)(call->buffer + i * sizeof(vector))))
				break;
			bytes = vector.bytes < left ? vector.bytes : left;
			if (!bytes)
				continue;
			left -= bytes;
			move(connection, &piece, vector.base, bytes);
		}
		if (left) {
			count(COUNTER_VECTORS_NOT_CAPTURED);
			move(connection, &piece, 0, left);
		}
	}
	call->kind = CALL_NONE;
	return 0;
}

#define ENTER(name, kind, direction, vectors)                                                \
	SEC("tracepoint/syscalls/sys_enter_" #name)                                          \
	int enter_##name(struct syscall_enter *call)                                         \
	{                                                                                    \
		return begin((__s32)call->args[0], kind, direction, call->args[1], vectors); \
	}

ENTER(accept, CALL_ACCEPT, HTTP_DIRECTION_READ, 0)
ENTER(accept4, CALL_ACCEPT, HTTP_DIRECTION_READ, 0)
ENTER(read, CALL_BUFFER, HTTP_DIRECTION_READ, 0)
ENTER(write, CALL_BUFFER, HTTP_DIRECTION_WRITE, 0)
ENTER(sendto, CALL_BUFFER, HTTP_DIRECTION_WRITE, 0)
ENTER(readv, CALL_VECTOR, HTTP_DIRECTION_READ, call->args[2])
ENTER(writev, CALL_VECTOR, HTTP_DIRECTION_WRITE, call->args[2])
ENTER(sendfile64, CALL_FILE, HTTP_DIRECTION_WRITE, 0)

SEC("tracepoint/syscalls/sys_enter_recvfrom")
int enter_recvfrom(struct syscall_enter *call)
{
	if (call->args[3] & MSG_PEEK)
		return 0;
	return begin((__s32)call->args[0], CALL_BUFFER, HTTP_DIRECTION_READ, call->args[1], 0);
}

static __always_inline int begin_message(struct syscall_enter *call, __u8 direction)
{
	struct user_msghdr message = {};

	if (direction == HTTP_DIRECTION_READ && call->args[2] & MSG_PEEK)
		return 0;
	if (bpf_probe_read_user(&message, sizeof(message), (void *)call->args[1]))
		return 0; /* the call itself will fail the same way */
	return begin((__s32)call->args[0], CALL_MESSAGE, direction, message.vectors,
		     message.vector_count);
}

SEC("tracepoint/syscalls/sys_enter_recvmsg")
int enter_recvmsg(struct syscall_enter *call)
{
	return begin_message(call, HTTP_DIRECTION_READ);
}

SEC("tracepoint/syscalls/sys_enter_sendmsg")
int enter_sendmsg(struct syscall_enter *call)
{
	return begin_message(call, HTTP_DIRECTION_WRITE);
}

SEC("tracepoint/syscalls/sys_enter_close")
int enter_close(struct syscall_enter *call)
{
	struct connection *connection;
	struct connection_key key;
	struct identity who;

	if (!in_scope(&who))
		return 0;
	key.tgid = who.tgid;
	key.fd = (__s32)call->args[0];
	connection = bpf_map_lookup_elem(&connections, &key);
	if (!connection)
		return 0;
	emit_close(who, key.fd, connection);
	bpf_map_delete_elem(&connections, &key);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
