"""Waits for a compiler: of another program that was started, when that is what it ran. Pure.

``torch.compile``, ``torch.utils.cpp_extension`` and Triton start ``gcc``, ``nvcc`` or ``ptxas`` and wait for them,
often by way of a pool: a wait for another program, or for a worker, during which a compiler ran. What is compiled in
the process itself is known by its own frames (:func:`~otelgpu.diagnose.stall.causes.cause_of`).
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from msgspec import structs

from otelgpu.diagnose.stall.activities import Activity
from otelgpu.diagnose.stall.causes import COMPILE, INPUT, SUBPROCESS
from otelgpu.diagnose.stall.observations import ThreadSeen

COMPILING: Final = 0.3
"""Of a wait for another program, in which a compiler has to be seen."""
NEAR_NS: Final = 30_000_000
"""Between two sights of it: it ran in between."""
_WAITS: Final = (SUBPROCESS, INPUT)
COMPILERS: Final = re.compile(
    r"(?:.*-)?(?:gcc|g\+\+|cc|c\+\+|cc1|cc1plus|clang|clang\+\+|collect2|ld|lld|ld\.gold|ld\.bfd|as|icx|icpx"
    r"|nvcc|cicc|ptxas|fatbinary|cudafe\+\+|nvlink|hipcc|amdclang|rustc|gfortran|f951)(?:-[0-9.]+)?"
)
"""Programs that compile, assemble or link, also by their names for other targets and with their version."""


def compiled(found: Sequence[Activity], thread: ThreadSeen, threads: Sequence[ThreadSeen]) -> list[Activity]:
    """Waits of ``thread`` for other programs are for a compiler where one of another process ran meanwhile."""
    ran = _compiling(thread, threads)
    ends = [end for _, end in ran]
    return [
        structs.replace(each, cause=COMPILE)
        if each.cause in _WAITS and _is_for_one(each, ran, ends)
        else each
        for each in found
    ]


def _compiling(thread: ThreadSeen, threads: Sequence[ThreadSeen]) -> list[tuple[int, int]]:
    """When other processes' compilers were seen, begin and end, in order and apart."""
    seen = sorted(
        (row.begin_ns, row.end_ns)
        for other in threads
        if other.pid != thread.pid and COMPILERS.fullmatch(other.program)
        for row in other.rows
    )
    apart: list[tuple[int, int]] = []
    for begin, end in seen:
        if apart and begin - apart[-1][1] <= NEAR_NS:
            apart[-1] = (apart[-1][0], max(end, apart[-1][1]))
        else:
            apart.append((begin, end))
    return apart


def _is_for_one(wait: Activity, ran: Sequence[tuple[int, int]], ends: Sequence[int]) -> bool:
    spent = 0
    for begin, end in ran[bisect_left(ends, wait.begin_ns) :]:
        if begin >= wait.end_ns:
            break
        spent += min(end, wait.end_ns) - max(begin, wait.begin_ns)
    return spent >= COMPILING * wait.length_ns
