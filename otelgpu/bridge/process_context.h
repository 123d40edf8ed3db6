/* SPDX-License-Identifier: Apache-2.0 */
/* The process context of OTEP 4719: a mapping named OTEL_CTX whose header points to a protobuf message. */
#ifndef OTELGPU_BRIDGE_PROCESS_CONTEXT_H
#define OTELGPU_BRIDGE_PROCESS_CONTEXT_H

#include <stddef.h>

/*
 * Publish the encoded ProcessContext, or replace the one that is published. 0, or an errno.
 *
 * A child of fork() has no mapping (MADV_DONTFORK), so it publishes again. One thread at a time.
 */
int publish_process(const void *payload, size_t size);

#endif
