/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups and what is launched at their end: one plan, and one kernel, for each communicator in it. As in the
 * real library nothing is counted or launched before, so that a communicator's counts say how many of its
 * collectives are launched.
 */
#include <stdlib.h>

#include "library.h"

#define TASKS_MAX 1024

struct plan {
	struct ncclComm *comm;
	const struct task *tasks;
	int count;
	uint64_t first_collective, batch;
	uint64_t names[TASKS_MAX];
};

static _Thread_local struct task tasks[TASKS_MAX];
static _Thread_local int task_count, depth;
static _Thread_local const struct plan *launching;

bool group_is_open(void)
{
	return depth > 0;
}

void group_begin(void)
{
	depth++;
}

static size_t element_bytes(ncclDataType_t type)
{
	static const size_t bytes[] = { 1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1 };

	return bytes[type];
}

static bool is_message(const struct task *task)
{
	return task->function == SEND || task->function == RECEIVE;
}

/* What the slowest link carries, by the factors of nccl-tests. */
static double bus_bytes(const struct task *task)
{
	double bytes = (double)task->count * (double)element_bytes(task->type);
	double others = task->comm->nRanks - 1;

	switch (task->function) {
	case ALL_REDUCE:
		return 2 * others / (others + 1) * bytes;
	case REDUCE_SCATTER:
	case ALL_GATHER:
	case ALL_TO_ALL:
	case GATHER:
	case SCATTER:
		return others * bytes;
	default:
		return bytes;
	}
}

static int64_t transfer_ns(const struct task *task)
{
	double rate = task->comm->state.first_rank == settings.slow_rank
			      ? settings.slow_bytes_per_ns
			      : settings.bytes_per_ns;

	return settings.latency_ns + (int64_t)(bus_bytes(task) / rate);
}

static uint64_t what(const struct task *task)
{
	uint64_t bytes = (uint64_t)task->count * element_bytes(task->type);

	return (uint64_t)(is_message(task) ? SEND : task->function) << 56 | (bytes << 8 >> 8);
}

/* What is known by now is no longer waited for. */
static void settle(struct moment *moment)
{
	uint32_t left = 0;

	for (uint32_t i = 0; i < moment->count; i++) {
		struct collective_end end = moment->ends[i];
		int64_t ns = operation_end(end.where, end.which, false);

		if (ns < 0)
			moment->ends[left++] = end;
		else if (ns + end.plus_ns > moment->ns)
			moment->ns = ns + end.plus_ns;
	}
	moment->count = left;
}

static void become_end(struct moment *moment, const struct ncclComm *comm, uint64_t name)
{
	moment->count = 1;
	moment->ends[0] = (struct collective_end){ comm->commHash, name, 0 };
}

static void arrive(const struct plan *plan, int index, const struct moment *moment)
{
	const struct task *task = &plan->tasks[index];
	struct ncclComm *comm = plan->comm;
	int side = task->function == RECEIVE ? 1 : is_message(task) ? 0 : comm->rank;
	struct moment at = *moment;
	int64_t late_ns = 0;

	if (!is_message(task))
		late_ns = lateness_ns(comm, plan->names[index]);
	at.ns += late_ns;
	for (uint32_t i = 0; i < at.count; i++)
		at.ends[i].plus_ns += late_ns;
	operation_arrive(comm->state.segment, plan->names[index], side, &at, transfer_ns(task),
			 what(task));
}

bool plan_launched(struct moment *moment)
{
	const struct plan *plan = launching;
	uint64_t messages[2 * RANKS_MAX];
	int count = 0;

	if (!plan)
		return false;
	launching = NULL;
	settle(moment);
	for (int i = 0; i < plan->count; i++) {
		if (is_message(&plan->tasks[i]))
			continue;
		arrive(plan, i, moment);
		become_end(moment, plan->comm, plan->names[i]);
	}
	for (int i = 0; i < plan->count; i++) {
		if (!is_message(&plan->tasks[i]))
			continue;
		arrive(plan, i, moment);
		messages[count++] = plan->names[i];
	}
	if (count) {
		batch_fill(plan->comm->state.segment, plan->batch, messages, count);
		become_end(moment, plan->comm, plan->batch);
	}
	return true;
}

/* Numbers of the tasks, and places for them. */
static bool prepare(struct plan *plan)
{
	struct ncclComm *comm = plan->comm;
	int messages = 0;

	for (int i = 0; i < plan->count; i++) {
		const struct task *task = &plan->tasks[i];

		if (!is_message(task)) {
			note_async_error(comm, comm->state.collectives);
			plan->names[i] = collective_name(comm->state.collectives++);
		} else if (++messages > 2 * RANKS_MAX) {
			return false;
		} else if (task->function == SEND) {
			plan->names[i] = message_name(comm->rank, task->peer,
						      comm->state.sent[task->peer]++);
		} else {
			plan->names[i] = message_name(task->peer, comm->rank,
						      comm->state.received[task->peer]++);
		}
		operation_reserve(comm->state.segment, plan->names[i]);
	}
	if (messages) {
		plan->batch = batch_name(comm->rank, comm->state.batches++);
		operation_reserve(comm->state.segment, plan->batch);
	}
	return true;
}

static void count(struct plan *plan)
{
#ifdef AT_SEQUENCES
	for (int i = 0; i < plan->count; i++)
		if (plan->tasks[i].function < COUNTED_FUNCTIONS)
			__atomic_fetch_add(&plan->comm->seqNumber[plan->tasks[i].function], 1,
					   __ATOMIC_RELAXED);
#endif
	plan->comm->opCount++;
}

/* Tasks of one communicator, in order of their calls. */
static ncclResult_t launch(const struct task *of_plan, int task_number)
{
	static _Thread_local struct plan plan;
	const struct task *last = &of_plan[task_number - 1];
	bool captured = device_is_capturing(last->stream);
	bool launched;

	plan.comm = of_plan->comm;
	plan.tasks = of_plan;
	plan.count = task_number;
	if (captured) {
		plan.comm->localPersistentRefs++;
	} else {
		if (!prepare(&plan))
			return ncclInvalidUsage;
		count(&plan);
		launching = &plan;
	}
	launched = device_launch(plan.comm->cudaDev, last->function, last->type, last->op,
				 last->stream);
	launching = NULL;
	return launched ? ncclSuccess : ncclUnhandledCudaError;
}

static ncclResult_t launch_all(void)
{
	static _Thread_local struct task of_plan[TASKS_MAX];
	ncclResult_t status = ncclSuccess, one;
	int left = task_count, chosen, kept;

	while (left) {
		chosen = kept = 0;
		for (int i = 0; i < left; i++) {
			if (!chosen || tasks[i].comm == of_plan->comm)
				of_plan[chosen++] = tasks[i];
			else
				tasks[kept++] = tasks[i];
		}
		left = kept;
		one = launch(of_plan, chosen);
		status = status ? status : one;
	}
	task_count = 0;
	return status;
}

ncclResult_t group_end(void)
{
	ncclResult_t joined;

	if (!depth)
		return ncclInvalidUsage;
	if (--depth)
		return ncclSuccess;
	joined = comms_join_pending();
	return joined == ncclSuccess ? launch_all() : joined;
}

static bool is_good(const struct task *task)
{
	bool has_peer = task->function != ALL_REDUCE && task->function != REDUCE_SCATTER &&
			task->function != ALL_GATHER && task->function != ALL_TO_ALL;

	return comm_is_valid(task->comm) && !task->comm->state.finalized &&
	       (unsigned int)task->type < ncclNumTypes && (unsigned int)task->op <= ncclAvg &&
	       (!has_peer || (task->peer >= 0 && task->peer < task->comm->nRanks));
}

ncclResult_t group_add(const struct task *task)
{
	if (!is_good(task))
		return ncclInvalidArgument;
	/* The real one launches and counts nothing either. (Alone it copies, unless in place.) */
	if (!task->count || task->comm->nRanks == 1)
		return ncclSuccess;
	if (!depth)
		return launch(task, 1);
	if (comm_is_pending(task->comm) || task_count == TASKS_MAX)
		return ncclInvalidUsage;
	tasks[task_count++] = *task;
	return ncclSuccess;
}

API(ncclGroupStart, (void), (group_begin(), ncclSuccess));
API(ncclGroupEnd, (void), group_end());
#if FAKE_NCCL_VERSION >= 22700
API(ncclGroupSimulateEnd, (ncclSimInfo_t * info),
    ((void)info, !depth ? ncclInvalidUsage : (depth--, task_count = 0, ncclSuccess)));
#endif
