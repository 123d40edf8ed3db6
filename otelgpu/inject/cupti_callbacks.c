// SPDX-License-Identifier: Apache-2.0
#include "cupti_callbacks.h"
#include "cupti.h"

#include <string.h>

#define CALLBACK_IDS_MAX 4096 /* asked for by name; CUDA 13.5 has fewer than 800 and 500 */
#define CALLBACKS_MAX	 512

static struct {
	int domain;
	uint32_t id;
} callbacks[CALLBACKS_MAX]; /* of the functions that make the device work */
static unsigned int callbacks_count;
static uint16_t observed[CUPTI_CB_DOMAIN_RUNTIME_API + 1][CALLBACK_IDS_MAX]; /* live: its number */

/* The function that CUPTI calls cudaLaunchKernel_v7000 is cudaLaunchKernel. */
static uint16_t function_named(int domain, const char *name)
{
	char known[128];
	const char *version = NULL;
	size_t length = strlen(name);

	if (domain == CUPTI_CB_DOMAIN_RUNTIME_API)
		for (const char *at = strstr(name, "_v"); at; at = strstr(at + 1, "_v"))
			version = at;
	if (version)
		length = (size_t)(version - name);
	if (length >= sizeof(known))
		return 0;
	memcpy(known, name, length);
	known[length] = '\0';
	return inject_reported_function(known);
}

static bool is_chosen(int domain, uint32_t id, const char *name, bool late)
{
	static const char *const beginnings[] = {
		"cudaLaunch", "cudaGraphLaunch", "cudaMemcpy", "cudaMemset",
		"cuLaunch",   "cuGraphLaunch",	 "cuMemcpy",   "cuMemset",
	};
	/* A slice ends where a thread comes back from waiting. */
	static const char *const waiting[] = {
		"cudaStreamSync", "cudaDeviceSync", "cudaEventSync",
		"cuStreamSync",	  "cuCtxSync",	    "cuEventSync",
	};
	bool found = false;

	for (size_t i = 0; i < sizeof(beginnings) / sizeof(*beginnings); i++)
		found |= !strncmp(name, beginnings[i], strlen(beginnings[i]));
	if (!late)
		return found;
	for (size_t i = 0; i < sizeof(waiting) / sizeof(*waiting); i++)
		found |= !strncmp(name, waiting[i], strlen(waiting[i]));
	observed[domain][id] = found ? function_named(domain, name) : 0;
	return observed[domain][id];
}

bool callbacks_choose(const struct cupti_library *cupti, bool late)
{
	callbacks_count = 0;

	for (int domain = CUPTI_CB_DOMAIN_DRIVER_API; domain <= CUPTI_CB_DOMAIN_RUNTIME_API;
	     domain++) {
		for (uint32_t id = 1; id < CALLBACK_IDS_MAX; id++) {
			const char *name = NULL;

			if (cupti->GetCallbackName(domain, id, &name) != CUPTI_SUCCESS)
				break;
			if (!name || callbacks_count == CALLBACKS_MAX ||
			    !is_chosen(domain, id, name, late))
				continue;
			callbacks[callbacks_count].domain = domain;
			callbacks[callbacks_count++].id = id;
		}
	}
	return callbacks_count > 0;
}

bool callbacks_enable(const struct cupti_library *cupti, CUpti_SubscriberHandle subscriber,
		      bool enable)
{
	bool all = true;

	for (unsigned int i = 0; i < callbacks_count; i++)
		all &= cupti->EnableCallback(enable, subscriber, callbacks[i].domain,
					     callbacks[i].id) == CUPTI_SUCCESS;
	return all;
}

uint16_t callbacks_function(int domain, uint32_t id)
{
	if (domain < CUPTI_CB_DOMAIN_DRIVER_API || domain > CUPTI_CB_DOMAIN_RUNTIME_API ||
	    id >= CALLBACK_IDS_MAX)
		return 0;
	return observed[domain][id];
}
