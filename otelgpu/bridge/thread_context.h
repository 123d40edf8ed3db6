/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The thread context of OTEP 4947: each thread's record of the span that is active on it.
 *
 * An OpenTelemetry Context (a dict that never changes) comes in, and the record of the calling thread
 * is brought up to it. All functions need the GIL.
 */
#ifndef OTELGPU_BRIDGE_THREAD_CONTEXT_H
#define OTELGPU_BRIDGE_THREAD_CONTEXT_H

#include "cpython.h"

/*
 * Publish for the Contexts of contextvar var, from now on.
 *
 * on_span(span) → bool is called with active spans until it returns true, MAX_MEETINGS times at most.
 * on_failure(exception) is called once, when something could not be published for the first time.
 */
void start_publishing(PyObject *var, PyObject *on_span, PyObject *on_failure);

/* The contextvar of start_publishing; NULL before it and in any other interpreter (PEP 554). */
PyObject *published_var(void);

/*
 * Make context the calling thread's published one; NULL publishes that no span is active.
 *
 * No exception may be set, and none is set after. Runs Python code only for a span that is not the
 * SDK's or the API's own.
 */
void publish(PyObject *context);

/* publish() the value of the contextvar in the calling thread's contextvars.Context, keeping an exception that is set. */
void publish_current(void);

/* publish() the value of the contextvar in inside, a contextvars.Context that is about to be entered. */
void publish_inside(PyObject *inside);

#endif
