// SPDX-License-Identifier: Apache-2.0
/*
 * Records of threads, and what is written to them.
 *
 * A thread's record is made when its first span becomes active and stays where it is until the thread's
 * Python state is cleared; which of the two ways of OTEP 4947 to take it away is chosen for good: valid
 * turns 0, the pointer stays. Readers look while the thread stands still (a signal handler's view), so
 * compiler fences order the writes.
 *
 *	attach(A), attach(B), detach, detach
 *	valid 0 → [valid 0, ids of A, valid 1] → [valid 0, ids of B, valid 1] → [.. A ..] → valid 0
 */
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "thread_context.h"

#define MAX_MEETINGS 1000

struct record {
	uint8_t trace_id[16]; /* as in a traceparent header: big-endian */
	uint8_t span_id[8];
	volatile uint8_t valid; /* 1: the rest is whole */
	uint8_t trace_flags;
	uint16_t attrs_data_size; /* no attributes: 0 */
};

_Static_assert(offsetof(struct record, span_id) == 16, "OTEP 4947");
_Static_assert(offsetof(struct record, valid) == 24, "OTEP 4947");
_Static_assert(offsetof(struct record, trace_flags) == 25, "OTEP 4947");
_Static_assert(offsetof(struct record, attrs_data_size) == 26, "OTEP 4947");
_Static_assert(sizeof(struct record) == 28, "OTEP 4947: attributes follow");

struct thread {
	struct record record;
	PyObject *published; /* the Context that the record is of; NULL when valid is 0 */
};

/* The symbol that readers look for; it points to a thread's record, its first member. */
__attribute__((visibility("default"))) __thread struct thread *otel_thread_ctx_v1;

static PyObject *var, *on_span, *on_failure;
static PyInterpreterState *home;
static int meetings_left;

static PyObject *span_key;		/* opentelemetry.trace.propagation._SPAN_KEY */
static PyTypeObject *span_context_type; /* opentelemetry.trace.span.SpanContext, a tuple */
enum span_context_item { TRACE_ID = 0, SPAN_ID = 1, TRACE_FLAGS = 3 };

static PyObject *name_context, *name_get_span_context, *bits_64;

void start_publishing(PyObject *its_var, PyObject *its_on_span, PyObject *its_on_failure)
{
	name_context = PyUnicode_InternFromString("_context");
	name_get_span_context = PyUnicode_InternFromString("get_span_context");
	bits_64 = PyLong_FromLong(64);
	on_span = Py_NewRef(its_on_span);
	on_failure = Py_NewRef(its_on_failure);
	meetings_left = MAX_MEETINGS;
	home = PyInterpreterState_Get();
	var = Py_NewRef(its_var);
}

PyObject *published_var(void)
{
	return var != NULL && PyInterpreterState_Get() == home ? var : NULL;
}

static int raise_again(void *exception)
{
	PyErr_SetObject((PyObject *)Py_TYPE((PyObject *)exception), exception);
	Py_DECREF((PyObject *)exception);
	return -1;
}

/* Swallow the exception that is set, but for one that a signal's handler raised: that is the program's. */
static void swallow(void)
{
	PyObject *type, *exception, *traceback, *reported, *callback = on_failure;

	PyErr_Fetch(&type, &exception, &traceback);
	PyErr_NormalizeException(&type, &exception, &traceback);
	if (exception == NULL || !PyErr_GivenExceptionMatches(exception, PyExc_Exception)) {
		if (exception == NULL || Py_AddPendingCall(raise_again, exception) != 0)
			PyErr_SetInterrupt();
		else
			exception = NULL; /* raise_again has it */
	} else if (callback != NULL) {
		on_failure = NULL;
		reported = PyObject_CallFunctionObjArgs(callback, exception, NULL);
		if (reported == NULL)
			PyErr_Clear();
		Py_XDECREF(reported);
		Py_DECREF(callback);
	}
	Py_XDECREF(type);
	Py_XDECREF(exception);
	Py_XDECREF(traceback);
}

static PyObject *attribute_of_module(const char *module, const char *attribute)
{
	PyObject *name = PyUnicode_FromString(module);
	PyObject *imported = name == NULL ? NULL : PyImport_GetModule(name);
	PyObject *value = imported == NULL ? NULL : PyObject_GetAttrString(imported, attribute);

	Py_XDECREF(name);
	Py_XDECREF(imported);
	PyErr_Clear();
	return value;
}

/* Without opentelemetry.trace there is no span, and this package must not be the one that imports it. */
static int know_spans(void)
{
	PyObject *type;

	if (span_key != NULL)
		return 1;
	type = attribute_of_module("opentelemetry.trace.span", "SpanContext");
	if (type == NULL)
		return 0;
	if (PyType_Check(type) && PyType_IsSubtype((PyTypeObject *)type, &PyTuple_Type))
		span_context_type = (PyTypeObject *)type;
	span_key = attribute_of_module("opentelemetry.trace.propagation", "_SPAN_KEY");
	return span_key != NULL;
}

/* The span of a Context, borrowed; NULL without one. */
static PyObject *span_of(PyObject *context)
{
	if (context == NULL || !know_spans() || !PyDict_Check(context))
		return NULL;
	return PyDict_GetItemWithError(context, span_key);
}

/* The span's SpanContext, a new reference; NULL with an exception set. */
static PyObject *span_context_of(PyObject *span)
{
	PyObject *found = PyObject_GetAttr(span, name_context);

	if (found != NULL && Py_TYPE(found) == span_context_type)
		return found;
	PyErr_Clear();
	Py_XDECREF(found);
	return PyObject_CallMethodObjArgs(span, name_get_span_context, NULL);
}

static void store_big_endian(uint8_t *to, uint64_t value)
{
	value = __builtin_bswap64(value);
	memcpy(to, &value, sizeof(value));
}

/* Fill a record. 0, or -1 with an exception set: what should be an int is not, is negative or too large. */
static int convert(PyObject *trace_id, PyObject *span_id, PyObject *flags, struct record *record)
{
	PyObject *upper = PyNumber_Rshift(trace_id, bits_64);
	uint64_t high, low, id;
	long bits;

	if (upper == NULL)
		return -1;
	high = PyLong_AsUnsignedLongLong(upper);
	Py_DECREF(upper);
	if (high == UINT64_MAX && PyErr_Occurred())
		return -1;
	low = PyLong_AsUnsignedLongLongMask(trace_id);
	id = PyLong_AsUnsignedLongLong(span_id);
	bits = PyLong_AsLong(flags);
	if (PyErr_Occurred())
		return -1;
	store_big_endian(record->trace_id, high);
	store_big_endian(record->trace_id + 8, low);
	store_big_endian(record->span_id, id);
	record->trace_flags = (uint8_t)bits;
	record->valid = (high | low) != 0 && id != 0;
	return 0;
}

/* The same from a SpanContext that is not the API's class: by its public attributes. */
static int convert_attributes(PyObject *span_context, struct record *record)
{
	PyObject *trace_id = PyObject_GetAttrString(span_context, "trace_id");
	PyObject *span_id =
		trace_id == NULL ? NULL : PyObject_GetAttrString(span_context, "span_id");
	PyObject *flags =
		span_id == NULL ? NULL : PyObject_GetAttrString(span_context, "trace_flags");
	int failed = flags == NULL || convert(trace_id, span_id, flags, record) != 0;

	Py_XDECREF(trace_id);
	Py_XDECREF(span_id);
	Py_XDECREF(flags);
	return failed ? -1 : 0;
}

static int convert_items(PyObject *span_context, struct record *record)
{
	PyObject *trace_id = PyTuple_GetItem(span_context, TRACE_ID);
	PyObject *span_id = PyTuple_GetItem(span_context, SPAN_ID);
	PyObject *flags = PyTuple_GetItem(span_context, TRACE_FLAGS);

	if (trace_id == NULL || span_id == NULL || flags == NULL)
		return -1;
	return convert(trace_id, span_id, flags, record);
}

/*
 * The last SpanContexts converted: they never change, and each comes back as often as its task is resumed.
 * Slots are found by address, which a reference keeps from being another object's.
 */
static struct {
	PyObject *span_context;
	struct record record;
} remembered[64];

static unsigned int slot_of(const void *address)
{
	return (uint32_t)((uintptr_t)address >> 4) * 2654435769U >>
	       26; /* Fibonacci hashing to 6 bits */
}

_Static_assert(sizeof(remembered) / sizeof(remembered[0]) == 1 << (32 - 26), "slot_of");

/* Read a span into record; its valid is 0 when an id is. 0, or -1 with an exception set. */
static int read_span(PyObject *span, struct record *record)
{
	PyObject *span_context = span_context_of(span), *before;
	unsigned int slot = slot_of(span_context);
	int failed;

	if (span_context == NULL)
		return -1;
	if (remembered[slot].span_context == span_context) {
		*record = remembered[slot].record;
		Py_DECREF(span_context);
		return 0;
	}
	if (Py_TYPE(span_context) != span_context_type) {
		failed = convert_attributes(span_context, record);
		Py_DECREF(span_context);
		return failed;
	}
	if (convert_items(span_context, record) != 0) {
		Py_DECREF(span_context);
		return -1;
	}
	before = remembered[slot].span_context;
	remembered[slot].span_context = span_context;
	remembered[slot].record = *record;
	Py_XDECREF(before);
	return 0;
}

/* What holds a thread's record in its Python state goes with that state. */
static void end_thread(PyObject *capsule)
{
	struct thread *thread = PyCapsule_GetPointer(capsule, NULL);
	PyObject *published = thread->published;

	thread->record.valid = 0;
	thread->published = NULL;
	if (otel_thread_ctx_v1 == thread) {
		otel_thread_ctx_v1 = NULL;
		free(thread);
	} /* else its thread is alive without a Python, or did not come along a fork: the 40 bytes stay */
	Py_XDECREF(published);
}

static struct thread *start_thread(void)
{
	PyObject *state = PyThreadState_GetDict(), *capsule;
	struct thread *thread;

	if (state == NULL || (thread = calloc(1, sizeof(*thread))) == NULL)
		return NULL;
	capsule = PyCapsule_New(thread, NULL, end_thread);
	if (capsule == NULL)
		free(thread);
	else
		otel_thread_ctx_v1 = thread;
	if (capsule == NULL || PyDict_SetItemString(state, "otelgpu.bridge", capsule) != 0)
		swallow();
	Py_XDECREF(capsule); /* what the dict does not keep, end_thread takes back */
	return otel_thread_ctx_v1;
}

static void meet(PyObject *span)
{
	PyObject *known;
	int is_known;

	if (meetings_left == 0)
		return;
	meetings_left--;
	known = PyObject_CallFunctionObjArgs(on_span, span, NULL);
	is_known = known == NULL ? -1 : PyObject_IsTrue(known);
	Py_XDECREF(known);
	if (is_known < 0)
		swallow();
	if (is_known > 0)
		meetings_left = 0;
}

void publish(PyObject *context)
{
	struct thread *thread = otel_thread_ctx_v1;
	struct record next = { .valid = 0 };
	PyObject *before, *span;

	if (thread != NULL && thread->published == context)
		return;
	span = span_of(context);
	if (span != NULL) {
		if (read_span(span, &next) != 0) {
			next.valid = 0;
			swallow();
		}
		thread = otel_thread_ctx_v1; /* what read_span ran may have published too */
		if (thread == NULL && next.valid)
			thread = start_thread();
	}
	if (thread == NULL)
		return;

	before = thread->published;
	thread->record.valid = 0;
	atomic_signal_fence(memory_order_seq_cst);
	if (next.valid) {
		thread->published = Py_NewRef(context);
		memcpy(thread->record.trace_id, next.trace_id, sizeof(next.trace_id));
		memcpy(thread->record.span_id, next.span_id, sizeof(next.span_id));
		thread->record.trace_flags = next.trace_flags;
		atomic_signal_fence(memory_order_seq_cst);
		thread->record.valid = 1;
		if (meetings_left > 0)
			meet(span);
	} else {
		thread->published = NULL;
	}
	Py_XDECREF(before); /* last: it may run anything */
}

void publish_current(void)
{
	PyObject *type = NULL, *exception = NULL, *traceback = NULL, *context = NULL;
	int pending = PyErr_Occurred() != NULL;

	if (pending)
		PyErr_Fetch(&type, &exception, &traceback);
	if (PyContextVar_Get(var, NULL, &context) != 0)
		swallow();
	publish(context);
	Py_XDECREF(context);
	if (pending)
		PyErr_Restore(type, exception, traceback);
}

void publish_inside(PyObject *inside)
{
	int has = PySequence_Contains(inside, var);
	PyObject *context = has > 0 ? PyObject_GetItem(inside, var) : NULL;

	if (PyErr_Occurred())
		swallow();
	publish(context);
	Py_XDECREF(context);
}
