// SPDX-License-Identifier: Apache-2.0
//
// Allocates and frees by PyTorch's own caching allocator: the real libc10_cuda.so, without the rest of PyTorch.
//
//   --library=PATH                        libc10_cuda.so
//   --init=N --raw_alloc=N --raw_delete=N --empty_cache=N   where in that file these functions of its native
//                                         allocator are; they are virtual, at places that vary with the version
//   --operations=N (199) --seed=N (1) --devices=N (1)
//   --wait=1 --step=1                     as the other programs; --step=1: waits before each of the lines
//
// Three lines: after the operations, after one that was refused, and after the cache was emptied.
// {"made": [[address, bytes asked for], ...], "dropped": [address, ...], "refused": n, "live": n}: since the beginning.
#include <dlfcn.h>
#include <link.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <utility>
#include <vector>

extern "C" {
#include "../programs/truth.h"
}

namespace
{

// c10::cuda::CUDACachingAllocator::allocator, a std::atomic of a pointer
constexpr char ALLOCATOR[] = "_ZN3c104cuda20CUDACachingAllocator9allocatorE";
constexpr size_t TOO_MUCH = 1ull << 45;

void *self;
uintptr_t base;
uint64_t random_state = 1;
int refused;
std::vector<std::pair<void *, size_t>> live, made;
std::vector<void *> dropped;

template <typename Function> Function at(int argc, char **argv, const char *name)
{
	return reinterpret_cast<Function>(base + truth_option(argc, argv, name, 0));
}

uint64_t draw(uint64_t below)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return random_state % below;
}

void report(bool step)
{
	printf("{\"made\": [");
	for (size_t i = 0; i < made.size(); i++)
		printf("%s[%llu, %zu]", i ? ", " : "", (unsigned long long)(uintptr_t)made[i].first,
		       made[i].second);
	printf("], \"dropped\": [");
	for (size_t i = 0; i < dropped.size(); i++)
		printf("%s%llu", i ? ", " : "", (unsigned long long)(uintptr_t)dropped[i]);
	printf("], \"refused\": %d, \"live\": %zu}\n", refused, live.size());
	fflush(stdout);
	if (step)
		truth_line();
}

} // namespace

int main(int argc, char **argv)
{
	using Init = void (*)(void *, int);
	using Allocate = void *(*)(void *, size_t);
	using Delete = void (*)(void *, void *);
	using EmptyCache =
		void (*)(void *, uint64_t, uint64_t); // what a version lets one say of it: zeroes
	const char *path = truth_text(argc, argv, "library");
	void *library = path ? dlopen(path, RTLD_LAZY | RTLD_GLOBAL) : nullptr;
	link_map *map = nullptr;

	if (!library || dlinfo(library, RTLD_DI_LINKMAP, &map)) {
		fprintf(stderr, "%s\n", path ? dlerror() : "give --library");
		return 2;
	}
	base = map->l_addr;
	self = *static_cast<void **>(dlsym(library, ALLOCATOR));
	if (!self) {
		fprintf(stderr, "there is no allocator in it\n");
		return 2;
	}
	auto raw_alloc = at<Allocate>(argc, argv, "raw_alloc");
	auto raw_delete = at<Delete>(argc, argv, "raw_delete");
	long operations = truth_option(argc, argv, "operations", 199);
	bool step = truth_option(argc, argv, "step", 0);
	random_state = (uint64_t)truth_option(argc, argv, "seed", 1) * 0x9E3779B97F4A7C15ull | 1;
	at<Init>(argc, argv, "init")(self, (int)truth_option(argc, argv, "devices", 1));
	truth_wait(truth_option(argc, argv, "wait", 0));

	for (long done = 0; done < operations; done++) {
		if (live.empty() || draw(5) < 3) {
			size_t bytes = draw(4) ? draw(1 << 16) + 1 : draw(30 << 20) + 1;

			live.emplace_back(raw_alloc(self, bytes), bytes);
			made.push_back(live.back());
		} else {
			size_t place = draw(live.size());

			raw_delete(self, live[place].first);
			dropped.push_back(live[place].first);
			live[place] = live.back();
			live.pop_back();
		}
	}
	report(step);
	try {
		raw_alloc(self, TOO_MUCH);
	} catch (const std::exception &error) {
		refused += strstr(error.what(), "out of memory") != nullptr;
	}
	report(step);
	at<EmptyCache>(argc, argv, "empty_cache")(self, 0, 0);
	// What is reserved is reported with the next report.
	live.emplace_back(raw_alloc(self, 512), 512);
	made.push_back(live.back());
	report(step);
	return 0;
}
