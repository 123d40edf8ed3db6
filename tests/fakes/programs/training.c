/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks that train, as PyTorch's data parallelism does it. A step: a batch is read from a file and copied to
 * the device; kernels of the forward pass; kernels of the backward pass from another thread (autograd's),
 * with an AllReduce on a stream of its own as each bucket of gradients is ready; the optimizer's kernels after
 * the last bucket; the loss is copied back, which waits for all. Beside the options of ranks.h:
 *
 *   --steps=N         20
 *   --accumulate=N    1; micro-batches of a step: gradients are reduced with the last of them
 *   --layers=N        6; kernels of a forward pass, twice as many of a backward pass
 *   --buckets=N       3
 *   --bucket-bytes=N  4 MiB
 *   --batch-bytes=N   256 KiB
 *   --data=FILE       what batches are read from; /dev/zero
 *   --load-us=N       what else loading a batch takes, waiting; 500
 *   --checkpoint=FILE --checkpoint-every=N   1 MiB is written to it, and synced, in each step of N; 5
 *   --evaluate=N      an evaluation (forward passes only, no collective but a last one) after each N steps
 *   --late-rank=R --late-us=N --late=data|host|device   what makes rank R slow in every step: its loading,
 *                     its main thread between forward and backward, its GPU in the forward pass
 *   --pause=N         all wait at gate 2 before step N (with --gates=1)
 *
 * The truth, rank-R.jsonl: a line for the communicator, then one for each step. Times are CLOCK_MONOTONIC,
 * durations sums over the step: load (waiting and reading the file), file (calls that read, write or sync), copy (the call of the copy to the device), wait (in
 * the synchronisation that ends the step), late (what --late-us added).
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cuda_runtime_api.h>

#include "ranks.h"

#define STUB __attribute__((noipa, used))

STUB void forward_layer(float *activations) __asm__("_Z13forward_layerPf");
STUB void backward_layer(float *gradients) __asm__("_Z14backward_layerPf");
STUB void optimizer_step(float *weights) __asm__("_Z14optimizer_stepPf");

void forward_layer(float *activations)
{
	(void)activations;
	__builtin_trap();
}

void backward_layer(float *gradients)
{
	(void)gradients;
	__builtin_trap();
}

void optimizer_step(float *weights)
{
	(void)weights;
	__builtin_trap();
}

struct times {
	int64_t start_ns, end_ns;
	int64_t load_ns, copy_ns, wait_ns, late_ns;
	int64_t forward_ns, backward_ns, optimizer_ns; /* when the last of each began */
	int64_t file_ns;
	long files, file_bytes;
	long collectives, launches, copied_bytes;
};

static struct {
	struct job *job;
	long layers, buckets, accumulate;
	size_t bucket_bytes, batch_bytes;
	long load_us, late_us, checkpoint_every, number;
	const char *late;
	int data, checkpoint;
	void *host_batch, *batch, *gradients, *loss;
	cudaStream_t compute, communication;
	cudaEvent_t ready, reduced;
	ncclComm_t communicator;
	struct times now;
	FILE *log;
} rank;

/* The thread of the backward passes. */
static struct {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool wanted, reduces, ends;
	int tid;
} autograd = { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };

static void launch(const void *stub, long count)
{
	void *argument = rank.gradients, *arguments[] = { &argument };

	for (long i = 0; i < count; i++) {
		CHECKED(cudaLaunchKernel(stub, (dim3){ 64, 1, 1 }, (dim3){ 128, 1, 1 }, arguments,
					 0, rank.compute),
			"cudaLaunchKernel");
		rank.now.launches++;
	}
}

static bool is_late(const char *how)
{
	return rank.late_us && strcmp(rank.late, how) == 0;
}

static void be_late(void)
{
	int64_t start_ns = ranks_now_ns();

	ranks_sleep_us(rank.late_us);
	rank.now.late_ns += ranks_now_ns() - start_ns;
}

static ssize_t noted(ssize_t result, int64_t start_ns)
{
	rank.now.file_ns += ranks_now_ns() - start_ns;
	rank.now.files++;
	rank.now.file_bytes += result;
	return result;
}

static void load(void)
{
	int64_t start_ns = ranks_now_ns();
	size_t done = 0;
	ssize_t got;

	ranks_sleep_us(rank.load_us);
	if (is_late("data"))
		be_late();
	while (done < rank.batch_bytes) {
		int64_t read_ns = ranks_now_ns();

		got = noted(
			read(rank.data, (char *)rank.host_batch + done, rank.batch_bytes - done),
			read_ns);
		if (got < 0 || (!got && lseek(rank.data, 0, SEEK_SET))) {
			fprintf(stderr, "--data: %m\n");
			exit(2);
		}
		done += (size_t)got;
	}
	rank.now.load_ns += ranks_now_ns() - start_ns;
	start_ns = ranks_now_ns();
	CHECKED(cudaMemcpyAsync(rank.batch, rank.host_batch, rank.batch_bytes,
				cudaMemcpyHostToDevice, rank.compute),
		"cudaMemcpyAsync");
	rank.now.copy_ns += ranks_now_ns() - start_ns;
	rank.now.copied_bytes += (long)rank.batch_bytes;
}

static void reduce_bucket(void)
{
	CHECKED(cudaEventRecord(rank.ready, rank.compute), "cudaEventRecord");
	CHECKED(cudaStreamWaitEvent(rank.communication, rank.ready, 0), "cudaStreamWaitEvent");
	CHECKED(ncclAllReduce(rank.gradients, rank.gradients, rank.bucket_bytes / sizeof(float),
			      ncclFloat32, ncclAvg, rank.communicator, rank.communication),
		"ncclAllReduce");
	rank.now.collectives++;
}

static void backward(bool reduces)
{
	long kernels = 2 * rank.layers, done = 0, due;

	rank.now.backward_ns = ranks_now_ns();
	for (long bucket = 1; bucket <= rank.buckets; bucket++) {
		due = kernels * bucket / rank.buckets;
		launch((const void *)backward_layer, due - done);
		done = due;
		if (reduces)
			reduce_bucket();
	}
}

static void *run_autograd(void *argument)
{
	int devices;

	(void)argument;
	CHECKED(cudaGetDeviceCount(&devices), "cudaGetDeviceCount");
	CHECKED(cudaSetDevice(rank.job->rank % devices), "cudaSetDevice");
	pthread_mutex_lock(&autograd.lock);
	autograd.tid = (int)syscall(SYS_gettid);
	pthread_cond_broadcast(&autograd.changed);
	while (!autograd.ends) {
		if (autograd.wanted) {
			backward(autograd.reduces);
			autograd.wanted = false;
			pthread_cond_broadcast(&autograd.changed);
			continue;
		}
		pthread_cond_wait(&autograd.changed, &autograd.lock);
	}
	pthread_mutex_unlock(&autograd.lock);
	return NULL;
}

static void ask_for_backward(bool reduces)
{
	pthread_mutex_lock(&autograd.lock);
	autograd.wanted = true;
	autograd.reduces = reduces;
	pthread_cond_broadcast(&autograd.changed);
	while (autograd.wanted)
		pthread_cond_wait(&autograd.changed, &autograd.lock);
	pthread_mutex_unlock(&autograd.lock);
}

static void forward(void)
{
	rank.now.forward_ns = ranks_now_ns();
	launch((const void *)forward_layer, rank.layers);
	if (is_late("device")) {
		/* As much more work as takes that long. */
		long us = truth_option(rank.job->argc, rank.job->argv, "kernel-us", 200);

		launch((const void *)forward_layer, rank.late_us / us);
		rank.now.late_ns += rank.late_us / us * us * 1000;
	}
	if (is_late("host"))
		be_late();
}

static void read_loss(void)
{
	int64_t start_ns = ranks_now_ns();

	CHECKED(cudaMemcpyAsync(rank.host_batch, rank.loss, sizeof(float), cudaMemcpyDeviceToHost,
				rank.compute),
		"cudaMemcpyAsync");
	CHECKED(cudaStreamSynchronize(rank.compute), "cudaStreamSynchronize");
	rank.now.wait_ns += ranks_now_ns() - start_ns;
}

static void save(void)
{
	static char content[1 << 20];
	int64_t start_ns = ranks_now_ns();

	CHECKED(noted(pwrite(rank.checkpoint, content, sizeof(content), 0), start_ns) !=
			sizeof(content),
		"--checkpoint");
	start_ns = ranks_now_ns();
	CHECKED(noted(fsync(rank.checkpoint), start_ns), "fsync");
}

static void step(void)
{
	for (long micro = 1; micro <= rank.accumulate; micro++) {
		load();
		forward();
		ask_for_backward(micro == rank.accumulate);
	}
	CHECKED(cudaEventRecord(rank.reduced, rank.communication), "cudaEventRecord");
	CHECKED(cudaStreamWaitEvent(rank.compute, rank.reduced, 0), "cudaStreamWaitEvent");
	rank.now.optimizer_ns = ranks_now_ns();
	launch((const void *)optimizer_step, rank.layers);
	if (rank.checkpoint_every && ++rank.number % rank.checkpoint_every == 0)
		save();
	read_loss();
}

static void evaluate(void)
{
	for (long batch = 0; batch < 3; batch++) {
		load();
		forward();
	}
	CHECKED(ncclAllReduce(rank.loss, rank.loss, 1, ncclFloat32, ncclAvg, rank.communicator,
			      rank.compute),
		"ncclAllReduce");
	rank.now.collectives++;
	read_loss();
}

static void log_times(const char *kind, long number)
{
	const struct times *at = &rank.now;

	if (!rank.log)
		return;
	fprintf(rank.log,
		"{\"%s\": %ld, \"start_ns\": %lld, \"end_ns\": %lld, \"load_ns\": %lld, "
		"\"copy_ns\": %lld, "
		"\"wait_ns\": %lld, \"late_ns\": %lld, \"forward_ns\": %lld, \"backward_ns\": "
		"%lld, "
		"\"optimizer_ns\": %lld, \"collectives\": %ld, \"launches\": %ld, "
		"\"copied_bytes\": %ld, \"file_ns\": %lld, \"files\": %ld, \"file_bytes\": %ld}\n",
		kind, number, (long long)at->start_ns, (long long)at->end_ns,
		(long long)at->load_ns, (long long)at->copy_ns, (long long)at->wait_ns,
		(long long)at->late_ns, (long long)at->forward_ns, (long long)at->backward_ns,
		(long long)at->optimizer_ns, at->collectives, at->launches, at->copied_bytes,
		(long long)at->file_ns, at->files, at->file_bytes);
}

static void timed(void (*what)(void), const char *kind, long number)
{
	rank.now = (struct times){ .start_ns = ranks_now_ns() };
	what();
	rank.now.end_ns = ranks_now_ns();
	log_times(kind, number);
}

static void prepare(struct job *job)
{
	static char log_lines[1 << 20];
	const char *data = truth_text(job->argc, job->argv, "data");
	const char *checkpoint = truth_text(job->argc, job->argv, "checkpoint");
	ncclUniqueId id;
	int devices;

	rank.job = job;
	rank.layers = ranks_option(job, "layers", 6);
	rank.buckets = ranks_option(job, "buckets", 3);
	rank.accumulate = ranks_option(job, "accumulate", 1);
	rank.bucket_bytes = (size_t)ranks_option(job, "bucket-bytes", 4 << 20);
	rank.batch_bytes = (size_t)ranks_option(job, "batch-bytes", 256 << 10);
	rank.load_us = ranks_option(job, "load-us", 500);
	rank.late = truth_text(job->argc, job->argv, "late");
	rank.late = rank.late ? rank.late : "host";
	if (job->rank == ranks_option(job, "late-rank", -1))
		rank.late_us = ranks_option(job, "late-us", 3000);
	rank.data = open(data ? data : "/dev/zero", O_RDONLY | O_CLOEXEC);
	CHECKED(rank.data < 0, "--data");
	if (checkpoint) {
		rank.checkpoint_every = ranks_option(job, "checkpoint-every", 5);
		rank.checkpoint = open(checkpoint, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
		CHECKED(rank.checkpoint < 0, "--checkpoint");
	}
	rank.log = ranks_file(job, ".jsonl");
	if (rank.log) /* to write the log is no part of a step */
		setvbuf(rank.log, log_lines, _IOFBF, sizeof(log_lines));
	CHECKED(cudaGetDeviceCount(&devices), "cudaGetDeviceCount");
	CHECKED(cudaSetDevice(job->rank % devices), "cudaSetDevice");
	CHECKED(cudaStreamCreateWithFlags(&rank.compute, cudaStreamNonBlocking),
		"cudaStreamCreate");
	CHECKED(cudaStreamCreateWithFlags(&rank.communication, cudaStreamNonBlocking),
		"cudaStreamCreate");
	CHECKED(cudaEventCreateWithFlags(&rank.ready, cudaEventDisableTiming), "cudaEventCreate");
	CHECKED(cudaEventCreateWithFlags(&rank.reduced, cudaEventDisableTiming), "cudaEventCreate");
	CHECKED(cudaMallocHost(&rank.host_batch, rank.batch_bytes), "cudaMallocHost");
	CHECKED(cudaMalloc(&rank.batch, rank.batch_bytes), "cudaMalloc");
	CHECKED(cudaMalloc(&rank.gradients, rank.bucket_bytes), "cudaMalloc");
	CHECKED(cudaMalloc(&rank.loss, sizeof(float)), "cudaMalloc");
	id = ranks_id(job, 0, 0);
	CHECKED(ncclCommInitRank(&rank.communicator, job->ranks, id, job->rank),
		"ncclCommInitRank");
	if (!rank.log)
		return;
	fprintf(rank.log, "{\"rank\": %d, \"ranks\": %d, \"pid\": %d, \"id\": \"", job->rank,
		job->ranks, (int)getpid());
	ranks_hex(rank.log, &id);
	fprintf(rank.log, "\", \"compute_stream\": %llu, \"communication_stream\": %llu}\n",
		(unsigned long long)(uintptr_t)rank.compute,
		(unsigned long long)(uintptr_t)rank.communication);
}

static int work(struct job *job)
{
	long steps = ranks_option(job, "steps", 20), evaluates = ranks_option(job, "evaluate", 0);
	long pause = ranks_option(job, "pause", -1);
	pthread_t thread;

	prepare(job);
	pthread_create(&thread, NULL, run_autograd, NULL);
	for (long number = 0; number < steps; number++) {
		if (number == pause)
			ranks_gate(job, 2);
		timed(step, "step", number);
		if (evaluates && number % evaluates == evaluates - 1)
			timed(evaluate, "evaluation", number / evaluates);
	}
	pthread_mutex_lock(&autograd.lock);
	autograd.ends = true;
	pthread_cond_broadcast(&autograd.changed);
	pthread_mutex_unlock(&autograd.lock);
	pthread_join(thread, NULL);
	CHECKED(ncclCommDestroy(rank.communicator), "ncclCommDestroy");
	if (rank.log)
		fclose(rank.log);
	return 0;
}

int main(int argc, char **argv)
{
	return ranks_run(argc, argv, work);
}
