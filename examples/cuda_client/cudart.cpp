// SPDX-License-Identifier: Apache-2.0
#include "cudart.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

const char *const function_names[FUNCTION_COUNT] = {
#define NAME(name) #name,
	CUDART_FUNCTIONS(NAME)
#undef NAME
};

Cudart cudart;
Ledger ledger;

#ifdef CUDA_CLIENT_LATE

static void *find(void *library, const char *name)
{
	void *address = dlsym(library, name);
	if (!address) {
		fprintf(stderr, "cuda_client: %s\n", dlerror());
		exit(2);
	}
	return address;
}

void open_cudart(const char *path)
{
	void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!library) {
		fprintf(stderr, "cuda_client: %s\n", dlerror());
		exit(2);
	}
#define FIND(name) cudart.name = reinterpret_cast<decltype(cudart.name)>(find(library, #name));
	CUDART_FUNCTIONS(FIND)
#undef FIND
}

#else

void open_cudart(const char *)
{
#define TAKE(name) cudart.name = &::name;
	CUDART_FUNCTIONS(TAKE)
#undef TAKE
}

#endif

const char *cudart_path()
{
	Dl_info info;
	return dladdr(reinterpret_cast<void *>(cudart.cudaLaunchKernel), &info) ? info.dli_fname
										: "";
}
