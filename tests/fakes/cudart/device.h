/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulated device: memory by account only, and one virtual queue per
 * stream that is nothing but the CLOCK_MONOTONIC time at which it runs empty.
 * Work on different streams runs at the same time; the legacy default stream
 * waits for all streams and all wait for it, as on a real device.
 */
#ifndef FAKE_CUDART_DEVICE_H
#define FAKE_CUDART_DEVICE_H

#include <cuda_runtime_api.h>
#include <stdint.h>

/* Reads the FAKE_CUDART_* settings; an unreadable one ends the process with a line on stderr. */
void device_configure(void);

/* In a child of fork(): the lock may have been held by a thread that is not here. */
void device_reset_lock(void);

/* How long a kernel of so many blocks, a copy of so many bytes keeps its stream busy. */
int64_t device_kernel_ns(uint64_t blocks);
int64_t device_copy_ns(uint64_t bytes);

/* Adds work to a stream, or to the graph that the stream captures. */
cudaError_t device_enqueue(cudaStream_t stream, int64_t duration_ns);

/* The same on the legacy default stream, and waits for its end. */
cudaError_t device_run(int64_t duration_ns);

cudaError_t device_stream_create(cudaStream_t *stream);
cudaError_t device_stream_destroy(cudaStream_t stream);
cudaError_t device_stream_wait(cudaStream_t stream);
cudaError_t device_wait(void);

cudaError_t device_event_create(cudaEvent_t *event);
cudaError_t device_event_destroy(cudaEvent_t event);
cudaError_t device_event_record(cudaEvent_t event, cudaStream_t stream);
cudaError_t device_event_wait(cudaEvent_t event);

cudaError_t device_capture_begin(cudaStream_t stream);
cudaError_t device_capture_end(cudaStream_t stream, cudaGraph_t *graph);
cudaError_t device_graph_instantiate(cudaGraphExec_t *executable, cudaGraph_t graph);
cudaError_t device_graph_launch(cudaGraphExec_t executable, cudaStream_t stream);
cudaError_t device_graph_destroy(cudaGraph_t graph);
cudaError_t device_executable_destroy(cudaGraphExec_t executable);

/* Takes `bytes` from the device's capacity; `*pointer` is an address that nothing is mapped at. */
cudaError_t device_allocate(void **pointer, uint64_t bytes);
/* Gives them back. An address that is not allocated: cudaErrorInvalidValue. */
cudaError_t device_release(const void *pointer);
/* Whether an address lies where device_allocate() gives them. */
int device_owns(const void *pointer);

/* The handle of the kernel with this host stub, the same each time; NULL: too many kernels. */
cudaKernel_t device_kernel(const void *stub);

#endif
