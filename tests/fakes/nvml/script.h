/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the fake NVML is to answer, from the text file that FAKE_NVML names.
 * It is read again whenever it is replaced or written to. One fact a line:
 *
 *     driver 570.86.10
 *     set DEVICE KEY VALUE          a fact of a device: see nvml.c for the keys
 *     set DEVICE gpm.NUMBER VALUE   a metric of GPM's, by its number in nvml.h; without one it has no GPM
 *     process DEVICE PID BYTES SM ENCODER DECODER TIMESTAMP [GPU_INSTANCE COMPUTE_INSTANCE]
 *     fail FUNCTION CODE [DEVICE]   FUNCTION answers CODE; "*" is all that take a device
 *     delay FUNCTION MILLISECONDS   it takes its time
 *
 * DEVICE is 0 to 7; a MIG device of GPU 0 is written 0.0, 0.1 … Numbers of
 * devices follow from the facts: one is there that has a uuid.
 */
#ifndef FAKE_NVML_SCRIPT_H
#define FAKE_NVML_SCRIPT_H

#include <pthread.h>
#include <stdbool.h>

enum {
	FAKE_DEVICES = 8, /* GPUs */
	FAKE_SLOTS = 4,	  /* MIG devices of a GPU */
	FAKE_KEYS = 64,
	FAKE_PROCESSES = 32,
	FAKE_RULES = 32,
	FAKE_TEXT = 96,
};

struct fake_fact {
	char key[FAKE_TEXT];
	char value[FAKE_TEXT];
};

struct fake_process {
	unsigned int pid;
	unsigned long long bytes;
	unsigned int sm, encoder, decoder;
	unsigned long long timestamp;
	unsigned int gpu_instance, compute_instance;
};

struct fake_device {
	unsigned int index, slot; /* slot: FAKE_SLOTS for a GPU itself */
	unsigned int facts;
	struct fake_fact fact[FAKE_KEYS];
	unsigned int processes;
	struct fake_process process[FAKE_PROCESSES];
};

/* The device that is written INDEX or INDEX.SLOT; NULL when there is none. */
struct fake_device *fake_device(unsigned int index, unsigned int slot);

/* The text of a device's fact, NULL when it has none. */
const char *fake_fact(const struct fake_device *device, const char *key);

const char *fake_driver(void);

/* Reads the script if it changed. False without one: the driver is not loaded. */
bool fake_refresh(void);

/* Waits as FUNCTION is to wait, and lets others in meanwhile; the code it is to answer, 0 to go on. */
int fake_enter(const char *function, const struct fake_device *device, pthread_mutex_t *held);

#endif
