// SPDX-License-Identifier: Apache-2.0
//
// The CUDA runtime as this program reaches it: linked, or (built with CUDA_CLIENT_LATE) opened
// while the program runs. Each call goes through CUDART(), which counts it, so that the program
// can say at its end exactly what it called.
#pragma once

#include <crt/host_runtime.h>

#include <atomic>
#include <cstdint>
#include <ctime>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#define CUDART_FUNCTIONS(X)            \
	X(cudaLaunchKernel)            \
	X(cudaLaunchKernelExC)         \
	X(cudaGraphLaunch)             \
	X(cudaMalloc)                  \
	X(cudaFree)                    \
	X(cudaMemcpy)                  \
	X(cudaMemcpyAsync)             \
	X(cudaStreamSynchronize)       \
	X(cudaDeviceSynchronize)       \
	X(cudaEventSynchronize)        \
	X(cudaStreamCreate)            \
	X(cudaStreamDestroy)           \
	X(cudaEventCreate)             \
	X(cudaEventRecord)             \
	X(cudaEventDestroy)            \
	X(cudaStreamBeginCapture)      \
	X(cudaStreamEndCapture)        \
	X(cudaGraphInstantiate)        \
	X(cudaGraphExecDestroy)        \
	X(cudaGraphDestroy)            \
	X(__cudaPushCallConfiguration) \
	X(__cudaPopCallConfiguration)  \
	X(__cudaGetKernel)             \
	X(__cudaLaunchKernel)

enum Function {
#define ENUMERATOR(name) FUNCTION_##name,
	CUDART_FUNCTIONS(ENUMERATOR)
#undef ENUMERATOR
		FUNCTION_COUNT,
};

struct Cudart {
#define MEMBER(name) decltype(&::name) name;
	CUDART_FUNCTIONS(MEMBER)
#undef MEMBER
};

extern const char *const function_names[FUNCTION_COUNT];
extern Cudart cudart;

// Fills `cudart`. `library` is what to dlopen; ignored where the program is linked to it.
// Ends the program with a line on stderr when the library or a function is missing.
void open_cudart(const char *library);

// The file that cudaLaunchKernel was found in.
const char *cudart_path();

// What was called so far, by all threads.
struct Ledger {
	std::atomic<uint64_t> counts[FUNCTION_COUNT];
	std::mutex lock; // of what follows
	std::map<std::pair<Function, unsigned>, uint64_t>
		failures; // (function, its code) -> how often
	bool keep_times = false;
	std::vector<std::pair<Function, int64_t>> times; // CLOCK_MONOTONIC just before each call
};
extern Ledger ledger;

inline int64_t now_ns()
{
	timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return int64_t(now.tv_sec) * 1000000000 + now.tv_nsec;
}

template <typename Result, typename... Parameters, typename... Arguments>
Result counted(Function function, Result (*address)(Parameters...), Arguments... arguments)
{
	ledger.counts[function].fetch_add(1, std::memory_order_relaxed);
	if (ledger.keep_times) {
		std::lock_guard<std::mutex> guard(ledger.lock);
		ledger.times.emplace_back(function, now_ns());
	}
	Result status = address(arguments...);
	if (status != Result()) {
		std::lock_guard<std::mutex> guard(ledger.lock);
		ledger.failures[{ function, unsigned(status) }]++;
	}
	return status;
}

#define CUDART(name, ...) counted(FUNCTION_##name, cudart.name, ##__VA_ARGS__)
