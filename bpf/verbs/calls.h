/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Every function that family verbs observes. The BPF programs and the probe targets come from these tables.
 *
 *   CALL(symbol, shape)   shape: enum verbs_shape without SHAPE_
 *
 * ibv_reg_mr and ibv_reg_mr_iova jump to ibv_reg_mr_iova2 since rdma-core 28, rdma_create_qp calls
 * rdma_create_qp_ex, which calls ibv_create_qp: of calls within one another that make the same, the outermost
 * counts (see is_part_of() in control.h).
 *
 * Signatures: infiniband/verbs.h, infiniband/mlx5dv.h and rdma/rdma_cma.h of rdma-core 28 to 64.
 */
#ifndef OTELGPU_VERBS_CALLS_H
#define OTELGPU_VERBS_CALLS_H

enum verbs_shape {
	SHAPE_CONTEXT_OPENED = 0,  /* (…) -> context */
	SHAPE_CONTEXT_CLOSED = 1,  /* (context) */
	SHAPE_MADE_IN_CONTEXT = 2, /* (context, number …) -> object */
	SHAPE_MADE_IN_DOMAIN = 3,  /* (domain …) -> object */
	SHAPE_ENDED = 4,	   /* (object), whose first word is its context */
	SHAPE_PAIR_MADE = 5,	   /* (domain or context, attributes …) -> queue pair */
	SHAPE_PAIR_MADE_BY_ID = 6, /* (id …), whose queue pair it becomes */
	SHAPE_PAIR_MODIFIED = 7,   /* (queue pair, attributes, mask) */
	SHAPE_PAIR_EXTENDED = 8,   /* (queue pair) -> the same with its extended functions */
	SHAPE_PAIR_DESTROYED = 9,  /* (queue pair) */
	SHAPE_REGION_MADE = 10,	   /* (domain, address, bytes, access) -> region */
	SHAPE_REGION_MADE_AT = 11, /* (domain, address, bytes, address there, access) -> region */
	SHAPE_REGION_DMABUF =
		12, /* (domain, offset, bytes, address there, descriptor, access) -> region */
	SHAPE_REGION_ENDED = 13,     /* (region) */
	SHAPE_EVENT_COMPLETION = 14, /* (channel, queue *, …) */
	SHAPE_EVENT_ASYNC = 15,	     /* (context, event *) */
	SHAPE_EVENT_MANAGER = 16,    /* (channel, event **) */
	SHAPE_MANAGED = 17,	     /* (id …) */
	SHAPE_QUEUE_MADE = 18,	     /* (context, attributes) -> extended completion queue */
};

/* Exported functions, of the default version of each name. */
#define VERBS_LIBRARY(CALL)                      \
	CALL(ibv_open_device, CONTEXT_OPENED)    \
	CALL(ibv_close_device, CONTEXT_CLOSED)   \
	CALL(ibv_alloc_pd, MADE_IN_CONTEXT)      \
	CALL(ibv_dealloc_pd, ENDED)              \
	CALL(ibv_create_cq, MADE_IN_CONTEXT)     \
	CALL(ibv_destroy_cq, ENDED)              \
	CALL(ibv_create_ah, MADE_IN_DOMAIN)      \
	CALL(ibv_destroy_ah, ENDED)              \
	CALL(ibv_create_srq, MADE_IN_DOMAIN)     \
	CALL(ibv_destroy_srq, ENDED)             \
	CALL(ibv_create_qp, PAIR_MADE)           \
	CALL(ibv_modify_qp, PAIR_MODIFIED)       \
	CALL(ibv_qp_to_qp_ex, PAIR_EXTENDED)     \
	CALL(ibv_destroy_qp, PAIR_DESTROYED)     \
	CALL(ibv_reg_mr, REGION_MADE)            \
	CALL(ibv_reg_mr_iova, REGION_MADE_AT)    \
	CALL(ibv_reg_mr_iova2, REGION_MADE_AT)   \
	CALL(ibv_reg_dmabuf_mr, REGION_DMABUF)   \
	CALL(ibv_dereg_mr, REGION_ENDED)         \
	CALL(ibv_get_cq_event, EVENT_COMPLETION) \
	CALL(ibv_get_async_event, EVENT_ASYNC)

#define MLX5_LIBRARY(CALL)                       \
	CALL(mlx5dv_open_device, CONTEXT_OPENED) \
	CALL(mlx5dv_create_qp, PAIR_MADE)

#define MANAGER_LIBRARY(CALL)                    \
	CALL(rdma_create_qp, PAIR_MADE_BY_ID)    \
	CALL(rdma_create_qp_ex, PAIR_MADE_BY_ID) \
	CALL(rdma_destroy_qp, MANAGED)           \
	CALL(rdma_resolve_addr, MANAGED)         \
	CALL(rdma_connect, MANAGED)              \
	CALL(rdma_accept, MANAGED)               \
	CALL(rdma_disconnect, MANAGED)           \
	CALL(rdma_get_cm_event, EVENT_MANAGER)

/* Constructors of a provider that inline functions of the API call. */
#define PROVIDER_MAKERS(CALL)         \
	CALL(create_qp_ex, PAIR_MADE) \
	CALL(create_cq_ex, QUEUE_MADE)

#define VERBS_CALLS(CALL) \
	VERBS_LIBRARY(CALL) MLX5_LIBRARY(CALL) MANAGER_LIBRARY(CALL) PROVIDER_MAKERS(CALL)

/* Of the data path, by the order in struct ibv_context (as read_context_functions() has it). */
#define PROVIDER_DATA(CALL) CALL(post_send) CALL(post_recv) CALL(poll_cq) CALL(post_srq_recv)

/* In the order of struct ibv_qp_ex from offset 184 on. */
/* clang-format off */
#define PROVIDER_EXTENDED(CALL) \
	CALL(wr_atomic_cmp_swp) CALL(wr_atomic_fetch_add) CALL(wr_bind_mw) CALL(wr_local_inv) \
	CALL(wr_rdma_read) CALL(wr_rdma_write) CALL(wr_rdma_write_imm) CALL(wr_send) \
	CALL(wr_send_imm) CALL(wr_send_inv) CALL(wr_send_tso) CALL(wr_set_ud_addr) \
	CALL(wr_set_xrc_srqn) CALL(wr_set_inline_data) CALL(wr_set_inline_data_list) \
	CALL(wr_set_sge) CALL(wr_set_sge_list) CALL(wr_start) CALL(wr_complete) CALL(wr_abort)
/* clang-format on */

/* In the order of struct ibv_cq_ex from offset 144 on. */
#define PROVIDER_POLLS(CALL) CALL(start_poll) CALL(next_poll)

#define API_OF(symbol, ...) API_##symbol,
enum verbs_api {
	VERBS_CALLS(API_OF) PROVIDER_DATA(API_OF) PROVIDER_EXTENDED(API_OF) PROVIDER_POLLS(API_OF)
		API_COUNT
};

#define SHAPE_OF(symbol, shape) [API_##symbol] = SHAPE_##shape,
#define API_CALLS		API_post_send /* those that have a shape come first */

#endif
