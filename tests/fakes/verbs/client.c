/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Does on command what programs do with verbs, and keeps count of it: a line on stdin is a command, a line on stdout
 * answers it. `truth` gives what each queue pair did, as JSON.
 *
 *   open, same N, pair [all], pair_ex, post N, chain N, zero N, inline N, one N, fail N, receive N, extended N, refuse N, poll N,
 *   error N, threads T N, churn N, hijack, domain, event, time_posts N, time_polls N, truth, quit
 */
#define _GNU_SOURCE
#include <infiniband/verbs.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "faults.h"

#define NOIPA __attribute__((noipa))
#define PAIRS 1024
#define SIZES 7

struct truth {
	struct ibv_qp *qp;
	uint32_t number;
	int signals_all, destroyed;
	_Atomic uint64_t send, write, read, receive, send_bytes, write_bytes, read_bytes,
		receive_bytes;
	_Atomic uint64_t posts, failed, signalled, inlined, completions, received_bytes, errors;
};

static struct ibv_context *context;
static struct ibv_pd *domain;
static struct ibv_cq *queue;
static struct ibv_mr *region;
static char memory[1 << 16];
static struct truth truths[PAIRS];
static atomic_int pairs;
static uint32_t next_number_index[1 << 16];

static struct truth *of_number(uint32_t number)
{
	return &truths[next_number_index[number & 0xffff]];
}

static struct truth *remember(struct ibv_qp *qp, int signals_all)
{
	int place = atomic_fetch_add(&pairs, 1) % PAIRS;
	struct truth *truth = &truths[place];

	memset(truth, 0, sizeof(*truth));
	truth->qp = qp;
	truth->number = qp->qp_num;
	truth->signals_all = signals_all;
	next_number_index[qp->qp_num & 0xffff] = (uint32_t)place;
	return truth;
}

static void change(struct ibv_qp *qp, enum ibv_qp_state state, uint32_t peer)
{
	struct ibv_qp_attr attributes = { .qp_state = state,
					  .port_num = 1,
					  .path_mtu = IBV_MTU_4096,
					  .dest_qp_num = peer,
					  .timeout = 14,
					  .retry_cnt = 7,
					  .rnr_retry = 6 };
	int mask = IBV_QP_STATE;

	attributes.ah_attr.is_global = 1;
	attributes.ah_attr.grh.sgid_index = 3;
	memcpy(attributes.ah_attr.grh.dgid.raw, "\xfd\0\0\0\0\0\0\0\0\0\xff\xff\x0a\0\0\1", 16);
	if (state == IBV_QPS_INIT)
		mask |= IBV_QP_PORT;
	if (state == IBV_QPS_RTR)
		mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN;
	if (state == IBV_QPS_RTS)
		mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY;
	if (ibv_modify_qp(qp, &attributes, mask))
		abort();
}

static void connect_pair(struct truth *truth, uint32_t peer)
{
	change(truth->qp, IBV_QPS_INIT, 0);
	change(truth->qp, IBV_QPS_RTR, peer);
	change(truth->qp, IBV_QPS_RTS, 0);
}

static struct truth *make(int signals_all, int extended)
{
	struct ibv_qp_init_attr plain = {
		.send_cq = queue, .recv_cq = queue, .qp_type = IBV_QPT_RC, .sq_sig_all = signals_all
	};
	struct ibv_qp_init_attr_ex ex = { .send_cq = queue,
					  .recv_cq = queue,
					  .qp_type = IBV_QPT_RC,
					  .sq_sig_all = signals_all,
					  .pd = domain,
					  .comp_mask = IBV_QP_INIT_ATTR_PD |
						       IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
					  .send_ops_flags = IBV_QP_EX_WITH_SEND };

	return remember(extended ? ibv_create_qp_ex(context, &ex) : ibv_create_qp(domain, &plain),
			signals_all);
}

/* A chain of `count`, of which those from `bad` on are not taken; < 0: all are. */
static void post(struct truth *truth, int count, int bad, unsigned int flags, int sizes)
{
	struct ibv_send_wr *chain = calloc((size_t)count, sizeof(*chain)), *refused = NULL;
	struct ibv_sge *list = calloc((size_t)count * 3, sizeof(*list));
	int status;

	for (int i = 0; i < count; i++) {
		struct ibv_send_wr *wr = &chain[i];
		int entries = sizes ? i % 3 + 1 : 0, taken = bad < 0 || i < bad;
		uint64_t bytes = 0;

		for (int e = 0; e < entries; e++) {
			list[3 * i + e].addr = (uintptr_t)memory;
			list[3 * i + e].length = (uint32_t)(sizes * (i % SIZES) + e);
			list[3 * i + e].lkey = region->lkey;
			bytes += list[3 * i + e].length;
		}
		wr->wr_id = (uint64_t)i;
		wr->next = i + 1 < count ? wr + 1 : NULL;
		wr->sg_list = &list[3 * i];
		wr->num_sge = entries;
		wr->send_flags = flags | (i % 4 == 3 ? (unsigned int)IBV_SEND_SIGNALED : 0);
		wr->opcode = i == bad	  ? IBV_WR_DRIVER1
			     : i % 5 == 4 ? IBV_WR_RDMA_READ
			     : i % 2	  ? IBV_WR_RDMA_WRITE
					  : IBV_WR_SEND;
		if (!taken)
			continue;
		if (wr->opcode == IBV_WR_SEND) {
			truth->send++;
			truth->send_bytes += bytes;
		} else if (wr->opcode == IBV_WR_RDMA_WRITE) {
			truth->write++;
			truth->write_bytes += bytes;
		} else {
			truth->read++;
			truth->read_bytes += bytes;
		}
		truth->signalled += truth->signals_all || wr->send_flags & IBV_SEND_SIGNALED;
		truth->inlined += (wr->send_flags & IBV_SEND_INLINE) != 0;
	}
	status = ibv_post_send(truth->qp, chain, &refused);
	if ((status != 0) != (bad >= 0) || (status && refused != &chain[bad]))
		abort();
	truth->posts++;
	truth->failed += status != 0;
	free(chain);
	free(list);
}

static void post_one(struct truth *truth, uint64_t id, unsigned int flags, uint32_t bytes,
		     uint32_t rkey)
{
	struct ibv_sge entry = { .addr = (uintptr_t)memory, .length = bytes, .lkey = region->lkey };
	struct ibv_send_wr wr = { .wr_id = id,
				  .sg_list = &entry,
				  .num_sge = 1,
				  .opcode = IBV_WR_RDMA_WRITE,
				  .send_flags = flags };
	struct ibv_send_wr *refused;

	wr.wr.rdma.rkey = rkey;
	if (ibv_post_send(truth->qp, &wr, &refused))
		abort();
	truth->posts++;
	truth->write++;
	truth->write_bytes += bytes;
	truth->signalled += truth->signals_all || flags & IBV_SEND_SIGNALED;
}

static void receive(struct truth *truth, int count)
{
	struct ibv_sge list[2] = { { .length = 4096 }, { .length = 11 } };
	struct ibv_recv_wr chain[2] = { { .sg_list = list, .num_sge = 2 },
					{ .sg_list = list, .num_sge = 1 } };
	struct ibv_recv_wr *refused;

	chain[0].next = &chain[1];
	for (int i = 0; i < count; i++) {
		if (ibv_post_recv(truth->qp, chain, &refused))
			abort();
		truth->posts++;
		truth->receive += 2;
		truth->receive_bytes += 4096 + 11 + 4096;
	}
}

static void extended(struct truth *truth, int count, int refused)
{
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(truth->qp);
	struct ibv_sge list[2] = { { .length = 100 }, { .length = 3 } };

	for (int i = 0; i < count; i++) {
		ibv_wr_start(ex);
		ex->wr_id = (uint64_t)i;
		ex->wr_flags = i % 2 ? IBV_SEND_SIGNALED : 0;
		ibv_wr_send(ex);
		ibv_wr_set_sge(ex, region->lkey, (uintptr_t)memory, 17);
		ex->wr_flags = 0;
		ibv_wr_rdma_write(ex, refused ? FAKE_BATCH_REFUSED : 1, 0);
		ibv_wr_set_sge_list(ex, 2, list);
		ex->wr_flags = IBV_SEND_INLINE;
		ibv_wr_send(ex);
		ibv_wr_set_inline_data(ex, memory, 5);
		ex->wr_flags = 0;
		ibv_wr_rdma_read(ex, 1, 0);
		if (i % 11 == 10) {
			ibv_wr_abort(ex);
			continue;
		}
		truth->posts++;
		if (ibv_wr_complete(ex)) {
			truth->failed++;
			continue;
		}
		truth->send += 2;
		truth->send_bytes += 17 + 5;
		truth->write += 1;
		truth->write_bytes += 103;
		truth->read += 1;
		truth->inlined += 1;
		truth->signalled += truth->signals_all ? 4 : (uint64_t)(i % 2);
	}
}

static void poll_all(int more)
{
	struct ibv_wc done[16];
	int found;

	while ((found = ibv_poll_cq(queue, 16, done)) > 0 || more-- > 0)
		for (int i = 0; i < found; i++) {
			struct truth *truth = of_number(done[i].qp_num);

			truth->completions++;
			if (done[i].status)
				truth->errors++;
			else if (done[i].opcode & IBV_WC_RECV)
				truth->received_bytes += done[i].byte_len;
		}
}

struct job {
	struct truth *truth;
	int count;
};

static void *work(void *argument)
{
	struct job *job = argument;

	for (int i = 0; i < job->count; i++)
		post(job->truth, i % 3 + 1, i % 7 == 6 ? i % 3 : -1, i % 2 ? IBV_SEND_INLINE : 0,
		     100);
	return NULL;
}

static void threads(int count, int posts)
{
	pthread_t ids[64];
	struct job jobs[64];

	for (int i = 0; i < count; i++) {
		jobs[i] = (struct job){ &truths[i % pairs], posts };
		pthread_create(&ids[i], NULL, work, &jobs[i]);
	}
	for (int i = 0; i < count; i++)
		pthread_join(ids[i], NULL);
}

/* Queue pairs come and go while another thread posts. */
static void churn(int count)
{
	struct job job = { &truths[0], 50 * count };
	pthread_t id;

	pthread_create(&id, NULL, work, &job);
	for (int i = 0; i < count; i++) {
		struct truth *truth = make(1, 0);

		connect_pair(truth, truth->number);
		post(truth, i % 5 + 1, -1, 0, 10);
		poll_all(0);
		ibv_destroy_qp(truth->qp);
		truth->destroyed = 1;
	}
	pthread_join(id, NULL);
}

NOIPA static int hijacked(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	(void)qp;
	(void)wr;
	(void)bad;
	return 0;
}

static double now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t); /* traps count, waiting for a core does not */
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void report_truth(void)
{
	printf("[");
	for (int i = 0; i < pairs && i < PAIRS; i++) {
		struct truth *t = &truths[i];

		printf("%s{\"number\": %u, \"destroyed\": %d, \"send\": %lu, \"write\": %lu, "
		       "\"read\": %lu, \"receive\": %lu, "
		       "\"send_bytes\": %lu, \"write_bytes\": %lu, \"read_bytes\": %lu, "
		       "\"receive_bytes\": %lu, "
		       "\"posts\": %lu, \"posts_failed\": %lu, \"signalled\": %lu, \"inlined\": "
		       "%lu, "
		       "\"completions\": %lu, \"completed_bytes\": %lu, \"errors\": %lu}",
		       i ? ", " : "", t->number, t->destroyed, t->send, t->write, t->read,
		       t->receive, t->send_bytes, t->write_bytes, t->read_bytes, t->receive_bytes,
		       t->posts, t->failed, t->signalled, t->inlined, t->completions,
		       t->received_bytes, t->errors);
	}
	printf("]\n");
}

static void open_device(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);

	if (!list[0])
		exit(3);
	context = ibv_open_device(list[0]);
	ibv_free_device_list(list);
	domain = ibv_alloc_pd(context);
	region = ibv_reg_mr(domain, memory, sizeof(memory),
			    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	queue = ibv_create_cq(context, 1000, NULL, NULL, 0);
}

static void obey(const char *word, int n, int m, const char *line)
{
	struct truth *first = &truths[0], *last = pairs ? &truths[pairs - 1] : first;

	if (!strcmp(word, "open")) {
		open_device();
	} else if (!strcmp(word, "pair") || !strcmp(word, "pair_ex")) {
		struct truth *a = make(strstr(line, "all") != NULL, word[4] == '_');
		struct truth *b = make(0, word[4] == '_');

		connect_pair(a, b->number);
		connect_pair(b, a->number);
	} else if (!strcmp(word, "post")) {
		for (int i = 0; i < n; i++)
			post(&truths[i % pairs], i % 4 + 1, -1, 0, 100);
	} else if (!strcmp(word, "chain")) {
		post(first, n, -1, 0, 10);
	} else if (!strcmp(word, "zero")) {
		for (int i = 0; i < n; i++)
			post(first, 1, -1, IBV_SEND_SIGNALED, 0);
	} else if (!strcmp(word, "inline")) {
		for (int i = 0; i < n; i++)
			post(first, 2, -1, IBV_SEND_INLINE, 20);
	} else if (!strcmp(word, "fail")) {
		for (int i = 0; i < n; i++)
			post(first, i % 5 + 1, i % (i % 5 + 1), IBV_SEND_SIGNALED, 50);
	} else if (!strcmp(word, "one")) {
		for (int i = 0; i < n; i++) {
			post_one(first, (uint64_t)i, IBV_SEND_SIGNALED, 4096, 1);
			poll_all(0);
		}
	} else if (!strcmp(word, "same")) {
		for (int i = 0; i < n; i++)
			post_one(first, 1, IBV_SEND_SIGNALED, (uint32_t)(i + 1), 1);
		poll_all(0);
	} else if (!strcmp(word, "error")) {
		for (int i = 0; i < n; i++)
			post_one(first, (uint64_t)i, IBV_SEND_SIGNALED, 64, FAKE_REMOTE_ERROR);
	} else if (!strcmp(word, "receive")) {
		receive(last, n);
	} else if (!strcmp(word, "extended") || !strcmp(word, "refuse")) {
		extended(last, n, word[0] == 'r');
	} else if (!strcmp(word, "poll")) {
		poll_all(n);
	} else if (!strcmp(word, "threads")) {
		threads(n, m);
	} else if (!strcmp(word, "churn")) {
		churn(n);
	} else if (!strcmp(word, "hijack")) {
		context->ops.post_send = hijacked;
	} else if (!strcmp(word, "domain")) {
		ibv_dealloc_pd(ibv_alloc_pd(context));
	} else if (!strcmp(word, "event")) {
		struct ibv_async_event event;

		ibv_get_async_event(context, &event);
	} else if (!strcmp(word, "time_posts") || !strcmp(word, "time_polls")) {
		struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE }, *refused;
		struct ibv_sge entry = { .length = 64 };
		struct ibv_wc done;
		double began = now_ns();

		wr.sg_list = &entry;
		wr.num_sge = 1;
		for (int i = 0; i < n; i++)
			if (word[7] == 'l' ? ibv_poll_cq(queue, 1, &done) > 1
					   : ibv_post_send(first->qp, &wr, &refused))
				abort();
		printf("%.1f\n", now_ns() - began);
		return;
	} else if (!strcmp(word, "truth")) {
		report_truth();
		return;
	} else {
		printf("unknown: %s\n", word);
		return;
	}
	printf("ok\n");
}

int main(void)
{
	char line[256], word[32];

	setvbuf(stdout, NULL, _IOLBF, 0);
	while (fgets(line, sizeof(line), stdin)) {
		int n = 0, m = 0;

		if (sscanf(line, "%31s %d %d", word, &n, &m) < 1 || !strcmp(word, "quit"))
			break;
		obey(word, n, m, line);
		fflush(stdout);
	}
	return 0;
}
