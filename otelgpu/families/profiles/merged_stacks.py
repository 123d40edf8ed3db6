"""Kernel, native and Python frames of one thread → one stack, and of native frames which are an interpreter's. Pure.

A Python function runs in the interpreter's evaluation function: in a native frame of its own up to CPython 3.10, from
3.11 on in one that it shares with the Python functions that called each other without C in between. So each native
evaluation frame is replaced by its *run*: Python frames from the leaf on, up to and including one that was entered
from C.

Worked example, the leaf first. Native: ``cudaLaunchKernel, launch_op, _PyEval_EvalFrameDefault, _PyEval_Vector,
slot_tp_call, _PyEval_EvalFrameDefault, main``; Python: ``forward*, generate, handler*``, of which ``*`` were entered
from C. The runs are ``forward`` and ``generate, handler``, and what comes out is ``cudaLaunchKernel, launch_op,
forward, generate, handler, main``: ``_PyEval_Vector`` and ``slot_tp_call`` are the interpreter's own and folded away.
Invariant: every Python frame and every kernel frame comes out, in its order; so does every native frame that is
neither replaced nor folded.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from msgspec import Struct

from otelgpu.model.profiles import FrameType
from otelgpu.model.samples import Frame

EVALUATORS: Final = frozenset(("_PyEval_EvalFrameDefault", "_PyEval_EvalFrame", "PyEval_EvalFrameEx"))
"""Names of the evaluation function, where a symbol says it (Python/ceval.c of 3.9 to 3.14)."""

_TAIL_CALLS: Final = "_TAIL_CALL_"  # 3.14 with tail calls: each instruction is a function of its own

INTERNAL: Final = frozenset(
    (
        *("_PyEval_Vector", "_PyEval_EvalCode", "_PyEval_EvalCodeWithName", "PyEval_EvalFrame"),
        *("_PyFunction_Vectorcall", "_PyFunction_FastCallDict", "function_code_fastcall", "fast_function"),
        *("_PyVectorcall_Call", "_PyVectorcall_FunctionInline", "PyVectorcall_Call", "method_vectorcall"),
        *("PyObject_Vectorcall", "_PyObject_Vectorcall", "_PyObject_VectorcallTstate"),
        *("PyObject_VectorcallMethod", "_PyObject_VectorcallMethod", "_PyObject_VectorcallMethodId"),
        *("PyObject_VectorcallDict", "_PyObject_VectorcallDictTstate", "_PyObject_VectorcallPrepend"),
        *("_PyObject_FastCall", "_PyObject_FastCallDict", "_PyObject_FastCallDictTstate"),
        *("_PyObject_MakeTpCall", "_PyObject_Call", "_PyObject_Call_Prepend", "PyObject_Call"),
        *("PyObject_CallObject", "PyObject_CallFunction", "PyObject_CallFunctionObjArgs"),
        *("PyObject_CallMethod", "PyObject_CallMethodObjArgs", "PyObject_CallOneArg", "PyObject_CallNoArgs"),
        *("_PyObject_CallFunctionVa", "_PyObject_CallNoArgsTstate", "callmethod", "object_vacall"),
        *("do_call_core", "call_function", "trace_call_function", "cfunction_call", "cfunction_call_varargs"),
        *(
            "gen_send_ex",
            "gen_send_ex2",
            "gen_iternext",
            "gen_send",
            "_gen_throw",
            "_PyGen_Send",
            "PyGen_am_send",
        ),
        *("type_call", "type_vectorcall", "vectorcall_method", "vectorcall_maybe", "vectorcall_unbound"),
        *("call_unbound", "call_unbound_noarg", "call_method", "call_maybe", "call_attribute"),
        *("py_trampoline_evaluator", "_Py_trampoline_func_start"),
    )
)
"""C functions of CPython by which Python code calls and is called (Objects/call.c, descrobject.c, typeobject.c)."""

_INTERNAL_PREFIXES: Final = (
    *(
        "method_vectorcall_",
        "cfunction_vectorcall_",
        "slot_tp_",
        "slot_nb_",
        "slot_sq_",
        "slot_mp_",
        "slot_am_",
    ),
    "py::",  # a trampoline of 3.12's "-X perf", which stands for a Python frame that is reported anyway
)


class Merged(Struct, frozen=True, kw_only=True):
    """A stack, the leaf first, and what of it did not match."""

    frames: tuple[Frame, ...]
    evaluators_unmatched: int = 0  # evaluation frames without Python frames: they stay, as native frames
    python_unmatched: int = 0  # runs of Python frames whose evaluation frame was not found


def merge(
    kernel: Sequence[Frame],
    native: Sequence[Frame],
    evaluators: Sequence[bool],
    python: Sequence[Frame | None],
    entries: Sequence[bool],
    *,
    native_cut: bool = False,
    python_cut: bool = False,
    fold: bool = True,
) -> Merged:
    """One stack of three, all with the leaf first.

    ``evaluators``: of each native frame whether it is an evaluation frame; ``entries``: of each Python frame whether
    it was entered from C; a frame of None uses up its place, as of an evaluation that has only begun, and is not
    reported. ``native_cut``, ``python_cut``: the outermost frames are missing. ``fold``: leave out
    INTERNAL functions that Python code called, directly or not.

    Where there are more evaluation frames than runs, the innermost ones have no frame yet, or, with
    ``python_cut``, the outermost none any more. Where there are fewer, the outermost runs have theirs in what was
    cut off and come last; if nothing was cut off, the first evaluation frame gets all that are too many.
    """
    runs = _runs(python, entries)
    places = [place for place, it_is in enumerate(evaluators) if it_is]
    spare = len(places) - len(runs)
    last: list[Frame] = []
    if spare > 0:
        places = places[: len(runs)] if python_cut else places[spare:]
    elif spare < 0:
        if native_cut or not places:
            runs, rest = runs[: len(places)], runs[len(places) :]
            last = [frame for run in rest for frame in run]
        else:
            joined = [frame for run in runs[: 1 - spare] for frame in run]
            runs = [joined, *runs[1 - spare :]]
    found = list(kernel)
    at = 0
    for place, run in zip(places, runs, strict=True):
        found += native[at:place]
        found += run
        at = place + 1
    found += native[at:]
    found += last
    if fold and any(runs):
        found = _folded(found)
    return Merged(frames=tuple(found), evaluators_unmatched=max(spare, 0), python_unmatched=max(-spare, 0))


def is_evaluator(name: str) -> bool:
    """Whether a native function of that (linker's) name evaluates Python code; parts of one count."""
    return name.partition(".")[0] in EVALUATORS


def is_tail_call(name: str) -> bool:
    """Whether a native function of that name is one instruction of an interpreter that is built of such.

    An evaluation is two native frames then: that of the instruction lies on the leaf's side of the evaluator's.
    """
    return name.startswith(_TAIL_CALLS)


@lru_cache(maxsize=4096)  # each native frame of each stack is asked for
def is_internal(name: str) -> bool:
    """Whether a native function of that name is one of INTERNAL, or the compiler's variant of one."""
    return name.partition(".")[0] in INTERNAL or name.startswith(_INTERNAL_PREFIXES)


def _runs(python: Sequence[Frame | None], entries: Sequence[bool]) -> list[list[Frame]]:
    runs: list[list[Frame]] = []
    run: list[Frame] = []
    for frame, entered in zip(python, entries, strict=True):
        if frame is not None:
            run.append(frame)
        if entered:
            runs.append(run)
            run = []
    if run:  # what entered it was cut off
        runs.append(run)
    return runs


def _folded(frames: list[Frame]) -> list[Frame]:
    outermost = max(place for place, frame in enumerate(frames) if frame.type is FrameType.PYTHON)
    return [
        frame
        for place, frame in enumerate(frames)
        if place >= outermost
        or frame.type is not FrameType.NATIVE
        or not is_internal(frame.system_name or frame.name)
    ]
