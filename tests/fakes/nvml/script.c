// SPDX-License-Identifier: Apache-2.0
#include "script.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct rule {
	char function[FAKE_TEXT];
	char device[FAKE_TEXT]; /* "" for all */
	unsigned int code;
	unsigned int delay_ms;
};

/* Devices stay where they are when the script is read again: handles point to them. */
static struct fake_device devices[FAKE_DEVICES][FAKE_SLOTS + 1];
static struct rule rules[FAKE_RULES];
static unsigned int rule_count;
static char driver[FAKE_TEXT];
static struct stat read_at;

static bool find(const char *text, struct fake_device **found)
{
	unsigned int index, slot = FAKE_SLOTS;

	if (sscanf(text, "%u.%u", &index, &slot) < 1 || index >= FAKE_DEVICES || slot > FAKE_SLOTS)
		return false;
	*found = &devices[index][slot];
	return true;
}

static bool take_set(const char *line)
{
	char text[FAKE_TEXT], key[FAKE_TEXT], value[FAKE_TEXT];
	struct fake_device *device;

	if (sscanf(line, "set %95s %95s %95[^\n]", text, key, value) != 3 || !find(text, &device) ||
	    device->facts == FAKE_KEYS)
		return false;
	strcpy(device->fact[device->facts].key, key);
	strcpy(device->fact[device->facts++].value, value);
	return true;
}

static bool take_process(const char *line)
{
	struct fake_process process = { .gpu_instance = -1, .compute_instance = -1 };
	struct fake_device *device;
	char text[FAKE_TEXT];

	if (sscanf(line, "process %95s %u %llu %u %u %u %llu %u %u", text, &process.pid,
		   &process.bytes, &process.sm, &process.encoder, &process.decoder,
		   &process.timestamp, &process.gpu_instance, &process.compute_instance) < 7 ||
	    !find(text, &device) || device->processes == FAKE_PROCESSES)
		return false;
	device->process[device->processes++] = process;
	return true;
}

static bool take_rule(const char *line)
{
	struct rule rule = {};

	if (rule_count == FAKE_RULES ||
	    (sscanf(line, "fail %95s %u %95s", rule.function, &rule.code, rule.device) < 2 &&
	     sscanf(line, "delay %95s %u", rule.function, &rule.delay_ms) < 2))
		return false;
	rules[rule_count++] = rule;
	return true;
}

static bool take(const char *line)
{
	return line[0] == '#' || line[0] == '\n' || sscanf(line, "driver %95s", driver) == 1 ||
	       take_set(line) || take_process(line) || take_rule(line);
}

static void forget(void)
{
	memset(devices, 0, sizeof(devices));
	for (unsigned int index = 0; index < FAKE_DEVICES; index++)
		for (unsigned int slot = 0; slot <= FAKE_SLOTS; slot++) {
			devices[index][slot].index = index;
			devices[index][slot].slot = slot;
		}
	rule_count = 0;
	driver[0] = '\0';
}

bool fake_refresh(void)
{
	const char *path = getenv("FAKE_NVML");
	struct stat now;
	char line[512];
	FILE *file;

	if (!path || stat(path, &now))
		return false;
	if (now.st_ino == read_at.st_ino && now.st_size == read_at.st_size &&
	    !memcmp(&now.st_mtim, &read_at.st_mtim, sizeof(now.st_mtim)))
		return true;
	file = fopen(path, "r");
	if (!file)
		return false;
	read_at = now;
	forget();
	while (fgets(line, sizeof(line), file))
		if (!take(line)) {
			fprintf(stderr, "FAKE_NVML: cannot use: %s", line);
			abort();
		}
	fclose(file);
	return true;
}

struct fake_device *fake_device(unsigned int index, unsigned int slot)
{
	struct fake_device *device;

	if (index >= FAKE_DEVICES || slot > FAKE_SLOTS)
		return NULL;
	device = &devices[index][slot];
	return fake_fact(device, "uuid") ? device : NULL;
}

const char *fake_fact(const struct fake_device *device, const char *key)
{
	for (unsigned int i = 0; i < device->facts; i++)
		if (!strcmp(device->fact[i].key, key))
			return device->fact[i].value;
	return NULL;
}

const char *fake_driver(void)
{
	return driver;
}

int fake_enter(const char *function, const struct fake_device *device, pthread_mutex_t *held)
{
	for (unsigned int i = 0; i < rule_count; i++) {
		const struct rule *rule = &rules[i];
		struct fake_device *only = NULL;
		unsigned int delay_ms = rule->delay_ms;
		int code = rule->code;

		if (strcmp(rule->function, function) && !(device && !strcmp(rule->function, "*")))
			continue;
		if (rule->device[0] && (!find(rule->device, &only) || only != device))
			continue;
		if (delay_ms) {
			pthread_mutex_unlock(held);
			usleep(delay_ms * 1000);
			pthread_mutex_lock(held);
		}
		if (code)
			return code;
	}
	return 0;
}
