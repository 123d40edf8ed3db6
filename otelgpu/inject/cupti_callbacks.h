/* SPDX-License-Identifier: Apache-2.0 */
/* Which functions CUPTI calls back for: found by name, as their ids grow with releases. */
#ifndef OTELGPU_CUPTI_CALLBACKS_H
#define OTELGPU_CUPTI_CALLBACKS_H

#include "cupti_library.h"

#include <stdbool.h>
#include <stdint.h>

/*
 * Those that make the device work. `late`: in a process whose calls pass the library by, also those that wait for the
 * device, and of all only those that a record can name. False: there are none.
 */
bool callbacks_choose(const struct cupti_library *cupti, bool late);

/* False: some are not to be had. */
bool callbacks_enable(const struct cupti_library *cupti, CUpti_SubscriberHandle subscriber,
		      bool enable);

/* The function's number in records, if chosen late; else 0. */
uint16_t callbacks_function(int domain, uint32_t id);

#endif
