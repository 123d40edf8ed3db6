"""What threads held at given times: the library's ``number_threads`` and ``find_states``. Pure."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from otelgpu.spanwriter.library import Timelines, library

StatesOf = Callable[[int], tuple[Sequence[int], Sequence[int]]]
"""Of a thread: when its states began, ascending, and what they are; at least one."""


def states_at(
    tids: npt.NDArray[np.uint32], times_ns: npt.NDArray[np.uint64], states_of: StatesOf
) -> npt.NDArray[np.int64]:
    """The last state that began by each (tid, time), the first one before it did: shape (n,)."""
    found: Any = library()
    tids, times_ns = np.ascontiguousarray(tids, np.uint32), np.ascontiguousarray(times_ns, np.uint64)
    numbers, distinct = np.empty_like(tids), np.empty_like(tids)
    count = found.number_threads(tids.ctypes.data, len(tids), numbers.ctypes.data, distinct.ctypes.data)
    if count < 0:
        raise MemoryError
    begins: list[int] = []
    states: list[int] = []
    ends = np.empty(count, dtype=np.int64)
    for number, tid in enumerate(distinct[:count].tolist()):
        since, held = states_of(tid)
        begins += since
        states += held
        ends[number] = len(begins)
    columns = np.array(begins, dtype=np.uint64), np.array(states, dtype=np.int64), ends
    pointers = (column.ctypes.data for column in columns)
    timelines = Timelines(**dict(zip(("begins_ns", "states", "ends"), pointers, strict=True)), threads=count)
    owners = np.empty(len(tids), dtype=np.int64)
    if found.find_states(
        *(ctypes.byref(timelines), numbers.ctypes.data, times_ns.ctypes.data, len(tids), owners.ctypes.data)
    ):
        raise MemoryError
    return owners
