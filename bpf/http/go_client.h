/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Requests of Go's net/http client: written by a goroutine of the connection, (*persistConn).writeLoop, for the one that
 * called (*persistConn).roundTrip. Both are seen where they enter functions that know the connection.
 *
 * That is exact, for HTTP/1.1 has one request at a time on a connection: net/http gives a connection to the next one
 * when the former's response has been read and its write has returned ((*persistConn).wroteRequest). A connection of
 * HTTP/2 passes neither function.
 *
 * Where the request has the context of one that the process serves (context.Context, which handlers pass on to what they
 * start), it is written for the goroutine that serves that one, whoever called. Contexts are known by their addresses,
 * which are others' once they are freed: user space links only what was asked while the request was served, for that
 * keeps its context from being freed.
 *
 * Entries only: Go moves its stacks, return addresses included. Arguments are in registers since Go 1.17
 * (src/cmd/compile/abi-internal.md): rax, rbx, rcx, rdi, …, the receiver first.
 */
#ifndef OTELGPU_GO_CLIENT_H
#define OTELGPU_GO_CLIENT_H

#include "../lib/calls.h"

#define GO_REQUESTS	    16384
#define GO_CONTEXTS	    16 /* of which one was made of the other: more are not looked at */
#define GO_ARGUMENT_1(regs) ((regs)->ax)
#define GO_ARGUMENT_2(regs) ((regs)->bx)
#define GO_ARGUMENT_4(regs) ((regs)->di)

/* When a task asked for a request, and when it was given the context of that: model/tasks.py. */
struct asked {
	__u64 at_ns;
	__u64 since_ns;
};

/* The task that a request is written for. */
struct go_caller {
	struct asked asked;
	__u64 task;
	__u64 parent; /* of a context: the one that it was made of, which tells it from what has its address later */
};

struct go_key {
	__u64 of; /* the address of a connection or a context, or a goroutine's number */
	__u32 tgid;
	__u32 program; /* which of those that a process of this number has run: low numbers are used by all */
};

static __always_inline struct go_key go_key_of(__u32 tgid, __u64 of)
{
	struct task_struct *thread = (struct task_struct *)bpf_get_current_task();
	struct task_struct *leader = BPF_CORE_READ(thread, group_leader);
	struct go_key key = { .of = of, .tgid = tgid };

	key.program = (__u32)(BPF_CORE_READ(leader, start_time) >> 10) +
		      (__u32)BPF_CORE_READ(leader, self_exec_id);
	return key;
}

/* As all maps here: the least used go, and the requests are then nobody's: COUNTER_GO_CALLER_UNKNOWN. */
struct go_requests {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, GO_REQUESTS);
	__type(key, struct go_key);
	__type(value, struct go_caller);
};

/* *persistConn -> for whom roundTrip was called last. */
struct go_requests go_connections SEC(".maps") BY_PROCESSORS;

/* A goroutine that writes to a connection -> for whom it does now. */
struct go_requests go_writers SEC(".maps") BY_PROCESSORS;

/* The context of a request that is served -> who serves it. */
struct go_requests go_contexts SEC(".maps") BY_PROCESSORS;

#include "go_streams.h"

/*
 * In front of bytes that the current thread wrote: for whom its goroutine did, where that is another, and else for which
 * stream. Of its own for the stack's sake.
 */
static __noinline void take_go_caller(struct record_head *head)
{
	struct go_caller *caller;
	struct go_key writer;
	__u64 task, *stream;

	if (!go_is_used || head->context_source != CONTEXT_TASK)
		return;
	__builtin_memcpy(&task, head->span_id, sizeof(task));
	writer = go_key_of(head->tgid, task);
	caller = bpf_map_lookup_elem(&go_writers, &writer);
	if (caller) {
		__builtin_memcpy(head->span_id, &caller->task, sizeof(caller->task));
		__builtin_memcpy(head->trace_id, &caller->asked, sizeof(caller->asked));
		return;
	}
	stream = bpf_map_lookup_elem(&go_streams, &writer);
	if (stream)
		__builtin_memcpy(head->span_id, stream, sizeof(*stream));
}

/*
 * An interface's second word: what it holds. Contexts that are made of another one begin with it (cancelCtx, timerCtx,
 * valueCtx, …, and what embeds a context.Context first), which is one word in, then.
 */
#define GO_HELD 8

static __always_inline bool go_held(__u64 *held, __u64 interface)
{
	return !bpf_probe_read_user(held, sizeof(*held), (void *)(interface + GO_HELD));
}

/* The context of a *http.Request, which has it where the cookie says. 0: that is not known. */
static __always_inline __u64 go_context_of(struct pt_regs *regs, __u64 request)
{
	__u64 offset = go_layouts(regs) & GO_LAYOUT_CONTEXT, context = 0;

	if (offset && !go_held(&context, request + offset))
		count(COUNTER_ARGUMENT_UNREADABLE);
	return context;
}

/* A context is that of the request which the current goroutine serves from now on. */
static __always_inline void serve_with(struct identity who, __u64 context)
{
	struct go_key key = go_key_of(who.tgid, context);
	struct go_caller server = { .task = go_task(who.tgid) };

	server.asked.since_ns = bpf_ktime_get_ns();
	if (key.of && server.task && go_held(&server.parent, key.of))
		bpf_map_update_elem(&go_contexts, &key, &server, BPF_ANY);
}

/* func (sh serverHandler) ServeHTTP(rw ResponseWriter, req *Request): an interface is two words */
SEC("uprobe/libgo:net/http.serverHandler.ServeHTTP")
int go_serves(struct pt_regs *regs)
{
	struct identity who;

	ON_OWN_STACK(regs);
	if (!in_scope(&who))
		return 0;
	know_goroutines(regs, who.tgid);
	serve_with(who, go_context_of(regs, GO_ARGUMENT_4(regs)));
	return 0;
}

/* func (s *Server) handleStream(t transport.ServerTransport, stream *transport.ServerStream) */
SEC("uprobe/libgo:google.golang.org/grpc.(*Server).handleStream")
int go_serves_rpc(struct pt_regs *regs)
{
	struct grpc_stream stream;
	struct identity who;
	__u64 context;

	ON_OWN_STACK(regs);
	if (!in_scope(&who))
		return 0;
	know_goroutines(regs, who.tgid);
	stream = read_grpc_stream(go_layouts(regs), GO_ARGUMENT_4(regs));
	serve_stream(who, GO_ARGUMENT_3(regs), stream.id);
	if (stream.context && go_held(&context, stream.context))
		serve_with(who, context);
	return 0;
}

/* For whom a request is: whose context it has, else for the current goroutine. */
static __always_inline void find_go_caller(struct go_caller *caller, struct go_key context)
{
	for (int i = 0; i < GO_CONTEXTS && context.of; i++) {
		struct go_caller *server = bpf_map_lookup_elem(&go_contexts, &context);
		__u64 parent = 0;

		if (!go_held(&parent, context.of))
			break; /* not every context is made of another one */
		if (server && server->parent == parent) {
			caller->task = server->task;
			caller->asked.since_ns = server->asked.since_ns;
			return;
		}
		context.of = parent;
	}
	caller->task = go_task(context.tgid);
	caller->asked.since_ns = caller->asked.at_ns;
}

/* func (pc *persistConn) roundTrip(req *transportRequest), which begins with a *Request */
SEC("uprobe/libgo:net/http.(*persistConn).roundTrip")
int go_asks(struct pt_regs *regs)
{
	struct go_key connection, context;
	struct go_caller caller = {};
	struct identity who;
	__u64 request = 0;

	ON_OWN_STACK(regs);
	if (!in_scope(&who))
		return 0;
	know_goroutines(regs, who.tgid);
	connection = context = go_key_of(who.tgid, GO_ARGUMENT_1(regs));
	context.of = 0;
	if (read_user(&request, sizeof(request), (void *)GO_ARGUMENT_2(regs)))
		context.of = go_context_of(regs, request);
	caller.asked.at_ns = bpf_ktime_get_ns();
	find_go_caller(&caller, context);
	if (!caller.task || bpf_map_update_elem(&go_connections, &connection, &caller, BPF_ANY))
		bpf_map_delete_elem(&go_connections, &connection);
	else
		go_is_used = true;
	return 0;
}

/* func (w persistConnWriter) Write(p []byte) (n int, err error): a struct of one pointer, the connection */
SEC("uprobe/libgo:net/http.persistConnWriter.Write")
int go_writes(struct pt_regs *regs)
{
	struct go_caller *caller;
	struct identity who;
	struct go_key key;

	ON_OWN_STACK(regs);
	if (!go_is_used || !in_scope(&who))
		return 0;
	key = go_key_of(who.tgid, GO_ARGUMENT_1(regs));
	caller = bpf_map_lookup_elem(&go_connections, &key);
	if (!caller)
		count(COUNTER_GO_CALLER_UNKNOWN);
	key.of = current_task(who.tgid);
	if (!key.of)
		return 0;
	if (!caller || bpf_map_update_elem(&go_writers, &key, caller, BPF_ANY))
		bpf_map_delete_elem(&go_writers, &key);
	return 0;
}

#endif
