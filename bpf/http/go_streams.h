/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Which stream of HTTP/2 a goroutine of Go serves. One goroutine reads a connection's frames for its life, others run the
 * handlers, one stream at a time: both are seen where they enter functions that know the connection by its address, and
 * a handler's knows the stream. User space knows both of a request as well, by the read that its head came with: so the
 * two together are a task that is exactly this request's (model/tasks.py).
 *
 * A connection whose reader entered before observation is none of these: its handlers' goroutines remain tasks themselves.
 */
#ifndef OTELGPU_GO_STREAMS_H
#define OTELGPU_GO_STREAMS_H

#define GO_ARGUMENT_3(regs) ((regs)->cx)
#define GO_CONNECTIONS	    16384

/* What the cookies say of a program (families/requests/discover/go_requests.py). */
#define GO_LAYOUT_CONTEXT \
	0xfff /* offset of http.Request.ctx, which is known of the same versions as net/http's below */
#define GO_LAYOUT_GRPC_69 \
	0x1000 /* google.golang.org/grpc 1.69 to 1.76: ServerStream begins with a *Stream */
#define GO_LAYOUT_GRPC_77   0x2000 /* ... 1.77 to 1.83: with a Stream */
#define GO_LAYOUT_CURG_184  0x4000 /* offset of runtime.m.curg: 192 otherwise */
#define GO_LAYOUT_GOID_160  0x8000 /* of runtime.g.goid: 152 otherwise */
#define GO_LAYOUT_TLS_SHIFT 16	   /* words from runtime.tlsg to the thread pointer. 0: not known */

/* internal/transport/transport.go: Stream */
#define GRPC_69_ID	0
#define GRPC_69_CONTEXT 8
#define GRPC_77_CONTEXT 0
#define GRPC_77_ID	108

/* net/http/h2_bundle.go: http2responseWriter begins with its state, that with its stream */
#define GO_HTTP2_STREAM_ID 8

struct grpc_stream {
	__u64 context; /* where its context is */
	__u32 id;
	__u32 reserved;
};

/* The address of a connection -> the goroutine that reads its frames. The least used go: their streams are nobody's. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, GO_CONNECTIONS);
	__type(key, struct go_key);
	__type(value, __u64);
} go_readers SEC(".maps") BY_PROCESSORS;

/* A goroutine -> the stream that it serves, as a task. The least used go, and are goroutines again. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, GO_REQUESTS);
	__type(key, struct go_key);
	__type(value, __u64);
} go_streams SEC(".maps") BY_PROCESSORS;

bool go_is_used = false; /* a request of a client's or a stream was ever seen: else nobody pays */

static __always_inline __u64 go_layouts(struct pt_regs *regs)
{
	return bpf_get_attach_cookie(regs) >> COOKIE_FILE_SHIFT;
}

/* src/runtime/runtime2.go, as in otelgpu/processes/task_runtimes.py */
#define GO_G_M 48

/*
 * How the goroutines of a process are reached, by its program: user space looks at a process some milliseconds after its
 * start, and many have asked for all they ask for and ended by then.
 */
static __always_inline void know_goroutines(struct pt_regs *regs, __u32 tgid)
{
	__u64 layouts = go_layouts(regs);
	struct task_path path = {
		.offset = { -8 * (__s64)(layouts >> GO_LAYOUT_TLS_SHIFT), GO_G_M,
			    layouts & GO_LAYOUT_CURG_184 ? 184 : 192,
			    layouts & GO_LAYOUT_GOID_160 ? 160 : 152 },
		.steps = 4,
	};

	if (path.offset[0] && !bpf_map_lookup_elem(&task_processes, &tgid) &&
	    bpf_map_update_elem(&task_processes, &tgid, &path, BPF_ANY))
		count(COUNTER_TASK_PROCESSES_FULL);
}

/* What the current goroutine works for: a stream, or what is known of the goroutine itself. */
static __always_inline __u64 go_task(__u32 tgid)
{
	struct go_key key = go_key_of(tgid, current_task(tgid));
	__u64 *stream = bpf_map_lookup_elem(&go_streams, &key);

	return stream ? *stream : key.of;
}

/* The current goroutine serves a stream of a connection from now on; 0: it is not known which. */
static __always_inline void serve_stream(struct identity who, __u64 connection, __u32 id)
{
	struct go_key key = go_key_of(who.tgid, connection);
	__u64 *reader = bpf_map_lookup_elem(&go_readers, &key);
	__u64 task;

	key.of = current_task(who.tgid);
	if (!key.of)
		return;
	task = reader && id ? 1ULL << GO_STREAM_TASK | *reader << GO_STREAM_READER | id : 0;
	if (!task || id >> GO_STREAM_READER ||
	    bpf_map_update_elem(&go_streams, &key, &task, BPF_ANY))
		bpf_map_delete_elem(&go_streams, &key);
	else
		go_is_used = true;
}

static __always_inline struct grpc_stream read_grpc_stream(__u64 layouts, __u64 at)
{
	struct grpc_stream stream = {};
	__u64 id = 0;

	if (layouts & GO_LAYOUT_GRPC_69 && read_user(&at, sizeof(at), (void *)at)) {
		stream.context = at + GRPC_69_CONTEXT;
		id = at + GRPC_69_ID;
	} else if (layouts & GO_LAYOUT_GRPC_77) {
		stream.context = at + GRPC_77_CONTEXT;
		id = at + GRPC_77_ID;
	}
	if (id)
		read_user(&stream.id, sizeof(stream.id), (void *)id);
	return stream;
}

/*
 * func (sc *http2serverConn) readFrames()
 * func (t *http2Server) HandleStreams(ctx context.Context, handle func(*ServerStream))
 */
SEC("uprobe/libgo:net/http.(*http2serverConn).readFrames,"
    "google.golang.org/grpc/internal/transport.(*http2Server).HandleStreams")
int go_reads_frames(struct pt_regs *regs)
{
	struct identity who;
	struct go_key key;
	__u64 reader;

	ON_OWN_STACK(regs);
	if (!in_scope(&who))
		return 0;
	know_goroutines(regs, who.tgid);
	key = go_key_of(who.tgid, GO_ARGUMENT_1(regs));
	reader = current_task(who.tgid);
	if (!reader || reader >> (GO_STREAM_TASK - GO_STREAM_READER) ||
	    bpf_map_update_elem(&go_readers, &key, &reader, BPF_ANY))
		bpf_map_delete_elem(&go_readers, &key);
	return 0;
}

/* func (sc *http2serverConn) runHandler(rw *http2responseWriter, req *Request, handler func(ResponseWriter, *Request)) */
SEC("uprobe/libgo:net/http.(*http2serverConn).runHandler")
int go_serves_stream(struct pt_regs *regs)
{
	__u64 at = GO_ARGUMENT_2(regs);
	struct identity who;
	__u32 id = 0;

	ON_OWN_STACK(regs);
	if (!in_scope(&who))
		return 0;
	know_goroutines(regs, who.tgid);
	if (go_layouts(regs) & GO_LAYOUT_CONTEXT && read_user(&at, sizeof(at), (void *)at) &&
	    read_user(&at, sizeof(at), (void *)at))
		read_user(&id, sizeof(id), (void *)(at + GO_HTTP2_STREAM_ID));
	serve_stream(who, GO_ARGUMENT_1(regs), id);
	return 0;
}

#endif
