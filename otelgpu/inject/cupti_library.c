/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "cupti_library.h"

#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What is mapped, as far as it says which CUPTI is meant. */
struct mapped {
	char cupti[PATH_MAX];
	char cudart[PATH_MAX];
};

static int look_at(struct dl_phdr_info *info, size_t size, void *data)
{
	struct mapped *mapped = data;
	const char *name = strrchr(info->dlpi_name, '/');
	char *into = NULL;

	(void)size;
	name = name ? name + 1 : info->dlpi_name;
	if (!strncmp(name, "libcupti.so", 11))
		into = mapped->cupti;
	else if (!strncmp(name, "libcudart.so", 12) || !strncmp(name, "libcudart-", 10))
		into = mapped->cudart;
	if (into && !*into && strlen(info->dlpi_name) < PATH_MAX)
		strcpy(into, info->dlpi_name);
	return 0;
}

/* 12 of libcudart.so.12 and of libcudart-0123abcd.so.12.4.127; 0: it does not say. */
static int major_of(const char *path)
{
	const char *number = strstr(path, ".so.");
	int major = number ? atoi(number + 4) : 0;

	return major >= 11 && major < 100 ? major : 0;
}

static void *open_at(const char *directory, size_t length, const char *below, int major)
{
	char path[PATH_MAX];
	int written = snprintf(path, sizeof(path), "%.*s%s/libcupti.so.%d", (int)length, directory,
			       below, major);

	if (written < 0 || (size_t)written >= sizeof(path))
		return NULL;
	return dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

/* Where libcupti lies, seen from the directory of libcudart. */
static const char *const beside[] = {
	"",				/* toolkit; CUDA 13 wheels */
	"/../../cuda_cupti/lib",	/* wheels: nvidia/cuda_runtime/lib */
	"/../../nvidia/cuda_cupti/lib", /* a copy within another wheel: torch/lib */
	"/../extras/CUPTI/lib64",	/* toolkit */
	"/../../../extras/CUPTI/lib64", /* toolkit: targets/x86_64-linux/lib */
};

static void *open_for(const char *cudart, int major)
{
	const char *slash = strrchr(cudart, '/');
	const char *home = getenv("CUDA_HOME");
	char name[32];
	void *handle = NULL;

	for (size_t i = 0; slash && !handle && i < sizeof(beside) / sizeof(*beside); i++)
		handle = open_at(cudart, (size_t)(slash - cudart), beside[i], major);
	if (!handle && home && *home)
		handle = open_at(home, strlen(home), "/extras/CUPTI/lib64", major);
	if (!handle && home && *home)
		handle = open_at(home, strlen(home), "/lib64", major);
	snprintf(name, sizeof(name), "libcupti.so.%d", major);
	return handle ? handle : dlopen(name, RTLD_NOW | RTLD_LOCAL);
}

/* CUDA 11's libcupti is called by its full version only: the toolkit's link stands for it. */
static void *find(void)
{
	const char *given = getenv("OTELGPU_CUPTI");
	struct mapped mapped = {};
	void *handle = NULL;
	int major;

	if (given && *given)
		return dlopen(given, RTLD_NOW | RTLD_LOCAL);
	dl_iterate_phdr(look_at, &mapped);
	if (*mapped.cupti)
		handle = dlopen(mapped.cupti, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
	major = major_of(mapped.cudart);
	if (!handle && major)
		handle = open_for(mapped.cudart, major);
	else if (!handle) /* the driver API alone, or a static runtime: the newest that there is */
		for (major = 13; !handle && major >= 11; major--)
			handle = open_for("", major);
	return handle ? handle : dlopen("libcupti.so", RTLD_NOW | RTLD_LOCAL);
}

enum cupti_found cupti_library_open(struct cupti_library *library)
{
	void *handle = find();

	if (!handle)
		return CUPTI_NOT_FOUND;
#define OPTIONAL(name, parameters) *(void **)&library->name = dlsym(handle, "cupti" #name);
#define REQUIRED(name, parameters) \
	OPTIONAL(name, parameters) \
	if (!library->name)        \
		return CUPTI_INCOMPLETE;
	CUPTI_FUNCTIONS(REQUIRED)
	CUPTI_OPTIONAL_FUNCTIONS(OPTIONAL)
#undef REQUIRED
#undef OPTIONAL
	return CUPTI_FOUND;
}
