/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * When the bytes that a read returned arrived at the host: a request may have waited while the server was busy.
 *
 * TCP's tracepoint tcp_probe fires for each segment of an established connection before it is queued; its
 * sequence numbers and the time are kept until they are read. A byte that no kept segment holds (it came with
 * the handshake, or after more unread segments than are kept) has an unknown arrival, never a wrong one.
 */
#ifndef OTELGPU_ARRIVAL_H
#define OTELGPU_ARRIVAL_H

#include "sockets.h"

#define SEGMENTS 4 /* unread segments that are kept; a power of two */

/* TCP sequence numbers wrap: whether a is before b. */
#define BEFORE(a, b) ((__s32)((a) - (b)) < 0)

struct segment {
	__u32 begin; /* sequence numbers of its bytes: begin to end - 1 */
	__u32 end;
	__u64 time_ns;
};

struct arrivals {
	struct segment segment[SEGMENTS];
	__u32 next;  /* slot for the next one: the oldest */
	__u32 ports; /* of both endpoints: shows when the kernel has reused the struct sock */
	__u32 followed;
	__u32 reserved;
};

/*
 * struct sock -> segments that arrived and are unread, of sockets that are followed and of all that wait to be
 * accepted. Entries are deleted when the connection is no longer followed, or turns out not to be; the kernel
 * evicts those that are not used, and then the arrival is unknown.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 32768);
	__type(key, __u64);
	__type(value, struct arrivals);
} arrivals SEC(".maps") BY_PROCESSORS;

static __always_inline __u32 ports_of(struct sock *sock)
{
	return (__u32)BPF_CORE_READ(sock, __sk_common.skc_num) << 16 |
	       BPF_CORE_READ(sock, __sk_common.skc_dport);
}

/* Start to record the arrivals of a socket. Those recorded while it waited to be accepted stay. */
static __always_inline void watch_arrivals(__u64 sock)
{
	struct arrivals *kept = bpf_map_lookup_elem(&arrivals, &sock);
	struct arrivals none = { .ports = ports_of((struct sock *)sock), .followed = 1 };

	if (kept && kept->ports == none.ports)
		kept->followed = 1;
	else
		bpf_map_update_elem(&arrivals, &sock, &none, BPF_ANY); /* full: unknown */
}

static __always_inline void forget_arrivals(__u64 sock)
{
	bpf_map_delete_elem(&arrivals, &sock);
}

/* When the byte with this sequence number arrived at the host; 0: not known. */
static __always_inline __u64 arrival_of(__u64 sock, __u32 number)
{
	struct arrivals *kept = bpf_map_lookup_elem(&arrivals, &sock);

	if (!kept) {
		watch_arrivals(sock);
		return 0;
	}
	for (__u32 i = 0; i < SEGMENTS; i++) {
		const struct segment *segment = &kept->segment[i];

		if (segment->time_ns && !BEFORE(number, segment->begin) &&
		    BEFORE(number, segment->end))
			return segment->time_ns;
	}
	return 0;
}

/*
 * The entry of the socket that a segment arrived at; NULL if its arrivals are not recorded: it was accepted and
 * read, and is not followed.
 */
static __always_inline struct arrivals *wanted_arrivals(struct sock *sock, __u32 unread)
{
	__u64 key = (__u64)sock;
	struct arrivals *kept = bpf_map_lookup_elem(&arrivals, &key);
	struct arrivals none = {};
	bool waits = !sock->sk_socket;

	if (!kept && !waits)
		return NULL;
	none.ports = (__u32)sock->__sk_common.skc_num << 16 | sock->__sk_common.skc_dport;
	if (kept && kept->ports == none.ports) {
		if (kept->followed || waits || BEFORE(unread, kept->segment[0].end))
			return kept;
		forget_arrivals(key);
		return NULL;
	}
	if (!waits) {
		forget_arrivals(key);
		return NULL;
	}
	if (bpf_map_update_elem(&arrivals, &key, &none, BPF_ANY))
		return NULL;
	return bpf_map_lookup_elem(&arrivals, &key);
}

/* Not on every kernel: without it arrivals are unknown. */
SEC("?tp_btf/tcp_probe")
int segment_came(__u64 *arguments) /* struct sock *, struct sk_buff * */
{
	struct sock *sock = (struct sock *)arguments[0];
	struct sk_buff *buffer = (struct sk_buff *)arguments[1];
	struct tcp_skb_cb numbers = {};
	struct arrivals *kept;
	struct segment *slot;
	__u32 unread;

	bpf_core_read(&numbers, sizeof(numbers), &buffer->cb);
	if (numbers.seq == numbers.end_seq)
		return 0; /* an acknowledgement alone */
	unread = BPF_CORE_READ((struct tcp_sock *)sock, copied_seq);
	kept = wanted_arrivals(sock, unread);
	if (!kept)
		return 0;
	slot = &kept->segment[kept->next & (SEGMENTS - 1)];
	if (slot->time_ns && BEFORE(unread, slot->end))
		return 0; /* the oldest is still unread: not recorded */
	slot->time_ns = 0;
	slot->begin = numbers.seq;
	slot->end = numbers.end_seq;
	slot->time_ns = bpf_ktime_get_ns();
	kept->next++;
	return 0;
}

#endif
