// SPDX-License-Identifier: Apache-2.0
//
// Calls CUDA functions an exact number of times and says so: each function named by --functions is
// called --calls times in all, shared out among --threads threads. What else is needed (a stream, a
// buffer) is called once per thread and counted too. Failing calls change nothing in that, so the
// program also serves on a machine with the real library and no GPU.
#include "kernels.h"

#include <getopt.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string>
#include <thread>

namespace
{

struct Options {
	long calls = 23;
	long threads = 1;
	long sleep_us = 0;
	long copy_bytes = 4096;
	long late_ms = 0;
	long linger_ms = 0;
	long exit_code = 0;
	bool wait = false;
	std::set<Function> functions = { FUNCTION_cudaLaunchKernel };
	const char *library = "libcudart.so.12";
};

// What can be called --calls times, in the order in which one round calls it.
const Function REPEATABLE[] = {
	FUNCTION_cudaMalloc,	       FUNCTION_cudaMemcpyAsync,
	FUNCTION_cudaLaunchKernel,     FUNCTION_cudaLaunchKernelExC,
	FUNCTION_cudaGraphLaunch,      FUNCTION_cudaStreamSynchronize,
	FUNCTION_cudaMemcpy,	       FUNCTION_cudaDeviceSynchronize,
	FUNCTION_cudaEventSynchronize, FUNCTION_cudaFree,
};

const char USAGE[] =
	"usage: cuda_client [options]\n"
	"  --calls N          how often each function is called, all threads together (23)\n"
	"  --functions LIST   comma-separated names, or all (cudaLaunchKernel)\n"
	"  --threads N        threads that share the calls (1)\n"
	"  --sleep-us N       pause after each round (0)\n"
	"  --copy-bytes N     bytes of each copy and allocation (4096)\n"
	"  --launch STYLE     stub: launch the host stub's address; handle: as nvcc since 12.9 "
	"(stub)\n"
	"  --wait             print `ready PID` to stderr, and begin when a line comes on stdin\n"
	"  --late-ms N        cuda_client_late only: open the library this much later (0)\n"
	"  --library NAME     cuda_client_late only: what to open (libcudart.so.12)\n"
	"  --linger-ms N      stay this long after the last call (0)\n"
	"  --times            print the CLOCK_MONOTONIC time of each call too\n"
	"  --exit-code N      exit with it (0)\n"
	"Prints one JSON line: pid, library, calls {function: count}, failures {function: {code: "
	"count}}.\n";

[[noreturn]] void reject(const char *what, const char *value)
{
	fprintf(stderr, "cuda_client: %s: '%s'\n%s", what, value, USAGE);
	exit(2);
}

long parse_number(const char *option, const char *text, long least)
{
	char *end;
	long number = strtol(text, &end, 10);
	if (*text == '\0' || *end != '\0' || number < least)
		reject(option, text);
	return number;
}

std::set<Function> parse_functions(const char *text)
{
	std::set<Function> functions;
	std::string rest = text;
	if (rest == "all")
		return { std::begin(REPEATABLE), std::end(REPEATABLE) };
	while (!rest.empty()) {
		std::string name = rest.substr(0, rest.find(','));
		rest.erase(0, name.size() + 1);
		bool known = false;
		for (Function function : REPEATABLE) {
			if (name == function_names[function]) {
				functions.insert(function);
				known = true;
			}
		}
		if (!known)
			reject("not a function that can be repeated", name.c_str());
	}
	return functions;
}

Options parse_options(int argc, char **argv)
{
	static const option LONG[] = {
		{ "calls", required_argument, nullptr, 'n' },
		{ "functions", required_argument, nullptr, 'f' },
		{ "threads", required_argument, nullptr, 't' },
		{ "sleep-us", required_argument, nullptr, 's' },
		{ "launch", required_argument, nullptr, 'k' },
		{ "copy-bytes", required_argument, nullptr, 'b' },
		{ "wait", no_argument, nullptr, 'w' },
		{ "late-ms", required_argument, nullptr, 'l' },
		{ "library", required_argument, nullptr, 'L' },
		{ "linger-ms", required_argument, nullptr, 'g' },
		{ "times", no_argument, nullptr, 'T' },
		{ "exit-code", required_argument, nullptr, 'x' },
		{ "help", no_argument, nullptr, 'h' },
		{ nullptr, 0, nullptr, 0 },
	};
	Options options;
	int letter;
	while ((letter = getopt_long(argc, argv, "", LONG, nullptr)) != -1) {
		switch (letter) {
		case 'n':
			options.calls = parse_number("--calls", optarg, 0);
			break;
		case 'f':
			options.functions = parse_functions(optarg);
			break;
		case 't':
			options.threads = parse_number("--threads", optarg, 1);
			break;
		case 's':
			options.sleep_us = parse_number("--sleep-us", optarg, 0);
			break;
		case 'b':
			options.copy_bytes = parse_number("--copy-bytes", optarg, 1);
			break;
		case 'k':
			launch_by_handle = strcmp(optarg, "handle") == 0;
			if (!launch_by_handle && strcmp(optarg, "stub") != 0)
				reject("--launch", optarg);
			break;
		case 'w':
			options.wait = true;
			break;
#ifdef CUDA_CLIENT_LATE
		case 'l':
			options.late_ms = parse_number("--late-ms", optarg, 0);
			break;
		case 'L':
			options.library = optarg;
			break;
#else
		case 'l':
		case 'L':
			reject("only cuda_client_late opens the library itself", argv[optind - 1]);
#endif
		case 'g':
			options.linger_ms = parse_number("--linger-ms", optarg, 0);
			break;
		case 'T':
			ledger.keep_times = true;
			break;
		case 'x':
			options.exit_code = parse_number("--exit-code", optarg, 0);
			break;
		case 'h':
			fputs(USAGE, stdout);
			exit(0);
		default:
			fputs(USAGE, stderr);
			exit(2);
		}
	}
	if (optind < argc)
		reject("unexpected argument", argv[optind]);
	return options;
}

// One thread: its stream, buffers, event and graph, and its share of the rounds.
class Worker
{
      public:
	explicit Worker(const Options &options) : options_(options), host_(options.copy_bytes)
	{
	}

	void run(long first)
	{
		set_up();
		for (long round = first; round < options_.calls; round += options_.threads) {
			for (Function function : REPEATABLE)
				if (options_.functions.count(function))
					call(function, round);
			if (options_.sleep_us)
				usleep(useconds_t(options_.sleep_us));
		}
		tear_down();
	}

      private:
	const Options &options_;
	std::vector<char> host_;
	cudaStream_t stream_ = nullptr;
	cudaEvent_t event_ = nullptr;
	cudaGraph_t graph_ = nullptr;
	cudaGraphExec_t executable_ = nullptr;
	void *device_ = nullptr;
	bool owns_device_ = false;

	bool calls(Function function) const
	{
		return options_.functions.count(function) != 0;
	}

	void set_up()
	{
		CUDART(cudaStreamCreate, &stream_);
		if (calls(FUNCTION_cudaEventSynchronize)) {
			CUDART(cudaEventCreate, &event_);
			CUDART(cudaEventRecord, event_, stream_);
		}
		if (calls(FUNCTION_cudaGraphLaunch)) {
			// An empty graph: filling it would add to the counts of what fills it.
			CUDART(cudaStreamBeginCapture, stream_, cudaStreamCaptureModeThreadLocal);
			CUDART(cudaStreamEndCapture, stream_, &graph_);
			CUDART(cudaGraphInstantiate, &executable_, graph_, 0ULL);
		}
		if ((calls(FUNCTION_cudaMemcpy) || calls(FUNCTION_cudaMemcpyAsync)) &&
		    !calls(FUNCTION_cudaMalloc)) {
			CUDART(cudaMalloc, &device_, host_.size());
			owns_device_ = true;
		}
	}

	void call(Function function, long round)
	{
		const float *input = static_cast<const float *>(device_);
		float *output = static_cast<float *>(device_);
		int rows = int(round);
		switch (function) {
		case FUNCTION_cudaMalloc:
			device_ = nullptr;
			CUDART(cudaMalloc, &device_, host_.size());
			break;
		case FUNCTION_cudaFree:
			CUDART(cudaFree, owns_device_ ? nullptr : device_);
			if (!owns_device_)
				device_ = nullptr;
			break;
		case FUNCTION_cudaMemcpyAsync:
			CUDART(cudaMemcpyAsync, device_, host_.data(), host_.size(),
			       cudaMemcpyHostToDevice, stream_);
			break;
		case FUNCTION_cudaMemcpy:
			CUDART(cudaMemcpy, host_.data(), device_, host_.size(),
			       cudaMemcpyDeviceToHost);
			break;
		case FUNCTION_cudaLaunchKernel:
			if (round % 2)
				LAUNCH((rms_norm<float, 128>), dim3(8), dim3(128), 0, stream_,
				       input, output, rows);
			else
				LAUNCH(flash_fwd, dim3(16, 2, 1), dim3(32, 4, 2), 1024, stream_,
				       input, output, rows);
			break;
		case FUNCTION_cudaLaunchKernelExC: {
			void *arguments[] = { &input, &output, &rows };
			cudaLaunchConfig_t config = { dim3(4, 5, 6), dim3(64, 2, 1), 2048,
						      stream_,	     nullptr,	     0 };
			CUDART(cudaLaunchKernelExC, &config,
			       reinterpret_cast<const void *>(&flash_fwd), arguments);
			break;
		}
		case FUNCTION_cudaGraphLaunch:
			CUDART(cudaGraphLaunch, executable_, stream_);
			break;
		case FUNCTION_cudaStreamSynchronize:
			CUDART(cudaStreamSynchronize, stream_);
			break;
		case FUNCTION_cudaDeviceSynchronize:
			CUDART(cudaDeviceSynchronize);
			break;
		case FUNCTION_cudaEventSynchronize:
			CUDART(cudaEventSynchronize, event_);
			break;
		default:
			abort(); // REPEATABLE and this switch name the same functions
		}
	}

	void tear_down()
	{
		if (executable_)
			CUDART(cudaGraphExecDestroy, executable_);
		if (graph_)
			CUDART(cudaGraphDestroy, graph_);
		if (event_)
			CUDART(cudaEventDestroy, event_);
		if (owns_device_ && !calls(FUNCTION_cudaFree))
			CUDART(cudaFree, device_);
		if (stream_)
			CUDART(cudaStreamDestroy, stream_);
	}
};

void print_ledger(int64_t opened_ns, int64_t start_ns, int64_t end_ns)
{
	const char *separator = "";
	printf("{\"pid\": %d, \"library\": \"%s\", \"opened_ns\": %lld, \"start_ns\": %lld, "
	       "\"end_ns\": %lld",
	       int(getpid()), cudart_path(), (long long)opened_ns, (long long)start_ns,
	       (long long)end_ns);
	printf(", \"calls\": {");
	for (int function = 0; function < FUNCTION_COUNT; function++) {
		uint64_t count = ledger.counts[function];
		if (!count)
			continue;
		printf("%s\"%s\": %llu", separator, function_names[function],
		       (unsigned long long)count);
		separator = ", ";
	}
	printf("}, \"failures\": {");
	Function last = FUNCTION_COUNT;
	for (const auto &[failure, count] : ledger.failures) {
		const auto &[function, code] = failure;
		if (function != last)
			printf("%s\"%s\": {", last == FUNCTION_COUNT ? "" : "}, ",
			       function_names[function]);
		printf("%s\"%u\": %llu", function == last ? ", " : "", code,
		       (unsigned long long)count);
		last = function;
	}
	printf("%s}", last == FUNCTION_COUNT ? "" : "}");
	if (ledger.keep_times) {
		printf(", \"times\": [");
		separator = "";
		for (const auto &[function, time_ns] : ledger.times) {
			printf("%s[\"%s\", %lld]", separator, function_names[function],
			       (long long)time_ns);
			separator = ", ";
		}
		printf("]");
	}
	printf("}\n");
	fflush(stdout);
}

} // namespace

int main(int argc, char **argv)
{
	Options options = parse_options(argc, argv);
	if (options.wait) {
		fprintf(stderr, "ready %d\n", int(getpid()));
		if (getchar() == EOF)
			reject("--wait", "stdin was closed before a line came");
	}
	usleep(useconds_t(options.late_ms * 1000));
	open_cudart(options.library);
	int64_t opened_ns = now_ns();

	std::vector<Worker> workers(size_t(options.threads), Worker(options));
	std::vector<std::thread> threads;
	int64_t start_ns = now_ns();
	for (long first = 1; first < options.threads; first++)
		threads.emplace_back([&workers, first] { workers[size_t(first)].run(first); });
	workers[0].run(0);
	for (std::thread &thread : threads)
		thread.join();
	print_ledger(opened_ns, start_ns, now_ns());

	usleep(useconds_t(options.linger_ms * 1000));
	return int(options.exit_code);
}
