// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Family cuda: calls of the CUDA runtime API, entry paired with return per
 * thread. SEC("uprobe/<library stem>:<symbol>") is all that user space knows
 * about where a probe belongs.
 *
 * Signatures: cuda_runtime_api.h, CUDA 12 and 13 (equal for these functions).
 */
#include "cuda.h"
#include "../lib/arguments.h"
#include "../lib/emit.h"
#include <bpf/bpf_tracing.h>

RECORD(cuda_launch);
RECORD(cuda_graph_launch);
RECORD(cuda_copy);
RECORD(cuda_allocation);
RECORD(cuda_free);
RECORD(cuda_synchronization);
RECORD(cuda_kernel);
ENUM(cuda_kind);
ENUM(cuda_api);

/*
 * Return probes are off (they would harm the observed processes on this
 * kernel): record at entry, with neither duration nor status.
 */
const volatile bool entry_only = false;

/* Entry values of one call, until its return. */
struct call {
	__u64 start_ns;
	struct identity who;
	__u64 words[4];
	__u32 grid[3];
	__u32 block[3];
	__u32 api;
	__u32 kind;
};

#define CALLS_NESTED 4 /* runtime calls that call the runtime; a power of two */

/* Calls that a thread is inside of, innermost last. The kernel frees it with the thread. */
struct calls {
	struct call stack[CALLS_NESTED];
	__u32 depth;
	__u32 dropped; /* entered beyond the depth and not yet returned */
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct calls);
} calls_in_flight SEC(".maps");

static __always_inline void emit_call(const struct call *call, __u64 end_ns, __s32 status,
				      __u64 pointer)
{
	struct cuda_launch *record; /* all records are of one size: cuda.h asserts it */

	record = EMIT_BEGIN(cuda_launch, call->kind, call->who, call->start_ns, end_ns);
	if (!record)
		return;
	record->head.returned = !entry_only;
	switch (call->kind) {
	case CUDA_LAUNCH:
		record->function = call->words[0];
		record->stream = call->words[1];
		record->shared_bytes = call->words[2];
		__builtin_memcpy(record->grid, call->grid, sizeof(record->grid));
		__builtin_memcpy(record->block, call->block, sizeof(record->block));
		record->status = status;
		record->api = (__u16)call->api;
		break;
	case CUDA_GRAPH_LAUNCH: {
		struct cuda_graph_launch *launch = (struct cuda_graph_launch *)record;

		launch->graph = call->words[0];
		launch->stream = call->words[1];
		launch->status = status;
		launch->api = (__u16)call->api;
		break;
	}
	case CUDA_COPY: {
		struct cuda_copy *copy = (struct cuda_copy *)record;

		copy->destination = call->words[0];
		copy->source = call->words[1];
		copy->bytes = call->words[2];
		copy->stream = call->words[3];
		copy->direction = call->grid[0];
		copy->status = status;
		copy->api = (__u16)call->api;
		break;
	}
	case CUDA_ALLOCATION: {
		struct cuda_allocation *allocation = (struct cuda_allocation *)record;

		allocation->pointer = pointer;
		allocation->bytes = call->words[1];
		allocation->status = status;
		allocation->api = (__u16)call->api;
		break;
	}
	case CUDA_FREE: {
		struct cuda_free *freed = (struct cuda_free *)record;

		freed->pointer = call->words[0];
		freed->status = status;
		freed->api = (__u16)call->api;
		break;
	}
	case CUDA_SYNCHRONIZATION: {
		struct cuda_synchronization *wait = (struct cuda_synchronization *)record;

		wait->object = call->words[0];
		wait->status = status;
		wait->api = (__u16)call->api;
		break;
	}
	case CUDA_KERNEL: {
		struct cuda_kernel *kernel = (struct cuda_kernel *)record;

		kernel->handle = pointer;
		kernel->stub = call->words[1];
		kernel->status = status;
		kernel->api = (__u16)call->api;
		break;
	}
	}
	submit(record);
}

/* A slot for a call that the current thread enters, or NULL when it is not wanted. */
static __always_inline struct call *enter(__u32 kind, __u32 api)
{
	struct identity who;
	struct calls *calls;
	struct call *call;

	if (!in_scope(&who))
		return NULL;
	calls = bpf_task_storage_get(&calls_in_flight, bpf_get_current_task_btf(), NULL,
				     BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!calls) {
		count(COUNTER_THREAD_STATE_FAILED);
		return NULL;
	}
	if (entry_only)
		calls->depth = 0;
	if (calls->depth >= CALLS_NESTED) {
		calls->dropped++;
		count(COUNTER_CALLS_NESTED_TOO_DEEP);
		return NULL;
	}
	calls->dropped = 0;
	call = &calls->stack[calls->depth & (CALLS_NESTED - 1)];
	__builtin_memset(call, 0, sizeof(*call));
	calls->depth++;
	call->who = who;
	call->kind = kind;
	call->api = api;
	return call;
}

/* Last thing before the call itself: the clock is read as late as can be. */
static __always_inline int entered(struct call *call)
{
	call->start_ns = bpf_ktime_get_ns();
	if (entry_only)
		emit_call(call, call->start_ns, 0, 0);
	return 0;
}

static __always_inline int leave(struct pt_regs *regs, __u32 api)
{
	__u64 end_ns = bpf_ktime_get_ns();
	struct calls *calls;
	__u64 pointer = 0;
	__u32 depth;

	calls = bpf_task_storage_get(&calls_in_flight, bpf_get_current_task_btf(), NULL, 0);
	if (!calls)
		return 0; /* out of scope at entry */
	if (calls->dropped) {
		calls->dropped--;
		return 0;
	}
	depth = calls->depth;
	for (int i = 0; i < CALLS_NESTED; i++) {
		struct call *call;

		if (depth == 0 || depth > CALLS_NESTED)
			break;
		depth--;
		call = &calls->stack[depth & (CALLS_NESTED - 1)];
		if (call->api != api)
			continue;
		/* What was entered above it will not return any more. */
		count_many(COUNTER_CALL_ABANDONED, calls->depth - depth - 1);
		calls->depth = depth;
		if ((call->kind == CUDA_ALLOCATION || call->kind == CUDA_KERNEL) &&
		    RESULT(regs) == 0)
			read_user(&pointer, sizeof(pointer), (void *)call->words[0]);
		emit_call(call, end_ns, (__s32)RESULT(regs), pointer);
		return 0;
	}
	count(COUNTER_RETURN_WITHOUT_ENTRY);
	return 0;
}

#define RETURN_PROBE(name)                      \
	SEC("uretprobe/libcudart:" #name)       \
	int name##_return(struct pt_regs *regs) \
	{                                       \
		return leave(regs, API_##name); \
	}

/* (const void *func, dim3 grid, dim3 block, void **args, size_t shared, cudaStream_t stream):
 * a dim3 by value takes two integer registers, x and y packed in the first. */
SEC("uprobe/libcudart:cudaLaunchKernel")
int cudaLaunchKernel_entry(struct pt_regs *regs)
{
	struct call *call = enter(CUDA_LAUNCH, API_cudaLaunchKernel);

	if (!call)
		return 0;
	call->words[0] = ARGUMENT_1(regs);
	call->grid[0] = (__u32)ARGUMENT_2(regs);
	call->grid[1] = ARGUMENT_2(regs) >> 32;
	call->grid[2] = (__u32)ARGUMENT_3(regs);
	call->block[0] = (__u32)ARGUMENT_4(regs);
	call->block[1] = ARGUMENT_4(regs) >> 32;
	call->block[2] = (__u32)ARGUMENT_5(regs);
	call->words[2] = stack_argument(regs, 0);
	call->words[1] = stack_argument(regs, 1);
	return entered(call);
}
RETURN_PROBE(cudaLaunchKernel)

/* cudaLaunchConfig_t, driver_types.h */
struct launch_config {
	__u32 grid[3];
	__u32 block[3];
	__u64 shared_bytes;
	__u64 stream;
};
_Static_assert(__builtin_offsetof(struct launch_config, stream) == 32, "cudaLaunchConfig_t");

/* (const cudaLaunchConfig_t *config, const void *func, void **args) */
SEC("uprobe/libcudart:cudaLaunchKernelExC")
int cudaLaunchKernelExC_entry(struct pt_regs *regs)
{
	struct call *call = enter(CUDA_LAUNCH, API_cudaLaunchKernelExC);
	struct launch_config config = {};

	if (!call)
		return 0;
	call->words[0] = ARGUMENT_2(regs);
	if (read_user(&config, sizeof(config), (void *)ARGUMENT_1(regs))) {
		__builtin_memcpy(call->grid, config.grid, sizeof(config.grid));
		__builtin_memcpy(call->block, config.block, sizeof(config.block));
		call->words[1] = config.stream;
		call->words[2] = config.shared_bytes;
	}
	return entered(call);
}
RETURN_PROBE(cudaLaunchKernelExC)

/* (cudaGraphExec_t graph, cudaStream_t stream) */
SEC("uprobe/libcudart:cudaGraphLaunch")
int cudaGraphLaunch_entry(struct pt_regs *regs)
{
	struct call *call = enter(CUDA_GRAPH_LAUNCH, API_cudaGraphLaunch);

	if (!call)
		return 0;
	call->words[0] = ARGUMENT_1(regs);
	call->words[1] = ARGUMENT_2(regs);
	return entered(call);
}
RETURN_PROBE(cudaGraphLaunch)

/* (void **pointer, size_t size) */
SEC("uprobe/libcudart:cudaMalloc")
int cudaMalloc_entry(struct pt_regs *regs)
{
	struct call *call = enter(CUDA_ALLOCATION, API_cudaMalloc);

	if (!call)
		return 0;
	call->words[0] = ARGUMENT_1(regs);
	call->words[1] = ARGUMENT_2(regs);
	return entered(call);
}
RETURN_PROBE(cudaMalloc)

/* (void *pointer) */
SEC("uprobe/libcudart:cudaFree")
int cudaFree_entry(struct pt_regs *regs)
{
	struct call *call = enter(CUDA_FREE, API_cudaFree);

	if (!call)
		return 0;
	call->words[0] = ARGUMENT_1(regs);
	return entered(call);
}
RETURN_PROBE(cudaFree)

static __always_inline int enter_copy(struct pt_regs *regs, __u32 api, __u64 stream)
{
	struct call *call = enter(CUDA_COPY, api);

	if (!call)
		return 0;
	call->words[0] = ARGUMENT_1(regs);
	call->words[1] = ARGUMENT_2(regs);
	call->words[2] = ARGUMENT_3(regs);
	call->words[3] = stream;
	call->grid[0] = (__u32)ARGUMENT_4(regs);
	return entered(call);
}

/* (void *destination, const void *source, size_t count, cudaMemcpyKind kind) */
SEC("uprobe/libcudart:cudaMemcpy")
int cudaMemcpy_entry(struct pt_regs *regs)
{
	return enter_copy(regs, API_cudaMemcpy, 0);
}
RETURN_PROBE(cudaMemcpy)

/* (…, cudaStream_t stream) */
SEC("uprobe/libcudart:cudaMemcpyAsync")
int cudaMemcpyAsync_entry(struct pt_regs *regs)
{
	return enter_copy(regs, API_cudaMemcpyAsync, ARGUMENT_5(regs));
}
RETURN_PROBE(cudaMemcpyAsync)

static __always_inline int enter_wait(__u32 api, __u64 object)
{
	struct call *call = enter(CUDA_SYNCHRONIZATION, api);

	if (!call)
		return 0;
	call->words[0] = object;
	return entered(call);
}

/* (cudaStream_t stream) */
SEC("uprobe/libcudart:cudaStreamSynchronize")
int cudaStreamSynchronize_entry(struct pt_regs *regs)
{
	return enter_wait(API_cudaStreamSynchronize, ARGUMENT_1(regs));
}
RETURN_PROBE(cudaStreamSynchronize)

/* (void) */
SEC("uprobe/libcudart:cudaDeviceSynchronize")
int cudaDeviceSynchronize_entry(void *regs __attribute__((unused)))
{
	return enter_wait(API_cudaDeviceSynchronize, 0);
}
RETURN_PROBE(cudaDeviceSynchronize)

/* (cudaEvent_t event) */
SEC("uprobe/libcudart:cudaEventSynchronize")
int cudaEventSynchronize_entry(struct pt_regs *regs)
{
	return enter_wait(API_cudaEventSynchronize, ARGUMENT_1(regs));
}
RETURN_PROBE(cudaEventSynchronize)

static __always_inline int enter_get_kernel(struct pt_regs *regs, __u32 api)
{
	struct call *call;

	if (entry_only)
		return 0; /* the handle is known at the return only */
	call = enter(CUDA_KERNEL, api);
	if (!call)
		return 0;
	call->words[0] = ARGUMENT_1(regs);
	call->words[1] = ARGUMENT_2(regs);
	return entered(call);
}

/* (cudaKernel_t *kernel, const void *stub): crt/host_runtime.h; what host stubs call once */
SEC("uprobe/libcudart:__cudaGetKernel")
int __cudaGetKernel_entry(struct pt_regs *regs)
{
	return enter_get_kernel(regs, API___cudaGetKernel);
}
RETURN_PROBE(__cudaGetKernel)

/* (cudaKernel_t *kernel, const void *stub) */
SEC("uprobe/libcudart:cudaGetKernel")
int cudaGetKernel_entry(struct pt_regs *regs)
{
	return enter_get_kernel(regs, API_cudaGetKernel);
}
RETURN_PROBE(cudaGetKernel)

char LICENSE[] SEC("license") = "Dual BSD/GPL";
