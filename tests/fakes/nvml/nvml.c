// SPDX-License-Identifier: Apache-2.0
/*
 * A fake libnvidia-ml.so.1 that answers what the script says (script.h).
 * What a device has no fact for is NVML_ERROR_NOT_SUPPORTED, as on a real one.
 */
#include "nvml.h"
#include "script.h"

#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define API __attribute__((visibility("default"))) nvmlReturn_t

static int initialized;

/* One call at a time: NVML may be asked by several threads, and the script is read anew by whoever comes first. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static pthread_mutex_t *locked(void)
{
	pthread_mutex_lock(&lock);
	return &lock;
}

static void unlock(pthread_mutex_t **held)
{
	pthread_mutex_unlock(*held);
}

#define LOCKED pthread_mutex_t *held __attribute__((cleanup(unlock), unused)) = locked()

/* What every function does first: it answers what the script says, or goes on. */
#define ENTER(device)                                            \
	LOCKED;                                                  \
	do {                                                     \
		nvmlReturn_t answer = enter(__func__, (device)); \
		if (answer)                                      \
			return answer;                           \
	} while (0)

static nvmlReturn_t enter(const char *function, nvmlDevice_t device)
{
	if (!fake_refresh())
		return NVML_ERROR_DRIVER_NOT_LOADED;
	if (!initialized)
		return NVML_ERROR_UNINITIALIZED;
	return fake_enter(function, device, &lock);
}

static nvmlReturn_t number(nvmlDevice_t device, const char *key, unsigned long long *value)
{
	const char *text = fake_fact(device, key);

	if (!text)
		return NVML_ERROR_NOT_SUPPORTED;
	*value = strtoull(text, NULL, 0);
	return NVML_SUCCESS;
}

static nvmlReturn_t small(nvmlDevice_t device, const char *key, unsigned int *value)
{
	unsigned long long wide;
	nvmlReturn_t answer = number(device, key, &wide);

	if (!answer)
		*value = wide;
	return answer;
}

static nvmlReturn_t text(nvmlDevice_t device, const char *key, char *buffer, unsigned int size)
{
	const char *value = fake_fact(device, key);

	if (!value)
		return NVML_ERROR_NOT_SUPPORTED;
	if (strlen(value) >= size)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	strcpy(buffer, value);
	return NVML_SUCCESS;
}

/* Functions that answer one number, or one text, of a device. */
#define NUMBER(function, key)                                  \
	API function(nvmlDevice_t device, unsigned int *value) \
	{                                                      \
		ENTER(device);                                 \
		return small(device, key, value);              \
	}
#define TEXT(function, key)                                                \
	API function(nvmlDevice_t device, char *buffer, unsigned int size) \
	{                                                                  \
		ENTER(device);                                             \
		return text(device, key, buffer, size);                    \
	}
/* … or one of several, chosen by a number of NVML's. */
#define CHOICE(function, ...)                                                      \
	API function(nvmlDevice_t device, unsigned int which, unsigned int *value) \
	{                                                                          \
		static const char *const keys[] = { __VA_ARGS__ };                 \
                                                                                   \
		ENTER(device);                                                     \
		if (which >= sizeof(keys) / sizeof(*keys))                         \
			return NVML_ERROR_INVALID_ARGUMENT;                        \
		return small(device, keys[which], value);                          \
	}

NUMBER(nvmlDeviceGetMinorNumber, "minor")
NUMBER(nvmlDeviceGetPowerUsage, "power_average")
NUMBER(nvmlDeviceGetEnforcedPowerLimit, "power_limit")
NUMBER(nvmlDeviceGetMaxMigDeviceCount, "mig_slots")
NUMBER(nvmlDeviceGetGpuInstanceId, "gpu_instance")
NUMBER(nvmlDeviceGetComputeInstanceId, "compute_instance")
TEXT(nvmlDeviceGetUUID, "uuid")
TEXT(nvmlDeviceGetName, "name")
TEXT(nvmlDeviceGetSerial, "serial")
TEXT(nvmlDeviceGetVbiosVersion, "vbios")
CHOICE(nvmlDeviceGetTemperature, "temperature")
CHOICE(nvmlDeviceGetTemperatureThreshold, "temperature_shutdown", "temperature_slowdown")
CHOICE(nvmlDeviceGetClockInfo, "clock_graphics", "clock_sm", "clock_memory", "clock_video")
CHOICE(nvmlDeviceGetPcieThroughput, "pcie_tx_rate", "pcie_rx_rate")

API nvmlInitWithFlags(unsigned int flags)
{
	nvmlReturn_t answer;
	LOCKED;

	(void)flags;
	if (!fake_refresh())
		return NVML_ERROR_DRIVER_NOT_LOADED;
	answer = fake_enter(__func__, NULL, &lock);
	initialized += !answer;
	return answer;
}

API nvmlShutdown(void)
{
	LOCKED;

	if (!initialized)
		return NVML_ERROR_UNINITIALIZED;
	initialized--;
	return NVML_SUCCESS;
}

__attribute__((visibility("default"))) const char *nvmlErrorString(nvmlReturn_t code)
{
	static char words[32];

	snprintf(words, sizeof(words), "error %u", code);
	return words;
}

API nvmlSystemGetDriverVersion(char *version, unsigned int size)
{
	ENTER(NULL);
	snprintf(version, size, "%s", fake_driver());
	return NVML_SUCCESS;
}

API nvmlDeviceGetCount_v2(unsigned int *count)
{
	ENTER(NULL);
	*count = 0;
	while (fake_device(*count, FAKE_SLOTS))
		++*count;
	return NVML_SUCCESS;
}

API nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
	ENTER(NULL);
	*device = fake_device(index, FAKE_SLOTS);
	return *device ? fake_enter(__func__, *device, &lock) : NVML_ERROR_INVALID_ARGUMENT;
}

API nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int slot, nvmlDevice_t *found)
{
	ENTER(device);
	*found = slot < FAKE_SLOTS ? fake_device(device->index, slot) : NULL;
	return *found ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

API nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending)
{
	ENTER(device);
	*pending = 0;
	return small(device, "mig", current);
}

API nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *info)
{
	ENTER(device);
	memset(info, 0, sizeof(*info));
	return text(device, "pci", info->busId, sizeof(info->busId));
}

/* Of NVLink n: "nvlink.n" is whether it is active, "nvlink.n.type" what it leads to, "nvlink.n.pci" where that is. */
static const char *of_link(unsigned int link, const char *what)
{
	static char key[32];

	snprintf(key, sizeof(key), "nvlink.%u%s", link, what);
	return key;
}

API nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link, unsigned int *active)
{
	ENTER(device);
	return small(device, of_link(link, ""), active);
}

API nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned int link, unsigned int *type)
{
	ENTER(device);
	return small(device, of_link(link, ".type"), type);
}

API nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned int link, nvmlPciInfo_t *info)
{
	ENTER(device);
	memset(info, 0, sizeof(*info));
	return text(device, of_link(link, ".pci"), info->busId, sizeof(info->busId));
}

API nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates)
{
	nvmlReturn_t answer;

	ENTER(device);
	answer = small(device, "utilization", &rates->gpu);
	return answer ? answer : small(device, "memory_utilization", &rates->memory);
}

API nvmlDeviceGetEncoderUtilization(nvmlDevice_t device, unsigned int *percent,
				    unsigned int *period_us)
{
	ENTER(device);
	*period_us = 167000;
	return small(device, "encoder", percent);
}

API nvmlDeviceGetDecoderUtilization(nvmlDevice_t device, unsigned int *percent,
				    unsigned int *period_us)
{
	ENTER(device);
	*period_us = 167000;
	return small(device, "decoder", percent);
}

API nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
	unsigned long long reserved = 0;
	nvmlReturn_t answer;

	ENTER(device);
	number(device, "memory_reserved", &reserved);
	answer = number(device, "memory_total", &memory->total);
	if (!answer)
		answer = number(device, "memory_used", &memory->used);
	memory->used += reserved; /* version 1 does not distinguish them */
	memory->free = memory->total - memory->used;
	return answer;
}

API nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
	nvmlReturn_t answer;

	ENTER(device);
	if (memory->version != NVML_MEMORY_V2)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	memory->reserved = 0;
	number(device, "memory_reserved", &memory->reserved);
	answer = number(device, "memory_total", &memory->total);
	if (!answer)
		answer = number(device, "memory_used", &memory->used);
	memory->free = memory->total - memory->used - memory->reserved;
	return answer;
}

API nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, unsigned long long *reasons)
{
	ENTER(device);
	return number(device, "throttle", reasons);
}

/* Keys are "field.<id>"; a value that ends in "u" has 32 bits, as some of NVML's counters have. */
API nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values)
{
	ENTER(device);
	for (int i = 0; i < count; i++) {
		nvmlFieldValue_t *value = &values[i];
		const char *fact;
		char key[32];

		snprintf(key, sizeof(key), "field.%u%s", value->fieldId,
			 value->scopeId == -1u ? ".all" : "");
		fact = fake_fact(device, key);
		value->nvmlReturn = fact ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
		if (!fact)
			continue;
		value->value.ullVal = strtoull(fact, NULL, 0);
		value->valueType = strchr(fact, 'u') ? NVML_VALUE_TYPE_UNSIGNED_INT
						     : NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
	}
	return NVML_SUCCESS;
}

API nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
					    nvmlProcessInfo_t *infos)
{
	unsigned int room = *count;

	ENTER(device);
	*count = device->processes;
	if (room < device->processes)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	for (unsigned int i = 0; i < device->processes; i++) {
		const struct fake_process *process = &device->process[i];

		infos[i] = (nvmlProcessInfo_t){ .pid = process->pid,
						.usedGpuMemory = process->bytes,
						.gpuInstanceId = process->gpu_instance,
						.computeInstanceId = process->compute_instance };
	}
	return NVML_SUCCESS;
}

/* Only what is newer than the caller saw, and nobody who was idle. */
API nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples,
				    unsigned int *count, unsigned long long since)
{
	unsigned int room = samples ? *count : 0, found = 0;

	ENTER(device);
	if (fake_fact(device, "mig"))
		return NVML_ERROR_NOT_SUPPORTED;
	for (unsigned int i = 0; i < device->processes; i++) {
		const struct fake_process *process = &device->process[i];

		if (process->timestamp <= since ||
		    !(process->sm | process->encoder | process->decoder))
			continue;
		if (found < room)
			samples[found] =
				(nvmlProcessUtilizationSample_t){ .pid = process->pid,
								  .timeStamp = process->timestamp,
								  .smUtil = process->sm,
								  .encUtil = process->encoder,
								  .decUtil = process->decoder };
		found++;
	}
	*count = found;
	if (!found)
		return NVML_ERROR_NOT_FOUND;
	return found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

/* A sample: of which device, and when it was taken, counted. */
struct fake_sample {
	nvmlDevice_t device;
	unsigned long long taken;
};

static bool has_gpm(nvmlDevice_t device)
{
	for (unsigned int i = 0; i < device->facts; i++)
		if (!strncmp(device->fact[i].key, "gpm.", 4))
			return true;
	return false;
}

API nvmlGpmQueryDeviceSupport(nvmlDevice_t device, nvmlGpmSupport_t *support)
{
	ENTER(device);
	if (support->version != 1)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	support->isSupportedDevice = has_gpm(device);
	return NVML_SUCCESS;
}

API nvmlGpmSampleAlloc(nvmlGpmSample_t *sample)
{
	ENTER(NULL);
	*sample = calloc(1, sizeof(**sample));
	return *sample ? NVML_SUCCESS : NVML_ERROR_UNKNOWN;
}

API nvmlGpmSampleFree(nvmlGpmSample_t sample)
{
	ENTER(NULL);
	free(sample);
	return NVML_SUCCESS;
}

static unsigned long long samples_taken;

API nvmlGpmSampleGet(nvmlDevice_t device, nvmlGpmSample_t sample)
{
	ENTER(device);
	if (!has_gpm(device))
		return NVML_ERROR_NOT_SUPPORTED;
	*sample = (struct fake_sample){ .device = device, .taken = ++samples_taken };
	return NVML_SUCCESS;
}

/* Of a GPU, not of a MIG device's handle: the instance is told by its number. */
API nvmlGpmMigSampleGet(nvmlDevice_t device, unsigned int gpu_instance, nvmlGpmSample_t sample)
{
	ENTER(device);
	if (device->slot != FAKE_SLOTS || !has_gpm(device))
		return NVML_ERROR_NOT_SUPPORTED;
	for (unsigned int slot = 0; slot < FAKE_SLOTS; slot++) {
		nvmlDevice_t part = fake_device(device->index, slot);
		unsigned int number;

		if (!part || small(part, "gpu_instance", &number) || number != gpu_instance)
			continue;
		*sample = (struct fake_sample){ .device = part, .taken = ++samples_taken };
		return NVML_SUCCESS;
	}
	return NVML_ERROR_NOT_FOUND;
}

API nvmlGpmMetricsGet(nvmlGpmMetricsGet_t *asked)
{
	ENTER(NULL);
	if (asked->version != 1)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	if (!asked->sample1->taken || asked->sample1->taken >= asked->sample2->taken ||
	    asked->sample1->device != asked->sample2->device)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (unsigned int i = 0; i < asked->numMetrics; i++) {
		nvmlGpmMetric_t *metric = &asked->metrics[i];
		const char *fact;
		char key[32];

		snprintf(key, sizeof(key), "gpm.%u", metric->metricId);
		fact = fake_fact(asked->sample2->device, key);
		metric->nvmlReturn = fact ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
		if (fact)
			metric->value = strtod(fact, NULL);
	}
	return NVML_SUCCESS;
}
