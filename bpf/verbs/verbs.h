/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Records of family verbs (ibverbs, rdma_cm). The control path (queue pairs, memory regions, completion
 * queues, events) is reported call by call. The data path is far too hot for that: posts and completions are
 * counted in a map by queue pair, which user space reads once a second and hands on as records of kind
 * VERBS_COUNTS; single work requests are reported only while somebody asks for them.
 *
 * Offsets in the provider's and the library's structures: rdma-core 28 to 64, x86-64.
 */
#ifndef OTELGPU_VERBS_H
#define OTELGPU_VERBS_H

#include "../lib/record.h"

enum verbs_kind {
	VERBS_QUEUE_PAIR = 1, /* struct verbs_queue_pair: made, modified or destroyed */
	VERBS_REGION = 2,     /* struct verbs_region: memory registered or deregistered */
	VERBS_OBJECT = 3,   /* struct verbs_object: contexts, completion queues, domains, handles */
	VERBS_EVENT = 4,    /* struct verbs_event: of a device, completion channel or rdma_cm */
	VERBS_COUNTS = 5,   /* struct verbs_counts: read from a map, not from the ring */
	VERBS_TRANSFER = 6, /* struct verbs_transfer: one work request, on demand */
	VERBS_PROVIDER = 7, /* struct verbs_provider: for user space alone, reports no fact */
};

/* Whose calls they are, in samples of a profile: lib/call_stacks.h. */
enum call_family { CALL_FAMILY = 3 };

#define VERBS_DEVICE_BYTES 32

/* Made, modified, destroyed. What a call does not set keeps its last value; zero where none is known. */
struct verbs_queue_pair {
	struct record_head head;
	__u64 queue_pair; /* struct ibv_qp *, an address in the process */
	__u64 context;	  /* struct ibv_context * */
	__u64 send_queue; /* its completion queues: struct ibv_cq * */
	__u64 receive_queue;
	__u32 number;	   /* qp_num */
	__u32 peer_number; /* dest_qp_num; 0 until ready to receive, and of datagrams */
	__u8 peer_gid[16];
	__u32 attributes; /* attr_mask of the modify; 0 of others */
	__s32 status;	  /* errno value that the call gave; 0 for success */
	__u16 peer_lid;
	__u16 api;  /* enum verbs_api */
	__u8 state; /* enum ibv_qp_state after the call */
	__u8 type;  /* enum ibv_qp_type */
	__u8 port;
	__u8 local_gid_index;
	__u8 path_mtu; /* enum ibv_mtu */
	__u8 timeout;  /* of an acknowledgement: 4.096 us * 2^n */
	__u8 retries;
	__u8 rnr_retries;
	__u8 destroyed;
	__u8 has_route; /* peer_gid is one */
	__u8 reserved[2];
	char device[VERBS_DEVICE_BYTES]; /* "mlx5_0" */
};

struct verbs_region {
	struct record_head head;
	__u64 region;  /* struct ibv_mr * */
	__u64 context; /* struct ibv_context * */
	__u64 address;
	__u64 bytes;
	__u32 access; /* enum ibv_access_flags */
	__s32 status;
	__u16 api;
	__u8 removed;
	__u8 dmabuf; /* memory of a device, by a file descriptor */
	__u8 reserved[4];
	char device[VERBS_DEVICE_BYTES];
};

struct verbs_object {
	struct record_head head;
	__u64 object; /* what the call made or ended */
	__u64 context;
	__u64 detail; /* completion queues: entries; connections: struct rdma_cm_id * */
	__s32 status;
	__u16 api;
	__u8 removed;
	__u8 reserved;
	char device[VERBS_DEVICE_BYTES];
};

struct verbs_event {
	struct record_head head;
	__u64 object; /* queue pair, completion queue or rdma_cm_id it is about; 0: a port */
	__u64 context;
	__u32 event;  /* enum ibv_event_type, or enum rdma_cm_event_type where api is of rdma_cm */
	__u32 number; /* queue pair or port */
	__s32 status;
	__u16 api;
	__u8 reserved[2];
	char device[VERBS_DEVICE_BYTES];
};

/* What a table of a provider's functions belongs to. */
enum verbs_table {
	VERBS_TABLE_CONTEXT = 0,
	VERBS_TABLE_QUEUE_PAIR = 1,
	VERBS_TABLE_COMPLETION_QUEUE = 2,
};

#define VERBS_FUNCTIONS 20

/*
 * Functions that a structure of the process points at, which inline calls of the API go to: function n is
 * the one of number first_api + n in enum verbs_api. Whether they are what they seem to be is user space's
 * to judge.
 */
struct verbs_provider {
	struct record_head head;
	__u64 object;
	__u64 functions[VERBS_FUNCTIONS];
	__u16 first_api;
	__u8 table; /* enum verbs_table */
	__u8 reserved[5];
};

/* Work requests by what they do. */
enum verbs_operation {
	VERBS_SEND = 0,
	VERBS_WRITE = 1,
	VERBS_READ = 2,
	VERBS_ATOMIC = 3,
	VERBS_OTHER = 4, /* memory windows, local invalidation, TSO */
	VERBS_RECEIVE = 5,
	VERBS_OPERATION_COUNT = 6,
};

#define VERBS_STATUSES	24 /* enum ibv_wc_status; higher numbers are counted in the last */
#define VERBS_LATENCIES 32 /* powers of two of nanoseconds: bucket n counts [2^n, 2^(n+1)) */

/* number 0: a shared receive queue, by its address; queue_pair 0: completions of one that is not known. */
struct verbs_counted_key {
	__u64 queue_pair; /* struct ibv_qp * */
	__u32 tgid;
	__u32 number;
};

/* Of one queue pair, since it was first seen. */
struct verbs_counted {
	__u64 work_requests[VERBS_OPERATION_COUNT];
	__u64 bytes[VERBS_OPERATION_COUNT];
	__u64 posts; /* calls (of a chain of work requests each), or doorbells of the extended API */
	__u64 posts_failed;
	__u64 signalled; /* send work requests that ask for a completion */
	__u64 inlined;
	__u64 uncounted; /* work requests at the end of chains that were too long to read (at least) */
	__u64 completions;     /* of successes and failures, while polls were observed */
	__u64 completed_bytes; /* byte_len of receives */
	__u64 statuses[VERBS_STATUSES];
	__u64 latencies
		[VERBS_LATENCIES]; /* post to completion seen, of signalled send work requests */
	__u64 latency_sum_ns;
	__u64 last_error_ns; /* CLOCK_MONOTONIC */
	__u64 observed_post_ns; /* how long posts were observed, written by user space when it is read */
	__u64 observed_poll_ns; /* how long polls were */
	__u32 vendor_error;	/* of the last failure */
	__u8 signals_all;	/* every send work request asks for a completion */
	__u8 destroyed;		/* nothing is added any more */
	__u8 reserved[2];
};

/* An entry of the map as user space hands it on; head: of when it was read, kind VERBS_COUNTS. */
struct verbs_counts {
	struct record_head head;
	struct verbs_counted_key key;
	struct verbs_counted counted;
};

struct verbs_transfer {
	struct record_head head; /* time: posted; duration: to the completion that was seen */
	__u64 queue_pair;
	__u64 id; /* wr_id */
	__u64 bytes;
	__u32 number;
	__u32 vendor_error;
	__u16 status;	/* enum ibv_wc_status */
	__u8 operation; /* enum verbs_operation */
	__u8 reserved[5];
};

#endif
