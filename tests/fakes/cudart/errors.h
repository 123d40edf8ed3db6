/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FAKE_CUDART_ERRORS_H
#define FAKE_CUDART_ERRORS_H

#include <cuda_runtime_api.h>

/* The enumerator's name, and what it says; "unrecognized error code" for others. */
const char *error_name(cudaError_t error);
const char *error_text(cudaError_t error);

#endif
