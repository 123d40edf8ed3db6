// SPDX-License-Identifier: Apache-2.0
/*
 * The module otelgpu.bridge._publisher: the runtime context of opentelemetry-python in C.
 *
 *   publisher.c         attach, detach, get_current: the contextvar, then the record
 *   thread_context.c    a Context → the calling thread's record (OTEP 4947)
 *   context_switches.c  task switches → the same
 *   process_context.c   the process's resource (OTEP 4719)
 */
#include <errno.h>

#include "context_switches.h"
#include "process_context.h"
#include "thread_context.h"

static PyObject *current; /* the ContextVar */

static PyObject *attach(PyObject *self, PyObject *context)
{
	PyObject *token = PyContextVar_Set(current, context);

	(void)self;
	if (token != NULL)
		publish(context);
	return token;
}

static PyObject *detach(PyObject *self, PyObject *token)
{
	(void)self;
	if (Py_TYPE(token) != &PyContextToken_Type) /* PyContextVar_Reset takes its word for it */
		return PyObject_CallMethod(current, "reset", "O", token);
	if (PyContextVar_Reset(current, token) != 0)
		return NULL;
	publish_current();
	return Py_NewRef(Py_None);
}

static PyObject *get_current(PyObject *self, PyObject *nothing)
{
	PyObject *context = NULL;

	(void)self;
	(void)nothing;
	if (PyContextVar_Get(current, NULL, &context) != 0)
		return NULL;
	return context;
}

static PyMethodDef publisher_methods[] = {
	{ "attach", attach, METH_O, "Set the ContextVar and publish; return its token." },
	{ "detach", detach, METH_O,
	  "Reset the ContextVar by a token and publish what it holds then." },
	{ "get_current", get_current, METH_NOARGS, "The ContextVar's value." },
	{ NULL, NULL, 0, NULL },
};

static PyType_Slot publisher_slots[] = {
	{ Py_tp_methods, publisher_methods },
	{ Py_tp_doc,
	  "What a runtime context does at each attach and detach. It has no state of its own." },
	{ 0, NULL },
};

static PyType_Spec publisher = {
	.name = "otelgpu.bridge._publisher.Publisher",
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
	.slots = publisher_slots,
};

static PyObject *start(PyObject *module, PyObject *args)
{
	PyObject *var, *on_span, *on_failure;

	(void)module;
	if (!PyArg_ParseTuple(args, "O!OO:start", &PyContextVar_Type, &var, &on_span, &on_failure))
		return NULL;
	if (current != NULL) {
		PyErr_SetString(PyExc_RuntimeError, "this process publishes already");
		return NULL;
	}
	if (follow_switches() != 0)
		return NULL;
	current = Py_NewRef(var);
	start_publishing(var, on_span, on_failure);
	return Py_NewRef(Py_None);
}

static PyObject *follow(PyObject *module, PyObject *nothing)
{
	int redirected = follow_libraries();

	(void)module;
	(void)nothing;
	return redirected < 0 ? NULL : PyLong_FromLong(redirected);
}

static PyObject *publish_resource(PyObject *module, PyObject *payload)
{
	char *bytes;
	Py_ssize_t size;
	int error;

	(void)module;
	if (PyBytes_AsStringAndSize(payload, &bytes, &size) != 0)
		return NULL;
	error = publish_process(bytes, (size_t)size);
	if (error == 0)
		return Py_NewRef(Py_None);
	errno = error;
	return PyErr_SetFromErrno(PyExc_OSError);
}

static PyMethodDef methods[] = {
	{ "start", start, METH_VARARGS,
	  "start(var, on_span, on_failure): publish what the ContextVar holds; once in a "
	  "process." },
	{ "follow_libraries", follow, METH_NOARGS,
	  "follow_libraries() -> int: follow Contexts that loaded libraries enter in C." },
	{ "publish_process", publish_resource, METH_O,
	  "publish_process(payload): publish the bytes of a ProcessContext." },
	{ NULL, NULL, 0, NULL },
};

static struct PyModuleDef module = {
	.m_base = PyModuleDef_HEAD_INIT,
	.m_name = "otelgpu.bridge._publisher",
	.m_doc = "The contexts of opentelemetry-python, published for readers outside of the "
		 "process.",
	.m_size = -1,
	.m_methods = methods,
};

PyMODINIT_FUNC PyInit__publisher(void)
{
	PyObject *created = PyModule_Create(&module);
	PyObject *type = created == NULL ? NULL : PyType_FromSpec(&publisher);

	if (type == NULL || PyModule_AddObjectRef(created, "Publisher", type) != 0)
		Py_CLEAR(created);
	Py_XDECREF(type);
	return created;
}
