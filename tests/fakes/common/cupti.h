/* SPDX-License-Identifier: Apache-2.0 */
/* Reports the fake CUPTI, when there is one, which function is entered and left: tests/fakes/cupti/hooks.h. */
#ifndef FAKE_CUPTI_H
#define FAKE_CUPTI_H

#include "../cupti/hooks.h"

extern const struct fake_cupti_hooks *fake_cupti_hooks;

static inline const char *cupti_enter(const char *function)
{
	if (fake_cupti_hooks)
		fake_cupti_hooks->enter(function);
	return fake_cupti_hooks ? function : NULL;
}

static inline void cupti_leave(const char *const *function)
{
	if (*function)
		fake_cupti_hooks->leave(*function);
}

/* From here to the end of the block, whichever way that is left. */
#define CUPTI_CALL(name)                                                             \
	const char *const cupti_call __attribute__((cleanup(cupti_leave), unused)) = \
		cupti_enter(#name)

#endif
