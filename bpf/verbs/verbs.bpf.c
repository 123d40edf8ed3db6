/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Family verbs: the control path by exported functions, the data path by functions of the provider, which have
 * no names. Libraries whose name does not begin with "lib" are none: user space finds where those functions
 * are (otelgpu/families/rdma/discover/providers.py) and when they are worth their probes.
 */
#include "control.h"
#include "polls.h"
#include <bpf/bpf_tracing.h>

RECORD(verbs_queue_pair);
RECORD(verbs_region);
RECORD(verbs_object);
RECORD(verbs_event);
RECORD(verbs_counts);
RECORD(verbs_transfer);
RECORD(verbs_provider);
ENUM(verbs_kind);
ENUM(verbs_api);
ENUM(verbs_operation);
ENUM(verbs_table);
ENUM(verbs_context_offset);
ENUM(call_family);

#define CONTROL                                                     \
	"libibverbs:" VERBS_LIBRARY(NAME) ";libmlx5:" MLX5_LIBRARY( \
		NAME) ";librdmacm:" MANAGER_LIBRARY(NAME)
#define MAKERS "verbs_makers:" PROVIDER_MAKERS(NAME)
#define POSTS  "verbs_posts:post_send,post_recv,post_srq_recv,wr_complete"
#define BUILDS                                                                            \
	"verbs_posts:wr_start,wr_abort,wr_atomic_cmp_swp,wr_atomic_fetch_add,wr_bind_mw," \
	"wr_local_inv,wr_rdma_read,wr_rdma_write,wr_rdma_write_imm,wr_send,wr_send_imm,"  \
	"wr_send_inv,wr_send_tso,wr_set_inline_data,wr_set_inline_data_list,wr_set_sge,"  \
	"wr_set_sge_list"
#define POLLS "verbs_polls:" PROVIDER_POLLS(NAME) "poll_cq"

ENTRIES_AND_RETURNS(call, CONTROL, enter_call, leave_call)
ENTRIES_AND_RETURNS(maker, MAKERS, enter_call, leave_call)
CALL_PROGRAMS(post, POSTS, enter_post, leave_post)
CALL_PROGRAMS(poll, POLLS, enter_poll, leave_poll)

SEC("uprobe/" BUILDS)
int post_built(struct pt_regs *regs)
{
	ON_OWN_STACK(regs);
	build(regs);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
