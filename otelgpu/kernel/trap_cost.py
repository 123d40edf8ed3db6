"""What a probe costs on this machine: a trap is 1 to 3 us on bare metal and many times that in nested virtual machines.

Tried on this process, which is not observed, so that the programs end early: what they do beyond that is tenths of a
microsecond. The function begins with an instruction that the kernel steps over singly, which costs more than those it
emulates (a push, a jump), so that what is found is rather too much than too little.
"""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Iterable, Sequence
from time import perf_counter_ns
from typing import Final

from otelgpu.kernel.features import function_file_offset
from otelgpu.kernel.libbpf import BpfError, Link, Program, detach_all

_log = logging.getLogger("otelgpu.kernel")

UNTRIED_NS: Final = 3_000.0
"""Of entry and return, where the trial cannot be made."""

_LEAST_NS: Final = 100.0
_CALLS: Final = 200
_RUNS: Final = 5
_FUNCTION: Final = "labs"


def measure_trap(programs: Sequence[Program]) -> float:
    """ns that a call costs beyond itself with ``programs`` on it, for example those of its entry and its return."""
    function = getattr(ctypes.CDLL(None), _FUNCTION)
    links: list[Link] = []
    try:
        path, offset = function_file_offset(_FUNCTION)
        bare_ns = _time(function)
        for program in programs:
            links += program.attach_uprobes(path, [offset], [0], tgid=os.getpid())
        return max(_time(function) - bare_ns, _LEAST_NS)
    except (BpfError, OSError, AttributeError) as error:
        _log.warning("what a probe costs cannot be tried here: taken to be %d ns (%s)", UNTRIED_NS, error)
        return UNTRIED_NS
    finally:
        detach_all(links)


def _time(function: ctypes._NamedFuncPointer) -> float:
    """ns a call, of the quickest of several runs."""
    return min(_run(function, range(_CALLS)) for _ in range(_RUNS)) / _CALLS


def _run(function: ctypes._NamedFuncPointer, numbers: Iterable[int]) -> int:
    began = perf_counter_ns()
    for number in numbers:
        function(number)
    return perf_counter_ns() - began
