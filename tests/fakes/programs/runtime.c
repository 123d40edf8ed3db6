/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program of the runtime API, the same for each way of linking it:
 *   (nothing)                          to libcudart.so.12, or libcudart_static.a
 *   CUDA_API_PER_THREAD_DEFAULT_STREAM the _ptsz forms, by the header's own defines
 *   PROGRAM_LATE                       opens each library of --libraries=PATH,… and does its work with each
 *   PROGRAM_LIBRARY                    a library with program_main() in it, for host.c
 *
 * Options: --launches=N --mallocs=N --copies=N --sets=N --synchronizations=N
 *          --nodes=N --graph-launches=N   a graph of so many kernels, launched so often
 *          --wait=1, --exec=PROGRAM       a child executes that, with the same counts
 *          --linger-ms=N                  before it ends
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <crt/host_runtime.h>

#include "truth.h"

#define COPY_BYTES 4096

/* Host stubs as nvcc makes them of two kernels: their addresses are what is launched. */
#define STUB __attribute__((noipa, used))
STUB void scale_rows(float *rows, int count) __asm__("_Z10scale_rowsPfi");
STUB void sum_columns(const float *columns, float *sums,
		      int count) __asm__("_Z11sum_columnsPKfPfi");

void scale_rows(float *rows, int count)
{
	(void)rows;
	(void)count;
	__builtin_trap();
}

void sum_columns(const float *columns, float *sums, int count)
{
	(void)columns;
	(void)sums;
	(void)count;
	__builtin_trap();
}

static const struct {
	const void *stub;
	const char *name;
} kernels[] = {
	{ (const void *)scale_rows, "_Z10scale_rowsPfi" },
	{ (const void *)sum_columns, "_Z11sum_columnsPKfPfi" },
};

#ifdef PROGRAM_LATE
#define FUNCTIONS(X)              \
	X(cudaLaunchKernel)       \
	X(cudaMalloc)             \
	X(cudaFree)               \
	X(cudaMemcpyAsync)        \
	X(cudaMemsetAsync)        \
	X(cudaStreamCreate)       \
	X(cudaStreamDestroy)      \
	X(cudaStreamSynchronize)  \
	X(cudaStreamBeginCapture) \
	X(cudaStreamEndCapture)   \
	X(cudaGraphInstantiate)   \
	X(cudaGraphGetNodes)      \
	X(cudaGraphLaunch)        \
	X(cudaGraphExecDestroy)   \
	X(cudaGraphDestroy)
#define MEMBER(function) static __typeof__(function) *function##_of_library;
FUNCTIONS(MEMBER)
#undef MEMBER

static void open_library(const char *path)
{
	void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);

	if (!library) {
		fprintf(stderr, "%s\n", dlerror());
		exit(2);
	}
#define FIND(function) *(void **)&function##_of_library = dlsym(library, #function);
	FUNCTIONS(FIND)
#undef FIND
}

#define CALL_RUNTIME(function, ...)                                     \
	do {                                                            \
		truth_count("calls", #function, 1);                     \
		CHECKED(function##_of_library(__VA_ARGS__), #function); \
	} while (0)
#else
#define CALL_RUNTIME CALL

/* What nvcc puts into a program: the fat binary is announced before main(). */
static const struct {
	uint32_t magic;
	uint16_t version, header_bytes;
	uint64_t bytes;
} fatbin __attribute__((section(".nv_fatbin"))) = { 0xBA55ED50, 1, 16, 0 };

static const struct {
	int magic, version;
	const void *data;
	void *unused;
} wrapper __attribute__((section(".nvFatBinSegment"))) = { 0x466243B1, 1, &fatbin, NULL };

__attribute__((constructor)) static void register_kernels(void)
{
	void **module = __cudaRegisterFatBinary((void *)&wrapper);

	for (size_t i = 0; i < sizeof(kernels) / sizeof(kernels[0]); i++)
		__cudaRegisterFunction(module, kernels[i].stub, (char *)kernels[i].name,
				       kernels[i].name, -1, NULL, NULL, NULL, NULL, NULL);
	__cudaRegisterFatBinaryEnd(module);
}
#endif

static void launch(long turn, cudaStream_t stream)
{
	size_t kernel = (size_t)turn % (sizeof(kernels) / sizeof(kernels[0]));
	dim3 grid = { 5, 3, 1 }, block = { 64, 2, 1 };

	CALL_RUNTIME(cudaLaunchKernel, kernels[kernel].stub, grid, block, NULL, 512, stream);
	truth_count("kernels", kernels[kernel].name, 1);
}

static void launch_graph(int argc, char **argv, cudaStream_t stream)
{
	long nodes = truth_option(argc, argv, "nodes", 0);
	cudaGraphExec_t executable;
	cudaGraph_t graph;
	size_t counted = 0;

	if (!nodes)
		return;
	CALL_RUNTIME(cudaStreamBeginCapture, stream, cudaStreamCaptureModeGlobal);
	for (long i = 0; i < nodes; i++)
		launch(i, stream);
	CALL_RUNTIME(cudaStreamEndCapture, stream, &graph);
	CALL_RUNTIME(cudaGraphGetNodes, graph, NULL, &counted);
	CALL_RUNTIME(cudaGraphInstantiate, &executable, graph, 0);
	truth_count("graph", "nodes", counted);
	for (long i = 0; i < truth_option(argc, argv, "graph-launches", 0); i++) {
		CALL_RUNTIME(cudaGraphLaunch, executable, stream);
		truth_count("graph", "launches", 1);
	}
	CALL_RUNTIME(cudaGraphExecDestroy, executable);
	CALL_RUNTIME(cudaGraphDestroy, graph);
}

static void work(int argc, char **argv)
{
	static char host[COPY_BYTES];
	cudaStream_t stream;
	void *device, *more;

	CALL_RUNTIME(cudaStreamCreate, &stream);
	CALL_RUNTIME(cudaMalloc, &device, COPY_BYTES);
	for (long i = 0; i < truth_option(argc, argv, "mallocs", 7); i++) {
		CALL_RUNTIME(cudaMalloc, &more, COPY_BYTES);
		CALL_RUNTIME(cudaFree, more);
	}
	for (long i = 0; i < truth_option(argc, argv, "copies", 11); i++) {
		CALL_RUNTIME(cudaMemcpyAsync, device, host, COPY_BYTES, cudaMemcpyHostToDevice,
			     stream);
		truth_count("bytes", "copied", COPY_BYTES);
	}
	for (long i = 0; i < truth_option(argc, argv, "sets", 5); i++) {
		CALL_RUNTIME(cudaMemsetAsync, device, 0, COPY_BYTES, stream);
		truth_count("bytes", "set", COPY_BYTES);
	}
	for (long i = 0; i < truth_option(argc, argv, "launches", 23); i++)
		launch(i, i % 2 ? stream : NULL);
	for (long i = 0; i < truth_option(argc, argv, "synchronizations", 3); i++)
		CALL_RUNTIME(cudaStreamSynchronize, stream);
	launch_graph(argc, argv, stream);
	CALL_RUNTIME(cudaStreamSynchronize, stream);
	CALL_RUNTIME(cudaFree, device);
	CALL_RUNTIME(cudaStreamDestroy, stream);
}

/* A child that becomes another program, before this one has touched the device. */
static pid_t execute(int argc, char **argv, const char *program)
{
	char *arguments[32] = { (char *)program };
	int count = 1;
	pid_t child = fork();

	if (child)
		return child;
	for (int i = 1; i < argc && count < 31; i++)
		if (strncmp(argv[i], "--exec=", 7) && strncmp(argv[i], "--wait=", 7))
			arguments[count++] = argv[i];
	execv(program, arguments);
	_exit(127);
}

static int run(int argc, char **argv)
{
	const char *program = truth_text(argc, argv, "exec");
	int status = 0;

	truth_wait(truth_option(argc, argv, "wait", 0));
	if (program) {
		pid_t child = execute(argc, argv, program);

		if (child < 0 || waitpid(child, &status, 0) != child || status)
			return 4;
	}
#ifdef PROGRAM_LATE
	const char *libraries = truth_text(argc, argv, "libraries");
	char *paths = strdup(libraries ? libraries : "libcudart.so.12"), *rest = NULL;

	for (char *path = strtok_r(paths, ",", &rest); path; path = strtok_r(NULL, ",", &rest)) {
		open_library(path);
		usleep((useconds_t)truth_option(argc, argv, "settle-ms", 0) * 1000);
		work(argc, argv);
	}
	free(paths);
#else
	work(argc, argv);
#endif
	truth_print();
	usleep((useconds_t)truth_option(argc, argv, "linger-ms", 0) * 1000);
	return 0;
}

#ifdef PROGRAM_LIBRARY
__attribute__((visibility("default"))) int program_main(int argc, char **argv);
int program_main(int argc, char **argv)
{
	return run(argc, argv);
}
#else
int main(int argc, char **argv)
{
	return run(argc, argv);
}
#endif
