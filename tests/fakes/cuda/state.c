/* SPDX-License-Identifier: Apache-2.0 */
#include "driver.h"

#include <pthread.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

bool state_lock(void)
{
	pthread_mutex_lock(&lock);
	return true;
}

void state_unlock(const bool *held)
{
	(void)held;
	pthread_mutex_unlock(&lock);
}

void state_reset_lock(void)
{
	pthread_mutex_init(&lock, NULL);
}

#ifndef FAKE_STANDALONE
__attribute__((visibility("default"))) const struct fake_cupti_hooks *fake_cupti_hooks;
#endif
