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


def waits_for_gil(frames: Iterable[Frame]) -> bool:
    """Whether a thread that waits under ``frames``, the leaf first, waits for the interpreter's lock."""
    on_condition = False
    for frame in frames:
        if frame.type is FrameType.PYTHON:
            return False
        name = frame.name.partition(".")[0] if frame.name.startswith("take_gil") else frame.name
        if name in _TAKERS:
            return True
        if on_condition and _INTERPRETER.match(frame.file.rpartition("/")[2]):
            return True
        on_condition = bool(_CONDITION.match(frame.name))
    return False
