// SPDX-License-Identifier: Apache-2.0
//
// One rank of a data-parallel job as PyTorch runs it on CPUs: its main thread loads data, computes and waits, a thread
// beside it runs the collectives.
//
//   --steps=N (23) --load-us=N (500) --forward-us=N (500) --late-us=N (0) --late-from=N (0)
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
