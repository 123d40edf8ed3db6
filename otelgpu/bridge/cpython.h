/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The C API of CPython as the bridge uses it: the limited API of 3.11, so that one library serves
 * every later version (PEP 384), and what the limited API lacks although each CPython from 3.11
 * exports it with one signature. Those are declared here, with the header that has them.
 */
#ifndef OTELGPU_BRIDGE_CPYTHON_H
#define OTELGPU_BRIDGE_CPYTHON_H

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

/* Include/cpython/context.h, since 3.7.1 */
PyAPI_FUNC(int) PyContext_Enter(PyObject *context);
PyAPI_FUNC(int) PyContext_Exit(PyObject *context);
PyAPI_FUNC(int) PyContextVar_Get(PyObject *var, PyObject *default_value, PyObject **value);
PyAPI_FUNC(PyObject *) PyContextVar_Set(PyObject *var, PyObject *value);
PyAPI_FUNC(int) PyContextVar_Reset(PyObject *var, PyObject *token);
PyAPI_DATA(PyTypeObject) PyContext_Type;
PyAPI_DATA(PyTypeObject) PyContextVar_Type;
PyAPI_DATA(PyTypeObject) PyContextToken_Type;

/* Include/cpython/context.h, since 3.14: Py_CONTEXT_SWITCHED is event 1, the only one. */
typedef int context_watcher(int event, PyObject *object);
__attribute__((weak)) PyAPI_FUNC(int) PyContext_AddWatcher(context_watcher *watcher);

/* Include/cpython/descrobject.h, PyMethodDescrObject: one layout from 3.8 to 3.13, GIL builds. */
struct method_descriptor {
	PyObject_HEAD PyTypeObject *d_type;
	PyObject *d_name;
	PyObject *d_qualname;
	PyMethodDef *d_method;
};

#endif
