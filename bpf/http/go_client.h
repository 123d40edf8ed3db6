/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Requests of Go's net/http client: written by a goroutine of the connection, (*persistConn).writeLoop, for the one that
 * called (*persistConn).roundTrip. Both are seen where they enter functions that know the connection; from its pointer
 * to whom it writes for.
 *
 * Exact because HTTP/1.1 has one request at a time on a connection: net/http gives a connection to the next one when
 * the former's response has been read and its write has returned ((*persistConn).wroteRequest). A connection of HTTP/2
 * passes neither function. Entries only: Go moves its stacks, return addresses included.
 *
 * Arguments are in registers since Go 1.17 (src/cmd/compile/abi-internal.md): rax, rbx, …; the receiver is the first.
 */
#ifndef OTELGPU_GO_CLIENT_H
#define OTELGPU_GO_CLIENT_H

#include "../lib/emit.h"
#include "../lib/own_stack.h"

#define GO_REQUESTS	  16384
#define GO_ARGUMENT(regs) ((regs)->ax)

struct go_key {
	__u64 of; /* a connection's address, or a goroutine's number */
	__u32 tgid;
	__u32 reserved;
};

/* The task that a request is written for, and when it asked. */
struct go_caller {
	__u64 task;
	__u64 asked_ns;
};

/* (*persistConn) -> who called roundTrip last. The least used go: their requests are then nobody's. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, GO_REQUESTS);
	__type(key, struct go_key);
	__type(value, struct go_caller);
} go_connections SEC(".maps");

/* The goroutine that writes to a connection -> for whom it does now. The least used go. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, GO_REQUESTS);
	__type(key, struct go_key);
	__type(value, struct go_caller);
} go_writers SEC(".maps");

bool go_has_client = false; /* a request was ever seen: else nobody pays */

/* In front of the bytes that the current thread wrote: for whom its goroutine did, where that is another. */
static __always_inline void take_go_caller(struct record_head *head)
{
	struct go_key writer = { .tgid = head->tgid };
	struct go_caller *caller;

	if (!go_has_client || head->context_source != CONTEXT_TASK)
		return;
	__builtin_memcpy(&writer.of, head->span_id, sizeof(writer.of));
	caller = bpf_map_lookup_elem(&go_writers, &writer);
	if (!caller)
		return;
	__builtin_memcpy(head->span_id, &caller->task, sizeof(caller->task));
	__builtin_memcpy(head->trace_id, &caller->asked_ns, sizeof(caller->asked_ns));
}

/* func (pc *persistConn) roundTrip(req *transportRequest) (*Response, error) */
SEC("uprobe/libgo:net/http.(*persistConn).roundTrip")
int go_asks(struct pt_regs *regs)
{
	struct go_key connection = { .of = GO_ARGUMENT(regs) };
	struct go_caller caller = {};
	struct identity who;

	ON_OWN_STACK(regs);
	if (!in_scope(&who))
		return 0;
	connection.tgid = who.tgid;
	caller.task = current_task(who.tgid);
	caller.asked_ns = bpf_ktime_get_ns();
	if (!caller.task || bpf_map_update_elem(&go_connections, &connection, &caller, BPF_ANY))
		bpf_map_delete_elem(&go_connections, &connection);
	else
		go_has_client = true;
	return 0;
}

/* func (w persistConnWriter) Write(p []byte) (n int, err error), a struct of one pointer, the connection */
SEC("uprobe/libgo:net/http.persistConnWriter.Write")
int go_writes(struct pt_regs *regs)
{
	struct go_key key = { .of = GO_ARGUMENT(regs) };
	struct go_caller *caller;
	struct identity who;

	ON_OWN_STACK(regs);
	if (!go_has_client || !in_scope(&who))
		return 0;
	key.tgid = who.tgid;
	caller = bpf_map_lookup_elem(&go_connections, &key);
	key.of = current_task(who.tgid);
	if (!key.of)
		return 0;
	if (!caller || bpf_map_update_elem(&go_writers, &key, caller, BPF_ANY))
		bpf_map_delete_elem(&go_writers, &key);
	return 0;
}

#endif
