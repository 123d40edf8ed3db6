/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the libcupti that fits the process's CUDA, and its functions. */
#ifndef OTELGPU_INJECT_CUPTI_LIBRARY_H
#define OTELGPU_INJECT_CUPTI_LIBRARY_H

#include "cupti_abi.h"

#include <stdbool.h>

/* FUNCTION(name, parameters), all of them CUptiResult cupti<name>(…). */
#define CUPTI_FUNCTIONS(FUNCTION)                                                               \
	FUNCTION(GetVersion, (uint32_t *))                                                      \
	FUNCTION(GetTimestamp, (uint64_t *))                                                    \
	FUNCTION(GetCallbackName, (int domain, uint32_t cbid, const char **))                   \
	FUNCTION(Subscribe, (CUpti_SubscriberHandle *, CUpti_CallbackFunc, void *))             \
	FUNCTION(Unsubscribe, (CUpti_SubscriberHandle))                                         \
	FUNCTION(EnableCallback, (uint32_t, CUpti_SubscriberHandle, int domain, uint32_t cbid)) \
	FUNCTION(ActivitySetAttribute, (int, size_t *, void *))                                 \
	FUNCTION(ActivityRegisterCallbacks,                                                     \
		 (CUpti_BuffersCallbackRequestFunc, CUpti_BuffersCallbackCompleteFunc))         \
	FUNCTION(ActivityEnable, (int kind))                                                    \
	FUNCTION(ActivityDisable, (int kind))                                                   \
	FUNCTION(ActivityFlushAll, (uint32_t))                                                  \
	FUNCTION(ActivityGetNextRecord, (uint8_t *, size_t, CUpti_Activity **))                 \
	FUNCTION(ActivityGetNumDroppedRecords, (CUcontext, uint32_t, size_t *))

/* Those that older releases lack; NULL then. */
#define CUPTI_OPTIONAL_FUNCTIONS(FUNCTION) \
	FUNCTION(ActivityRegisterTimestampCallback, (CUpti_TimestampCallbackFunc))

struct cupti_library {
#define CUPTI_POINTER(name, parameters) CUptiResult(*name) parameters;
	CUPTI_FUNCTIONS(CUPTI_POINTER)
	CUPTI_OPTIONAL_FUNCTIONS(CUPTI_POINTER)
#undef CUPTI_POINTER
};

enum cupti_found { CUPTI_FOUND, CUPTI_NOT_FOUND, CUPTI_INCOMPLETE };

/*
 * In this order: the file that OTELGPU_CUPTI names; what is mapped already (PyTorch brings its own); for
 * the major version of a mapped libcudart: beside it, in the wheel beside its wheel; under CUDA_HOME;
 * whatever the dynamic linker finds by the name libcupti.so.<major>.
 */
enum cupti_found cupti_library_open(struct cupti_library *library);

#endif
