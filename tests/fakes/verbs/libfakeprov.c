/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A fake provider: queue pairs of one context in a loop, completions as soon as something is posted. Its
 * functions are static and the library is stripped, as real ones are. What makes it fail:
 *   opcode IBV_WR_DRIVER1        the post fails there, with EINVAL
 *   rkey FAKE_REMOTE_ERROR       completes with IBV_WC_REM_ACCESS_ERR and vendor error 0x88
 *   rkey FAKE_BATCH_REFUSED      wr_complete fails
 */
#include "provider.h"
#include "faults.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define NOIPA __attribute__((noipa))
#define PAIRS 4096
#define RING  (1 << 16)

struct queue {
	struct ibv_cq_ex cq; /* begins as struct ibv_cq */
	pthread_mutex_t lock;
	unsigned int head, tail;
	struct ibv_wc ring[RING];
};

struct pair {
	union {
		struct ibv_qp qp;
		struct ibv_qp_ex ex;
	};
	uint32_t peer;
	int signals_all;
	int extended;
	pthread_mutex_t lock;
	unsigned int posted, taken; /* receives */
	uint64_t receives[RING];
	struct ibv_send_wr batch[1024];
	struct ibv_sge batch_bytes[1024];
	int batched, batch_refused;
};

struct context {
	struct verbs_context verbs;
	pthread_mutex_t lock;
	struct pair *pairs[PAIRS];
};

static uint32_t numbers = 100;

static struct context *context_of(struct ibv_context *context)
{
	return (struct context *)((char *)context - offsetof(struct verbs_context, context));
}

static void complete(struct ibv_cq *into, struct ibv_wc what)
{
	struct queue *queue = (struct queue *)into;

	pthread_mutex_lock(&queue->lock);
	if (queue->head - queue->tail < RING)
		queue->ring[queue->head++ % RING] = what;
	pthread_mutex_unlock(&queue->lock);
}

static uint32_t bytes_of(const struct ibv_send_wr *wr)
{
	uint32_t bytes = 0;

	for (int i = 0; i < wr->num_sge; i++)
		bytes += wr->sg_list[i].length;
	return bytes;
}

static void deliver(struct pair *pair, uint32_t bytes)
{
	struct context *context = context_of(pair->qp.context);
	struct pair *peer;

	pthread_mutex_lock(&context->lock);
	peer = context->pairs[pair->peer % PAIRS];
	if (peer && peer->taken != peer->posted)
		complete(peer->qp.recv_cq,
			 (struct ibv_wc){ .wr_id = peer->receives[peer->taken++ % RING],
					  .opcode = IBV_WC_RECV,
					  .byte_len = bytes,
					  .qp_num = peer->qp.qp_num });
	pthread_mutex_unlock(&context->lock);
}

static void carry_out(struct pair *pair, const struct ibv_send_wr *wr)
{
	struct ibv_wc done = { .wr_id = wr->wr_id,
			       .opcode = IBV_WC_SEND,
			       .qp_num = pair->qp.qp_num };

	if (wr->wr.rdma.rkey == FAKE_REMOTE_ERROR && wr->opcode == IBV_WR_RDMA_WRITE) {
		done.status = IBV_WC_REM_ACCESS_ERR;
		done.vendor_err = 0x88;
		complete(pair->qp.send_cq, done);
		return;
	}
	if (wr->opcode == IBV_WR_SEND)
		deliver(pair, bytes_of(wr));
	if (pair->signals_all || wr->send_flags & IBV_SEND_SIGNALED)
		complete(pair->qp.send_cq, done);
}

NOIPA static int fake_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	for (; wr; wr = wr->next) {
		if (wr->opcode == IBV_WR_DRIVER1) {
			*bad = wr;
			return EINVAL;
		}
		carry_out((struct pair *)qp, wr);
	}
	return 0;
}

NOIPA static int fake_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct pair *pair = (struct pair *)qp;
	int status = 0;

	pthread_mutex_lock(&context_of(qp->context)->lock);
	for (; wr; wr = wr->next) {
		if (pair->posted - pair->taken == RING) {
			*bad = wr;
			status = ENOMEM;
			break;
		}
		pair->receives[pair->posted++ % RING] = wr->wr_id;
	}
	pthread_mutex_unlock(&context_of(qp->context)->lock);
	return status;
}

NOIPA static int fake_poll_cq(struct ibv_cq *cq, int room, struct ibv_wc *into)
{
	struct queue *queue = (struct queue *)cq;
	int found = 0;

	pthread_mutex_lock(&queue->lock);
	while (found < room && queue->tail != queue->head)
		into[found++] = queue->ring[queue->tail++ % RING];
	pthread_mutex_unlock(&queue->lock);
	return found;
}

/* -- the extended API */

static struct ibv_send_wr *batch_next(struct ibv_qp_ex *ex, enum ibv_wr_opcode opcode)
{
	struct pair *pair = (struct pair *)ex;
	struct ibv_send_wr *wr = &pair->batch[pair->batched++ % 1024];

	memset(wr, 0, sizeof(*wr));
	wr->wr_id = ex->wr_id;
	wr->send_flags = ex->wr_flags;
	wr->opcode = opcode;
	wr->sg_list = &pair->batch_bytes[wr - pair->batch];
	return wr;
}

NOIPA static void fake_wr_start(struct ibv_qp_ex *ex)
{
	struct pair *pair = (struct pair *)ex;

	pthread_mutex_lock(&pair->lock);
	pair->batched = pair->batch_refused = 0;
}

NOIPA static void fake_wr_send(struct ibv_qp_ex *ex)
{
	batch_next(ex, IBV_WR_SEND);
}

NOIPA static void fake_wr_rdma_write(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t address)
{
	struct ibv_send_wr *wr = batch_next(ex, IBV_WR_RDMA_WRITE);

	wr->wr.rdma.rkey = rkey;
	wr->wr.rdma.remote_addr = address;
	((struct pair *)ex)->batch_refused |= rkey == FAKE_BATCH_REFUSED;
}

NOIPA static void fake_wr_rdma_read(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t address)
{
	(void)rkey;
	(void)address;
	batch_next(ex, IBV_WR_RDMA_READ);
}

static void give(struct ibv_qp_ex *ex, uint32_t bytes)
{
	struct pair *pair = (struct pair *)ex;
	struct ibv_send_wr *wr = &pair->batch[(pair->batched - 1) % 1024];

	wr->num_sge = 1;
	wr->sg_list->length = bytes;
}

NOIPA static void fake_wr_set_sge(struct ibv_qp_ex *ex, uint32_t lkey, uint64_t address,
				  uint32_t bytes)
{
	(void)lkey;
	(void)address;
	give(ex, bytes);
}

NOIPA static void fake_wr_set_sge_list(struct ibv_qp_ex *ex, size_t count,
				       const struct ibv_sge *list)
{
	uint32_t bytes = 0;

	for (size_t i = 0; i < count; i++)
		bytes += list[i].length;
	give(ex, bytes);
}

NOIPA static void fake_wr_set_inline_data(struct ibv_qp_ex *ex, void *address, size_t bytes)
{
	(void)address;
	give(ex, (uint32_t)bytes + 0 * ex->wr_flags);
}

NOIPA static int fake_wr_complete(struct ibv_qp_ex *ex)
{
	struct pair *pair = (struct pair *)ex;
	int refused = pair->batch_refused;

	for (int i = 0; i < pair->batched && !refused; i++)
		carry_out(pair, &pair->batch[i]);
	pthread_mutex_unlock(&pair->lock);
	return refused ? EINVAL : 0;
}

NOIPA static void fake_wr_abort(struct ibv_qp_ex *ex)
{
	pthread_mutex_unlock(&((struct pair *)ex)->lock);
}

/* -- the control path */

NOIPA static struct ibv_qp *make_pair(struct ibv_context *context, struct ibv_cq *send,
				      struct ibv_cq *receive, int type, int signals_all,
				      int extended)
{
	struct context *own = context_of(context);
	struct pair *pair = calloc(1, sizeof(*pair));

	pair->qp.context = context;
	pair->qp.send_cq = send;
	pair->qp.recv_cq = receive;
	pair->qp.qp_type = (enum ibv_qp_type)type;
	pair->qp.qp_num = __atomic_fetch_add(&numbers, 1, __ATOMIC_RELAXED);
	pair->signals_all = signals_all;
	pair->extended = extended;
	pthread_mutex_init(&pair->lock, NULL);
	if (extended) {
		pair->ex.wr_start = fake_wr_start;
		pair->ex.wr_send = fake_wr_send;
		pair->ex.wr_rdma_write = fake_wr_rdma_write;
		pair->ex.wr_rdma_read = fake_wr_rdma_read;
		pair->ex.wr_set_sge = fake_wr_set_sge;
		pair->ex.wr_set_sge_list = fake_wr_set_sge_list;
		pair->ex.wr_set_inline_data = fake_wr_set_inline_data;
		pair->ex.wr_complete = fake_wr_complete;
		pair->ex.wr_abort = fake_wr_abort;
	}
	pthread_mutex_lock(&own->lock);
	own->pairs[pair->qp.qp_num % PAIRS] = pair;
	pthread_mutex_unlock(&own->lock);
	return &pair->qp;
}

NOIPA static struct ibv_qp *fake_create_qp(struct ibv_pd *domain, struct ibv_qp_init_attr *a)
{
	if (a->cap.max_send_wr > RING)
		return NULL;
	return make_pair(domain->context, a->send_cq, a->recv_cq, a->qp_type, a->sq_sig_all, 0);
}

NOIPA static struct ibv_qp *fake_create_qp_ex(struct ibv_context *context,
					      struct ibv_qp_init_attr_ex *a)
{
	return make_pair(context, a->send_cq, a->recv_cq, a->qp_type, a->sq_sig_all,
			 a->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS);
}

static int fake_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *change, int mask)
{
	if (mask & IBV_QP_DEST_QPN)
		((struct pair *)qp)->peer = change->dest_qp_num;
	return mask & IBV_QP_STATE && change->qp_state > IBV_QPS_ERR ? EINVAL : 0;
}

static int fake_destroy_qp(struct ibv_qp *qp)
{
	struct context *own = context_of(qp->context);

	pthread_mutex_lock(&own->lock);
	own->pairs[qp->qp_num % PAIRS] = NULL;
	pthread_mutex_unlock(&own->lock);
	free(qp);
	return 0;
}

static struct ibv_qp_ex *fake_extended(struct ibv_qp *qp)
{
	return ((struct pair *)qp)->extended ? &((struct pair *)qp)->ex : NULL;
}

/* The extended completion queue: start_poll and next_poll show one completion after the other. */
NOIPA static int fake_next_poll(struct ibv_cq_ex *cq)
{
	struct ibv_wc done;

	if (!fake_poll_cq((struct ibv_cq *)cq, 1, &done))
		return ENOENT;
	cq->wr_id = done.wr_id;
	cq->status = done.status;
	return 0;
}

NOIPA static int fake_start_poll(struct ibv_cq_ex *cq, struct ibv_poll_cq_attr *attributes)
{
	struct ibv_wc done;

	(void)attributes;
	if (!fake_poll_cq((struct ibv_cq *)cq, 1, &done))
		return ENOENT;
	cq->wr_id = done.wr_id;
	cq->status = done.status;
	return 0;
}

NOIPA static void fake_end_poll(struct ibv_cq_ex *cq)
{
	(void)cq;
}

static struct ibv_cq *fake_create_cq(struct ibv_context *context, int entries)
{
	struct queue *queue = calloc(1, sizeof(*queue));

	queue->cq.context = context;
	queue->cq.cqe = entries;
	pthread_mutex_init(&queue->lock, NULL);
	return (struct ibv_cq *)queue;
}

NOIPA static struct ibv_cq_ex *fake_create_cq_ex(struct ibv_context *context,
						 struct ibv_cq_init_attr_ex *a)
{
	struct ibv_cq_ex *cq = (struct ibv_cq_ex *)fake_create_cq(context, (int)a->cqe);

	cq->start_poll = fake_start_poll;
	cq->next_poll = fake_next_poll;
	cq->end_poll = fake_end_poll;
	return cq;
}

static void fake_destroy_cq(struct ibv_cq *queue)
{
	free(queue);
}

static struct ibv_context *fake_open(struct ibv_device *device)
{
	struct context *own = calloc(1, sizeof(*own));
	struct ibv_context *context = &own->verbs.context;

	pthread_mutex_init(&own->lock, NULL);
	own->verbs.sz = sizeof(own->verbs);
	own->verbs.create_qp_ex = fake_create_qp_ex;
	own->verbs.create_cq_ex = fake_create_cq_ex;
	context->abi_compat = __VERBS_ABI_IS_EXTENDED;
	context->device = device;
	context->ops.post_send = fake_post_send;
	context->ops.post_recv = fake_post_recv;
	context->ops.poll_cq = fake_poll_cq;
	return context;
}

static void fake_close(struct ibv_context *context)
{
	free(context_of(context));
}

static const struct driver driver = {
	.open = fake_open,
	.close = fake_close,
	.create_cq = fake_create_cq,
	.destroy_cq = fake_destroy_cq,
	.create_qp = fake_create_qp,
	.modify_qp = fake_modify_qp,
	.destroy_qp = fake_destroy_qp,
	.extended = fake_extended,
};

__attribute__((constructor)) static void announce(void)
{
#ifdef FAKE_NO_PROVIDER
	announce_driver(&driver);
#else
	verbs_register_driver_34(&driver);
#endif
}
