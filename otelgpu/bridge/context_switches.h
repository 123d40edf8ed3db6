/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Switches of contextvars.Context: every task switch of an event loop is one, and so is work handed to a
 * thread with its Context. At each the thread's published context follows the contextvar.
 *
 * From CPython 3.14 its own watcher reports. Before, two hooks do: contextvars.Context.run, which all
 * Python code and asyncio use, and PyContext_Enter/Exit, which C code uses instead (uvloop; eager tasks).
 */
#ifndef OTELGPU_BRIDGE_CONTEXT_SWITCHES_H
#define OTELGPU_BRIDGE_CONTEXT_SWITCHES_H

/* Follow switches from now on. 0, or -1 with an exception set. */
int follow_switches(void);

/*
 * Hook PyContext_Enter/Exit in the libraries loaded so far; more may be loaded later. Nothing from 3.14.
 * Returns how many calls were redirected, or -1 with an exception set.
 */
int follow_libraries(void);

#endif
