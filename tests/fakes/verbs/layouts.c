/* SPDX-License-Identifier: Apache-2.0 */
/* That bpf/verbs/layouts.h says what the installed headers say: compiled, never run. */
#include <infiniband/verbs.h>

#undef bool
#undef true
#undef false
#undef NULL
#include "../../../bpf/verbs/layouts.h"
#include "../../../bpf/verbs/verbs.h"

#define AT(real, theirs, number) \
	_Static_assert(__builtin_offsetof(struct real, theirs) == (number), #real "." #theirs)
#define SAME(real, theirs, own, ours) AT(real, theirs, __builtin_offsetof(struct own, ours))

AT(ibv_context, device, CONTEXT_DEVICE);
AT(ibv_context, ops.poll_cq, CONTEXT_POLL_CQ);
AT(ibv_context, ops.post_srq_recv, CONTEXT_POST_SRQ_RECV);
AT(ibv_context, ops.post_send, CONTEXT_POST_SEND);
AT(ibv_context, ops.post_recv, CONTEXT_POST_RECV);
AT(ibv_context, abi_compat, CONTEXT_ABI_COMPAT);
AT(verbs_context, context,
   __builtin_offsetof(struct verbs_context, create_qp_ex) - CONTEXT_CREATE_QP_EX);
AT(verbs_context, context,
   __builtin_offsetof(struct verbs_context, create_cq_ex) - CONTEXT_CREATE_CQ_EX);
AT(ibv_device, name, DEVICE_NAME);
AT(ibv_qp_ex, wr_id, PAIR_WORDS);
AT(ibv_qp_ex, wr_atomic_cmp_swp, PAIR_FUNCTIONS);
AT(ibv_qp_ex, wr_abort, PAIR_FUNCTIONS + 8 * (VERBS_FUNCTIONS - 1));
AT(ibv_cq_ex, start_poll, QUEUE_FUNCTIONS);
AT(ibv_cq_ex, next_poll, QUEUE_FUNCTIONS + 8);
AT(ibv_cq_ex, status, QUEUE_STATUS);
AT(ibv_cq_ex, wr_id, QUEUE_ID);
SAME(ibv_qp, send_cq, pair, send_queue);
SAME(ibv_qp, recv_cq, pair, receive_queue);
SAME(ibv_qp, qp_num, pair, number);
SAME(ibv_qp, state, pair, state);
SAME(ibv_qp, qp_type, pair, type);
SAME(ibv_qp_init_attr, sq_sig_all, pair_attributes, signals_all);
SAME(ibv_qp_init_attr_ex, sq_sig_all, pair_attributes, signals_all);
SAME(ibv_qp_attr, path_mtu, pair_change, path_mtu);
SAME(ibv_qp_attr, dest_qp_num, pair_change, peer_number);
SAME(ibv_qp_attr, ah_attr.grh.dgid, pair_change, peer_gid);
SAME(ibv_qp_attr, ah_attr.grh.sgid_index, pair_change, local_gid_index);
SAME(ibv_qp_attr, ah_attr.dlid, pair_change, peer_lid);
SAME(ibv_qp_attr, ah_attr.is_global, pair_change, has_route);
SAME(ibv_qp_attr, port_num, pair_change, port);
SAME(ibv_qp_attr, timeout, pair_change, timeout);
SAME(ibv_qp_attr, retry_cnt, pair_change, retries);
SAME(ibv_qp_attr, rnr_retry, pair_change, rnr_retries);
SAME(ibv_mr, addr, region, address);
SAME(ibv_mr, length, region, bytes);
SAME(ibv_send_wr, next, request, next);
SAME(ibv_send_wr, num_sge, request, entries);
SAME(ibv_send_wr, opcode, request, operation);
SAME(ibv_send_wr, send_flags, request, flags);
SAME(ibv_recv_wr, num_sge, request, entries);
SAME(ibv_sge, length, scattered, bytes);
SAME(ibv_data_buf, length, scattered, bytes);
SAME(ibv_wc, status, completion, status);
SAME(ibv_wc, opcode, completion, operation);
SAME(ibv_wc, vendor_err, completion, vendor_error);
SAME(ibv_wc, byte_len, completion, bytes);
SAME(ibv_wc, qp_num, completion, number);
SAME(ibv_async_event, event_type, async_event, type);
_Static_assert(sizeof(struct ibv_wc) == sizeof(struct completion), "ibv_wc");
_Static_assert(IBV_WR_RDMA_READ == OPCODE_READ && IBV_WR_SEND_WITH_INV == OPCODE_SEND_INVALIDATE,
	       "ibv_wr_opcode");
_Static_assert(IBV_SEND_SIGNALED == FLAG_SIGNALLED && IBV_SEND_INLINE == FLAG_INLINE,
	       "ibv_send_flags");
_Static_assert(IBV_QP_PORT == CHANGES_PORT && IBV_QP_AV == CHANGES_PATH &&
		       IBV_QP_PATH_MTU == CHANGES_PATH_MTU && IBV_QP_TIMEOUT == CHANGES_TIMEOUT &&
		       IBV_QP_RETRY_CNT == CHANGES_RETRIES &&
		       IBV_QP_RNR_RETRY == CHANGES_RNR_RETRIES && IBV_QP_DEST_QPN == CHANGES_PEER,
	       "ibv_qp_attr_mask");
_Static_assert(IBV_WC_RECV == COMPLETES_RECEIVE, "ibv_wc_opcode");
