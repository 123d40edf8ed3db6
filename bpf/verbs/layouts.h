/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Structures of libibverbs and librdmacm, as far as they are read: infiniband/verbs.h and rdma/rdma_cma.h, the
 * same in rdma-core 28 to 64 on x86-64 (libibverbs keeps them: they are its ABI). tests/fakes/verbs compares
 * them with the headers that are installed.
 */
#ifndef OTELGPU_VERBS_LAYOUTS_H
#define OTELGPU_VERBS_LAYOUTS_H

#include "../lib/types.h"

#define LAYOUT(type, member, offset) \
	_Static_assert(__builtin_offsetof(struct type, member) == (offset), #type "." #member)

/*
 * struct ibv_context: where its device and its functions are; constructors lie before it, in struct
 * verbs_context. User space reads them too, of contexts that were there before it.
 */
enum verbs_context_offset {
	CONTEXT_DEVICE = 0,
	CONTEXT_POLL_CQ = 96,
	CONTEXT_POST_SRQ_RECV = 168,
	CONTEXT_POST_SEND = 208,
	CONTEXT_POST_RECV = 216,
	CONTEXT_ABI_COMPAT = 320,
	CONTEXT_CREATE_QP_EX = -56,
	CONTEXT_CREATE_CQ_EX = -120,
};
#define CONTEXT_IS_EXTENDED (~0ULL) /* abi_compat: there is a verbs_context */

#define DEVICE_NAME 24 /* struct ibv_device */

#define PAIR_FUNCTIONS	184 /* struct ibv_qp_ex: wr_atomic_cmp_swp to wr_abort */
#define QUEUE_FUNCTIONS 144 /* struct ibv_cq_ex: start_poll, next_poll */
#define QUEUE_STATUS	132
#define QUEUE_ID	136

/* struct ibv_qp */
struct pair {
	__u64 context;
	__u64 qp_context;
	__u64 domain;
	__u64 send_queue;
	__u64 receive_queue;
	__u64 shared_receive_queue;
	__u32 handle;
	__u32 number;
	__u32 state;
	__u32 type;
};
LAYOUT(pair, number, 52);

/* The end of struct ibv_qp_ex's data: what an extended work request takes. */
struct pair_words {
	__u64 id;
	__u32 flags;
	__u32 padding;
};
#define PAIR_WORDS 168

/* struct ibv_qp_init_attr, struct ibv_qp_init_attr_ex: as far as both are alike */
struct pair_attributes {
	__u64 qp_context;
	__u64 send_queue;
	__u64 receive_queue;
	__u64 shared_receive_queue;
	__u32 capacities[5];
	__u32 type;
	__u32 signals_all;
	__u32 mask;
};
LAYOUT(pair_attributes, signals_all, 56);

/* struct ibv_qp_attr, struct ibv_ah_attr within it */
struct pair_change {
	__u32 state;
	__u32 current_state;
	__u32 path_mtu;
	__u32 migration;
	__u32 qkey;
	__u32 receive_psn;
	__u32 send_psn;
	__u32 peer_number;
	__u32 access;
	__u32 capacities[5];
	__u8 peer_gid[16];
	__u32 flow_label;
	__u8 local_gid_index;
	__u8 hop_limit;
	__u8 traffic_class;
	__u8 padding;
	__u16 peer_lid;
	__u8 service_level;
	__u8 source_path_bits;
	__u8 rate;
	__u8 has_route;
	__u8 path_port;
	__u8 padding_2;
	__u8 alternative[32];
	__u16 key_indexes[2];
	__u8 draining[2];
	__u8 reads[2];
	__u8 rnr_timer;
	__u8 port;
	__u8 timeout;
	__u8 retries;
	__u8 rnr_retries;
	__u8 rest[3];
};
LAYOUT(pair_change, peer_number, 28);
LAYOUT(pair_change, peer_gid, 56);
LAYOUT(pair_change, peer_lid, 80);
LAYOUT(pair_change, has_route, 85);
LAYOUT(pair_change, port, 129);
LAYOUT(pair_change, rnr_retries, 132);

/* enum ibv_qp_attr_mask */
enum {
	CHANGES_PORT = 1 << 5,
	CHANGES_PATH = 1 << 7,
	CHANGES_PATH_MTU = 1 << 8,
	CHANGES_TIMEOUT = 1 << 9,
	CHANGES_RETRIES = 1 << 10,
	CHANGES_RNR_RETRIES = 1 << 11,
	CHANGES_PEER = 1 << 20,
};

/* struct ibv_mr */
struct region {
	__u64 context;
	__u64 domain;
	__u64 address;
	__u64 bytes;
};

/* What struct ibv_send_wr and struct ibv_recv_wr begin with; the latter ends before the operation. */
struct request {
	__u64 id;
	__u64 next;
	__u64 list;
	__s32 entries;
	__u32 operation;
	__u32 flags;
	__u32 immediate;
};
LAYOUT(request, operation, 28);

#define FLAG_SIGNALLED 2 /* enum ibv_send_flags */
#define FLAG_INLINE    8

/* enum ibv_wr_opcode */
enum {
	OPCODE_WRITE = 0,
	OPCODE_WRITE_IMMEDIATE = 1,
	OPCODE_SEND = 2,
	OPCODE_SEND_IMMEDIATE = 3,
	OPCODE_READ = 4,
	OPCODE_COMPARE_AND_SWAP = 5,
	OPCODE_FETCH_AND_ADD = 6,
	OPCODE_SEND_INVALIDATE = 9,
	OPCODE_ATOMIC_WRITE = 15,
};

/* struct ibv_sge; struct ibv_data_buf has its length there too */
struct scattered {
	__u64 address;
	__u32 bytes;
	__u32 key;
};

/* struct ibv_wc */
struct completion {
	__u64 id;
	__u32 status;
	__u32 operation;
	__u32 vendor_error;
	__u32 bytes;
	__u32 immediate;
	__u32 number;
	__u32 peer_number;
	__u32 flags;
	__u64 path;
};
LAYOUT(completion, number, 28);
_Static_assert(sizeof(struct completion) == 48, "struct ibv_wc");

#define COMPLETES_RECEIVE 128 /* IBV_WC_RECV: this bit of the operation */

/* struct ibv_async_event */
struct async_event {
	__u64 element;
	__u32 type;
	__u32 padding;
};
#define EVENT_DEVICE_FATAL \
	8 /* enum ibv_event_type: of no element, as ports' are; see is_of_pair() */

/* struct rdma_cm_id, struct rdma_cm_event */
#define MANAGED_CONTEXT 0
#define MANAGED_PAIR	24
struct managed_event {
	__u64 id;
	__u64 listener;
	__u32 type;
	__s32 status;
};

#endif
