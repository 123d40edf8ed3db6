"""Which waits are for the interpreter's lock, by the frames of a stack. Pure.

CPython waits for its lock in ``take_gil`` (Python/ceval_gil.c; up to 3.11 ceval_gil.h), a static function, which waits
on a condition with a limit. Where the interpreter is stripped that function has no name: then its callers report, which
are exported, or that a function of the interpreter waits on such a condition, for no other of its functions does.

Example: ``__futex_abstimed_wait_common, pthread_cond_timedwait, python3.11+0x1a2b30, worker`` (the last a Python
frame) waits for the lock: the interpreter's function between has a condition's wait on top of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from otelgpu.model.profiles import FrameType
from otelgpu.model.samples import Frame

_TAKERS: Final = frozenset(
    (
        *(
            "take_gil",
            "PyEval_RestoreThread",
            "PyEval_AcquireThread",
            "PyEval_AcquireLock",
            "PyGILState_Ensure",
        ),
        *("_PyThreadState_Attach", "PyThreadState_Swap"),
    )
)
"""On a stack that waits: for the lock. They return once they have it."""
_CONDITION: Final = re.compile(r"_*(GI_+)?pthread_cond_(timed|clock)wait")
_INTERPRETER: Final = re.compile(r"(lib)?python3?(\.\d+)*[a-z]*(\.so[.\d]*)?( \(deleted\))?\Z")


PYTHON: Final = 1
"""A mark of a frame: it runs Python code."""
_TAKES: Final = 2
_CONDITION_WAIT: Final = 4
_OF_INTERPRETER: Final = 8


def gil_marks(frame: Frame) -> int:
    """What of a frame says whether its thread waits for the lock, as bits: to be asked once a frame."""
    if frame.type is FrameType.PYTHON:
        return PYTHON
    name = frame.name.partition(".")[0] if frame.name.startswith("take_gil") else frame.name
    marks = _TAKES if name in _TAKERS else 0
    if _CONDITION.match(frame.name):
        marks |= _CONDITION_WAIT
    if _INTERPRETER.match(frame.file.rpartition("/")[2]):
        marks |= _OF_INTERPRETER
    return marks


def waits_for_gil(marks: Iterable[int]) -> bool:
    """Whether a thread that waits waits for the interpreter's lock: by ``gil_marks`` of its frames, the leaf first."""
    on_condition = 0
    for each in marks:
        if each & PYTHON:
            return False
        if each & _TAKES or (on_condition and each & _OF_INTERPRETER):
            return True
        on_condition = each & _CONDITION_WAIT
    return False
