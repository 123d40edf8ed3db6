// SPDX-License-Identifier: Apache-2.0
//
// One rank of a data-parallel job as PyTorch runs it on CPUs: its main thread loads data, computes and waits, a thread
// beside it runs the collectives. Or of a pipeline, of a stage for each rank: activations go up, gradients down.
//
//   --steps=N (23) --load-us=N (500) --forward-us=N (500) --late-us=N (0) --late-from=N (0) --pipeline=0|1 (0)
//   RANK, WORLD_SIZE, FAKE_GLOO: see torch_cpu.cpp
//
// One line: {"calls": {"allreduce": n, …, "data_loader": n, "backward": n, "wait": n}}.
#include "torch_cpu.h"

#include <cstdlib>
#include <future>
#include <thread>

extern "C" {
#include "../programs/truth.h"
}

namespace
{

uint32_t tag;
std::shared_ptr<gloo::Context> group;

void pause_us(long duration)
{
	std::this_thread::sleep_for(std::chrono::microseconds(duration));
}

// On a thread of its own, as PyTorch's ProcessGroupGloo does.
std::function<void()> beside(std::function<void()> work)
{
	auto running = std::make_shared<std::future<void>>(std::async(std::launch::async, work));

	return [running] { running->get(); };
}

void record(const char *name, long duration)
{
	using namespace torch::autograd::profiler;
	auto recorded = record_function_enter_new(name, std::nullopt);

	pause_us(duration);
	recorded.target->record.end();
	delete recorded.target;
}

void reduce(size_t elements, std::function<void(std::function<void()>)> wait)
{
	uint32_t mine = tag++;

	wait(beside([=] {
		gloo::AllreduceOptions options;

		options.context = group;
		options.elements = elements;
		options.elementSize = 4;
		options.tag = mine;
		gloo::allreduce(options);
	}));
	truth_count("calls", "allreduce", 1);
	truth_count("calls", "wait", 1);
}

void step(long number, long load, long forward, long late)
{
	torch::autograd::Engine engine;

	record("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", load);
	truth_count("calls", "data_loader", 1);
	record("DistributedDataParallel.forward", forward + late);
	engine.pass = [=] {
		pause_us(forward);
		reduce(1000, [](std::function<void()> done) {
			c10d::Reducer reducer;

			reducer.done = done;
			reducer.finalize_backward();
		});
	};
	engine.execute({}, {}, false, false, true, {});
	truth_count("calls", "backward", 1);
	record("Optimizer.step#SGD.step", 100);
	if (number % 8 == 7)
		reduce(1, [](std::function<void()> done) {
			c10d::Work work;

			work.done = done;
			work.wait({});
		});
}

std::unique_ptr<c10d::ProcessGroupGloo> pipeline;

template <typename Kind> void wait_for(const c10::intrusive_ptr<c10d::Work> &begun)
{
	Kind *work = reinterpret_cast<Kind *>(begun.target);

	work->wait({});
	delete work;
}

void send(int peer)
{
	std::vector<at::Tensor> tensors;

	wait_for<c10d::ProcessGroupGloo::SendWork>(pipeline->send(tensors, peer, 0));
	truth_count("calls", "send", 1);
}

void receive(int peer)
{
	std::vector<at::Tensor> tensors;

	wait_for<c10d::ProcessGroupGloo::RecvWork>(pipeline->recv(tensors, peer, 0));
	truth_count("calls", "recv", 1);
}

void stage_step(int rank, int size, long load, long forward, long late)
{
	torch::autograd::Engine engine;

	if (rank)
		receive(rank - 1);
	else
		record("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", load);
	pause_us(forward + late);
	if (rank + 1 < size) {
		send(rank + 1);
		receive(rank + 1);
	}
	engine.pass = [=] { pause_us(2 * forward); };
	engine.execute({}, {}, false, false, true, {});
	if (rank)
		send(rank - 1);
	record("Optimizer.step#SGD.step", 100);
}

// Some that were begun before, one with a tag, and one from whoever sent it, after which none has a number.
void receive_otherwise(int rank)
{
	using Group = c10d::ProcessGroupGloo;
	std::vector<at::Tensor> tensors;

	if (rank == 0) {
		for (int tag : { 0, 0, 9, 0, 0 })
			wait_for<Group::SendWork>(pipeline->send(tensors, 1, tag));
		truth_count("calls", "send", 5);
	} else if (rank == 1) {
		auto first = pipeline->recv(tensors, 0, 0), second = pipeline->recv(tensors, 0, 0);

		wait_for<Group::RecvWork>(second);
		wait_for<Group::RecvWork>(first);
		wait_for<Group::RecvWork>(pipeline->recv(tensors, 0, 9));
		wait_for<Group::RecvWork>(pipeline->recvAnysource(tensors, 0));
		wait_for<Group::RecvWork>(pipeline->recv(tensors, 0, 0));
		truth_count("calls", "recv", 5);
	}
}

} // namespace

int main(int argc, char **argv)
{
	long steps = truth_option(argc, argv, "steps", 23),
	     load = truth_option(argc, argv, "load-us", 500);
	long forward = truth_option(argc, argv, "forward-us", 500);
	long late = truth_option(argc, argv, "late-us", 0),
	     from = truth_option(argc, argv, "late-from", 0);
	int rank = atoi(getenv("RANK")), size = atoi(getenv("WORLD_SIZE"));
	gloo::BroadcastOptions broadcast;
	gloo::AllgatherOptions allgather;
	gloo::BarrierOptions barrier;

	group = std::make_shared<gloo::Context>(rank, size);
	if (truth_option(argc, argv, "pipeline", 0)) {
		pipeline = std::make_unique<c10d::ProcessGroupGloo>(
			c10::intrusive_ptr<c10d::Store>(), rank, size,
			c10::intrusive_ptr<c10d::ProcessGroupGloo::Options>());
		for (long number = 0; number < steps; number++)
			stage_step(rank, size, load, forward, number >= from ? late : 0);
		receive_otherwise(rank);
		truth_print();
		return 0;
	}
	record("enumerate(DataLoader)#before",
	       10); // of no process that has called gloo: not recorded
	broadcast.context = allgather.context = barrier.context = group;
	broadcast.elements = 7;
	broadcast.elementSize = 8;
	broadcast.root = size - 1;
	broadcast.tag = tag++;
	gloo::broadcast(broadcast);
	allgather.in = std::make_unique<gloo::UnboundBuffer>(48);
	allgather.elementSize = 4;
	allgather.tag = tag++;
	gloo::allgather(allgather);
	for (long number = 0; number < steps; number++)
		step(number, load, forward, number >= from ? late : 0);
	barrier.tag = tag++;
	gloo::barrier(barrier);
	truth_count("calls", "broadcast", 1);
	truth_count("calls", "allgather", 1);
	truth_count("calls", "barrier", 1);
	truth_print();
	return 0;
}
