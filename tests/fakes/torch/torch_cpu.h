// SPDX-License-Identifier: Apache-2.0
//
// What a program of PyTorch's on CPUs calls of libtorch_cpu.so, with the types that make its mangled names: gloo's
// collectives and their options (gloo/context.h, gloo/allreduce.h, …), and a few functions around them.
#ifndef FAKE_TORCH_CPU_H
#define FAKE_TORCH_CPU_H

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace gloo
{

struct Context {
	Context(int rank, int size);
	virtual ~Context();
	const int rank;
	const int size;
};

struct UnboundBuffer {
	explicit UnboundBuffer(size_t bytes);
	virtual ~UnboundBuffer();
	void *const ptr = nullptr;
	const size_t size;
};

struct AllreduceOptions {
	std::shared_ptr<Context> context;
	std::chrono::milliseconds timeout{};
	int algorithm = 0;
	std::vector<std::unique_ptr<UnboundBuffer>> in, out;
	size_t elements = 0, elementSize = 0;
	std::function<void(void *, const void *, const void *, size_t)> reduce;
	uint32_t tag = 0;
	size_t maxSegmentSize = 1 << 20;
};

struct BroadcastOptions {
	std::shared_ptr<Context> context;
	std::unique_ptr<UnboundBuffer> in, out;
	size_t elements = 0, elementSize = 0;
	int root = -1;
	uint32_t tag = 0;
};

struct AllgatherOptions {
	std::shared_ptr<Context> context;
	std::unique_ptr<UnboundBuffer> in, out;
	size_t elementSize = 0;
	uint32_t tag = 0;
};

struct BarrierOptions {
	std::shared_ptr<Context> context;
	std::unique_ptr<UnboundBuffer> buffer;
	uint32_t tag = 0;
};

// Each returns when all ranks have called it.
void allreduce(const AllreduceOptions &options);
void broadcast(BroadcastOptions &options);
void allgather(AllgatherOptions &options);
void barrier(BarrierOptions &options);

} // namespace gloo

namespace at
{

struct Tensor {
};

struct RecordFunction {
	void end();
	uint64_t state = 0;
};

} // namespace at

namespace c10
{

namespace detail
{

template <typename Type> struct intrusive_target_default_null_type {
};

} // namespace detail

template <typename Type, typename None = detail::intrusive_target_default_null_type<Type>>
struct intrusive_ptr {
	~intrusive_ptr()
	{
	}
	Type *target = nullptr;
};

} // namespace c10

namespace c10d
{

struct Work {
	bool wait(std::chrono::milliseconds timeout);
	std::function<void()> done;
};

struct Reducer {
	void finalize_backward();
	std::function<void()> done;
};

struct Store {
};

// A send has ended when it was called; a receive when as many were sent as this rank received.
struct ProcessGroupGloo {
	struct Options {
	};
	struct SendWork {
		bool wait(std::chrono::milliseconds timeout);
	};
	struct RecvWork {
		bool wait(std::chrono::milliseconds timeout);
		uint32_t sender, receiver, number;
	};

	ProcessGroupGloo(const c10::intrusive_ptr<Store> &store, int rank, int size,
			 c10::intrusive_ptr<Options> options);
	c10::intrusive_ptr<Work> send(std::vector<at::Tensor> &tensors, int peer, int tag);
	c10::intrusive_ptr<Work> recv(std::vector<at::Tensor> &tensors, int peer, int tag);
	c10::intrusive_ptr<Work> recvAnysource(std::vector<at::Tensor> &tensors, int tag);
	const uint32_t rank;
	std::vector<uint32_t> received;
};

} // namespace c10d

namespace torch::autograd
{

struct Edge {
};

// Runs `pass`, as the real one runs a graph.
struct Engine {
	void execute(const std::vector<Edge> &roots, const std::vector<at::Tensor> &inputs,
		     bool keep, bool create, bool accumulate, const std::vector<Edge> &outputs);
	std::function<void()> pass;
};

namespace profiler
{

struct PythonRecordFunction {
	uint64_t head[3] = {}; // a virtual table and two counts
	at::RecordFunction record;
};

c10::intrusive_ptr<PythonRecordFunction>
record_function_enter_new(const std::string &name, const std::optional<std::string> &arguments);

} // namespace profiler

} // namespace torch::autograd

#endif
