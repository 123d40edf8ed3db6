/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Writes offsets by the names of otelgpu/symbols/cpython/layout.py, as the headers that it is compiled with have them. */
#define Py_BUILD_CORE 1
#include <Python.h>
#include <frameobject.h>
#if PY_VERSION_HEX >= 0x030b0000
#include <internal/pycore_frame.h>
#endif
#if PY_VERSION_HEX >= 0x030e0000
#include <internal/pycore_interpframe_structs.h>
#endif
#include <internal/pycore_interp.h>
#include <internal/pycore_pystate.h>
#include <internal/pycore_runtime.h>
#include <stddef.h>
#include <stdio.h>

#define TELL(name, type, member) printf(#name "=%zu\n", offsetof(type, member))

int main(void)
{
	TELL(interpreters, _PyRuntimeState, interpreters.head);
	TELL(next_interpreter, PyInterpreterState, next);
	TELL(next_thread, PyThreadState, next);
	TELL(thread_id, PyThreadState, thread_id);
	TELL(context, PyThreadState, context);
#if PY_VERSION_HEX >= 0x030b0000
	TELL(threads, PyInterpreterState, threads.head);
	TELL(previous, _PyInterpreterFrame, previous);
	TELL(qualified_name, PyCodeObject, co_qualname);
	TELL(bytecode, PyCodeObject, co_code_adaptive);
	TELL(code_bytes, PyCodeObject, co_code_adaptive);
#else
	TELL(threads, PyInterpreterState, tstate_head);
	TELL(frame, PyThreadState, frame);
	TELL(code, PyFrameObject, f_code);
	TELL(previous, PyFrameObject, f_back);
	TELL(instruction, PyFrameObject, f_lasti);
	printf("code_bytes=%zu\n", sizeof(PyCodeObject));
	printf("lasti_unit=%d\n", PY_VERSION_HEX >= 0x030a0000 ? 2 : 1);
#endif
#if PY_VERSION_HEX >= 0x030d0000
	TELL(frame, PyThreadState, current_frame);
	TELL(code, _PyInterpreterFrame, f_executable);
	TELL(instruction, _PyInterpreterFrame, instr_ptr);
#elif PY_VERSION_HEX >= 0x030b0000
	TELL(frame, PyThreadState, cframe);
	TELL(cframe_current, _PyCFrame, current_frame);
	TELL(code, _PyInterpreterFrame, f_code);
	TELL(instruction, _PyInterpreterFrame, prev_instr);
#endif
#if PY_VERSION_HEX >= 0x030c0000
	TELL(owner, _PyInterpreterFrame, owner);
#elif PY_VERSION_HEX >= 0x030b0000
	TELL(owner, _PyInterpreterFrame, is_entry);
#endif
	TELL(first_line, PyCodeObject, co_firstlineno);
	TELL(flags, PyCodeObject, co_flags);
	TELL(filename, PyCodeObject, co_filename);
	TELL(name, PyCodeObject, co_name);
#if PY_VERSION_HEX >= 0x030a0000
	TELL(line_table, PyCodeObject, co_linetable);
#else
	TELL(line_table, PyCodeObject, co_lnotab);
#endif
	TELL(type, PyObject, ob_type);
	TELL(size, PyVarObject, ob_size);
	TELL(type_name, PyTypeObject, tp_name);
	TELL(bytes_at, PyBytesObject, ob_sval);
	TELL(text_length, PyASCIIObject, length);
	TELL(text_state, PyASCIIObject, state);
	printf("ascii_at=%zu\n", sizeof(PyASCIIObject));
	printf("compact_at=%zu\n", sizeof(PyCompactUnicodeObject));
	return 0;
}
