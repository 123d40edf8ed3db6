/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Records of family http: the bytes of connections in clear text, bounded; of any protocol. */
#ifndef OTELGPU_HTTP_H
#define OTELGPU_HTTP_H

#include "../lib/counters.h"

enum http_kind {
	HTTP_OPEN = 1,
	HTTP_DATA_256 = 2,
	HTTP_DATA_4K = 3,
	HTTP_DATA_16K = 4,
	HTTP_CLOSE = 5,
	HTTP_DATA_1K = 6,
};

enum http_counter {
	COUNTER_RING_SHARE_SPENT =
		COUNTER_COUNT, /* a chunk beyond the share of its process or container in the ring */
	COUNTER_CONNECTION_SHARE_SPENT, /* as above, of a connection in the tables: not followed */
	COUNTER_GO_CALLER_UNKNOWN, /* a write of Go's http.Client whose caller was not seen, or is forgotten */
};

enum http_direction {
	HTTP_DIRECTION_READ = 0,  /* what the process received */
	HTTP_DIRECTION_WRITE = 1, /* what it sent */
	HTTP_DIRECTION_ENDED = 2, /* no bytes: it said that it sends no more, shutdown(2) */
};

/* The role of the process on the connection. */
enum http_role {
	HTTP_ROLE_UNKNOWN =
		0, /* a socket pair, an inherited socket, a TLS session: its bytes decide */
	HTTP_ROLE_SERVER = 1, /* accepted */
	HTTP_ROLE_CLIENT = 2, /* connected */
};

/* Where the bytes were read. */
enum http_layer {
	HTTP_LAYER_SOCKET = 0, /* system calls */
	HTTP_LAYER_TLS =
		1, /* SSL_read, SSL_write: what a TLS library returned and took in clear text */
};

/*
 * The kernel numbers connections, and the processes that hold them, from 1 up; user space numbers those it found
 * from this power of two on.
 */
enum connection_number {
	CONNECTION_FOUND_SHIFT = 62,
};

/*
 * A task that is a stream of HTTP/2 of a Go program: this bit, the goroutine that reads the connection's frames, the
 * stream's number.
 */
enum go_stream_task {
	GO_STREAM_READER = 31,
	GO_STREAM_TASK = 63,
};

/*
 * A connection was accepted or made, a TLS session began, or, with `late`, one was found that began before
 * observation. The sequence numbers are those of TCP: a byte at stream_offset n of a direction has the
 * number `sequence[direction] + n`, the same at both ends of the connection.
 */
struct http_open {
	struct record_head head; /* time_ns: the accept returned */
	__u64 connection;	 /* unique in a session */
	__u64 local_inode; /* of a Unix socket and its peer, 0 where unknown: they identify the pair */
	__u64 peer_inode;
	__u32 sequence[2];    /* by enum http_direction; TCP only */
	__s32 fd;	      /* -1: a TLS session whose socket is unknown */
	__u16 address_family; /* AF_INET, AF_INET6, AF_UNIX, or 0 when unreadable */
	__u16 local_port;     /* host byte order */
	__u16 peer_port;
	__u8 late;
	__u8 role;	      /* enum http_role */
	__u8 layer;	      /* enum http_layer */
	__u8 sequences_known; /* bit 1 << enum http_direction: whether sequence[] is valid */
	__u8 nonblocking; /* its calls never block, or a TLS session works on memory buffers: an event loop's */
	__u8 reserved;
	__u8 local_address[16]; /* network byte order; IPv4 in the first four bytes */
	__u8 peer_address[16];
};

/*
 * A chunk of the bytes that one system call moved. Chunks of a connection are numbered
 * from 0 in `sequence`, across both directions; `stream_offset` counts the
 * bytes that this direction moved before the chunk, captured or not. So
 * stream_offset jumps where bytes were not captured, and sequence jumps where
 * a record was lost. A call that returned 0 bytes (end of file) or an error is
 * a chunk with captured 0 and its result in `result`.
 */
struct http_data_head {
	struct record_head head; /* time_ns: the call began; duration: until it returned */
	__u64 connection;
	__u64 arrival_ns; /* reads: the first byte of the call came to the host; 0: not known */
	__u64 stream_offset;
	__s64 result; /* what the system call returned: bytes moved, 0 or -errno */
	__u32 sequence;
	__s32 fd;
	__u16 captured; /* valid bytes of data[] */
	__u8 direction; /* enum http_direction */
	__u8 reserved[5];
};

struct http_data_256 {
	struct http_data_head chunk;
	__u8 data[256];
};

struct http_data_1k {
	struct http_data_head chunk;
	__u8 data[1024];
};

struct http_data_4k {
	struct http_data_head chunk;
	__u8 data[4096];
};

struct http_data_16k {
	struct http_data_head chunk;
	__u8 data[16384];
};

/* The process closed it, or the connection is no longer followed. */
struct http_close {
	struct record_head head;
	__u64 connection;
	__s32 fd;
	__u32 sequence; /* chunks that were numbered on this connection */
};

#endif
