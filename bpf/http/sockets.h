/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What the kernel knows of a socket: its type, its endpoints, and its TCP sequence numbers. */
#ifndef OTELGPU_SOCKETS_H
#define OTELGPU_SOCKETS_H

#include "http.h"
#include "../lib/counters.h"
#include "../lib/files.h"

/* include/linux/socket.h, include/linux/net.h, include/net/tcp_states.h */
#define AF_UNIX	     1
#define AF_INET	     2
#define AF_INET6     10
#define SOCK_STREAM  1
#define TCP_SYN_SENT 2

/* The socket behind a descriptor; undefined for other files. NULL when there is none. */
static __always_inline struct sock *socket_of(__s32 fd)
{
	struct file *file = file_of(fd);
	struct socket *socket = file ? BPF_CORE_READ(file, private_data) : NULL;

	return socket ? BPF_CORE_READ(socket, sk) : NULL;
}

static __always_inline bool is_inet(struct sock *sock)
{
	__u16 family = BPF_CORE_READ(sock, __sk_common.skc_family);

	return family == AF_INET || family == AF_INET6;
}

/* A stream socket: TCP, or Unix. */
static __always_inline bool is_stream(struct sock *sock)
{
	return BPF_CORE_READ(sock, sk_type) == SOCK_STREAM &&
	       (is_inet(sock) || BPF_CORE_READ(sock, __sk_common.skc_family) == AF_UNIX);
}

static __always_inline __u64 inode_of(struct sock *sock)
{
	return sock ? BPF_CORE_READ(sock, sk_socket, file, f_inode, i_ino) : 0;
}

/*
 * TCP sequence numbers of the next byte to read, and to write. False before the peer has answered: its initial
 * sequence number is not known then.
 */
static __always_inline bool tcp_position(struct sock *sock, __u32 position[2])
{
	struct tcp_sock *tcp = (struct tcp_sock *)sock;

	if (BPF_CORE_READ(sock, __sk_common.skc_state) == TCP_SYN_SENT)
		return false;
	position[HTTP_DIRECTION_READ] = BPF_CORE_READ(tcp, copied_seq);
	position[HTTP_DIRECTION_WRITE] = BPF_CORE_READ(tcp, write_seq);
	return true;
}

/* Both endpoints of a socket: addresses, or the inodes of a Unix socket and its peer. */
static __always_inline void read_endpoints(struct http_open *record, struct sock *sock)
{
	record->address_family = BPF_CORE_READ(sock, __sk_common.skc_family);
	if (record->address_family == AF_INET) {
		__u32 local = BPF_CORE_READ(sock, __sk_common.skc_rcv_saddr);
		__u32 peer = BPF_CORE_READ(sock, __sk_common.skc_daddr);

		__builtin_memcpy(record->local_address, &local, sizeof(local));
		__builtin_memcpy(record->peer_address, &peer, sizeof(peer));
	} else if (record->address_family == AF_INET6) {
		BPF_CORE_READ_INTO(&record->local_address, sock, __sk_common.skc_v6_rcv_saddr);
		BPF_CORE_READ_INTO(&record->peer_address, sock, __sk_common.skc_v6_daddr);
	} else if (record->address_family == AF_UNIX) {
		/* A peer that was not accepted yet has none: the pair is then reported by the peer itself. */
		record->local_inode = inode_of(sock);
		record->peer_inode = inode_of(BPF_CORE_READ((struct unix_sock *)sock, peer));
		return;
	} else {
		return;
	}
	record->local_port = BPF_CORE_READ(sock, __sk_common.skc_num);
	record->peer_port = __builtin_bswap16(BPF_CORE_READ(sock, __sk_common.skc_dport));
}

#endif
