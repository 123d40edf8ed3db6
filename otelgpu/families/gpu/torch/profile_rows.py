"""Memory that tensors hold, under the stacks that it was allocated under → rows of profiles. Pure.

In: allocations and frees as a framework's allocator reports them, samples of kind CALL with their stacks. Out: rows of
kind mem: what was allocated, and, as it stands, what is in use since the observation began.

These are beside ``device_memory_*``, not part of it: the allocator takes memory from the driver in large pieces
(``device_memory_*``, under the stack of whichever tensor was the first to need one) and gives it to tensors (these).

A report and its stack are two records of two rings; what is younger than :data:`HOLD_NS` waits, so that both are here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from otelgpu.engine.call_stacks import COUNTERS as CALL_COUNTERS
from otelgpu.engine.call_stacks import CallStacks, WaitingCalls
from otelgpu.engine.profile_rows import Label, ProfileRows, Rows, profile_rows
from otelgpu.families.gpu.memory.ledger import COUNTERS as MEMORY_COUNTERS
from otelgpu.families.gpu.memory.ledger import MemoryLedger
from otelgpu.families.gpu.memory.process import ProcessMemory
from otelgpu.families.gpu.torch.metrics import DEVICE
from otelgpu.model.allocators import device_name
from otelgpu.model.losses import Reasons
from otelgpu.model.operations import DEVICE_UNKNOWN, OperationKind, Operations
from otelgpu.model.profiles import ValueType
from otelgpu.model.profiling import ProfileKind
from otelgpu.model.samples import Samples

ALLOCATED: Final = ValueType(type="tensor_memory_allocated", unit="bytes")
ALLOCATIONS: Final = ValueType(type="tensor_memory_allocations", unit="count")
IN_USE: Final = ValueType(type="tensor_memory_in_use", unit="bytes")
IN_USE_ALLOCATIONS: Final = ValueType(type="tensor_memory_in_use_allocations", unit="count")
AT_EXIT: Final = ValueType(type="tensor_memory_at_exit", unit="bytes")
"""What tensors held when the process ended."""

TYPES: Final = frozenset((ALLOCATED, ALLOCATIONS, IN_USE, IN_USE_ALLOCATIONS, AT_EXIT))
LEVELS: Final = frozenset((IN_USE, IN_USE_ALLOCATIONS))
"""Reported as they stand at the end of an interval: they are not to be summed over intervals."""

REASONS: Final = Reasons("torch", {**CALL_COUNTERS, **MEMORY_COUNTERS})
"""What one count of (``torch``, reason) means: of the stacks and the ledger that are kept of tensors' memory alone."""

HOLD_NS: Final = 100_000_000

DEVICES: Final = 255
"""Different ones of a session: those beyond have no name."""


class TensorProfiles:
    """One session's."""

    def __init__(self) -> None:
        self._stacks = CallStacks()
        self._calls = WaitingCalls(self._stacks)
        self._ledger = MemoryLedger((), stacks=self._stacks.stacks_of, at_end=self._see_end)
        self._at_exit: list[_Held] = []
        self._devices: dict[int, int] = {}  # as reported → as the ledger has it
        self._labels: tuple[Label, ...] = ()  # by the ledger's number

    @property
    def counters(self) -> Mapping[str, int]:
        """Losses and oddities by name, since the start: those of the stacks and of the ledger."""
        return Counter(self._stacks.counters) + Counter(self._ledger.counters)

    def see_samples(self, samples: Samples, now_ns: int) -> None:
        """Samples of allocations, as they come."""
        self._stacks.add(samples, now_ns)

    def see_calls(self, rows: Operations) -> None:
        """Allocations and frees; the rows become this object's."""
        rows["device"] = self._numbers(np.ascontiguousarray(rows["device"]))
        self._ledger.add(rows)
        self._calls.add(rows.compress(rows["kind"] == OperationKind.ALLOCATION))

    def end_process(self, tgid: int, time_ns: int) -> None:
        """A process ended: what it held is free."""
        self._ledger.end_process(tgid, time_ns)

    def take(self, now_ns: int, *, final: bool = False) -> list[ProfileRows]:
        """What was allocated, as far as it is known since the last time."""
        self._ledger.settle(now_ns - HOLD_NS, final=final)
        for process in self._ledger.take_ended():
            self._ledger.forget(process.tgid)
        calls, stacks = self._calls.take(now_ns, final=final)
        self._stacks.expire(now_ns, final=final)
        rows = profile_rows(len(calls))
        for name in ("tgid", "tid", "trace_id", "span_id", "trace_flags", "context_source"):
            rows[name] = calls[name]
        rows["time_ns"], rows["stack"] = calls["start_ns"], stacks
        rows["label"] = self._label_codes(calls["device"])
        ended, self._at_exit = self._at_exit, []
        return [
            *self._reported(ALLOCATED, ALLOCATIONS, rows, calls["size_bytes"].astype(np.int64), 1),
            *self._levels(ended, AT_EXIT, None),
        ]

    def held(self, time_ns: int) -> list[ProfileRows]:
        """What tensors hold now, by stack and device: a level, see :data:`LEVELS`."""
        found = [row for process in self._ledger.processes.values() for row in _held(process, time_ns)]
        return self._levels(found, IN_USE, IN_USE_ALLOCATIONS)

    def _see_end(self, process: ProcessMemory, time_ns: int) -> None:
        self._at_exit += _held(process, time_ns)

    def _levels(
        self, found: list[_Held], size_type: ValueType, count_type: ValueType | None
    ) -> list[ProfileRows]:
        if not found:
            return []
        columns = np.array(found, dtype=object).T
        rows = profile_rows(len(found))
        rows["time_ns"], rows["tgid"], rows["stack"] = columns[0], columns[1], columns[2]
        rows["label"] = self._label_codes(columns[3].astype(np.int64))
        return self._reported(size_type, count_type, rows, columns[4], columns[5])

    def _reported(
        self,
        size_type: ValueType,
        count_type: ValueType | None,
        rows: Rows,
        sizes: npt.NDArray[Any],
        counts: npt.NDArray[Any] | int,
    ) -> list[ProfileRows]:
        if not len(rows):
            return []
        numbered = rows.copy()
        rows["value"], numbered["value"] = sizes, counts
        return [
            ProfileRows(
                kind=ProfileKind.MEM,
                sample_type=which,
                rows=reported,
                labels=self._labels,
                has_operators=True,
            )
            for which, reported in ((size_type, rows), (count_type, numbered))
            if which is not None
        ]

    def _numbers(self, devices: npt.NDArray[np.int16]) -> npt.NDArray[np.int16]:
        """The ledger's number of each device."""
        distinct, codes = np.unique(devices, return_inverse=True)
        for device in distinct.tolist():
            if device not in self._devices and len(self._devices) < DEVICES:
                self._devices[device] = len(self._devices)
                self._labels = (*self._labels, ((DEVICE, device_name(device)),))
        numbers = [self._devices.get(device, DEVICE_UNKNOWN) for device in distinct.tolist()]
        return np.array(numbers, dtype=np.int16)[codes.reshape(-1)]

    def _label_codes(self, devices: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.integer[Any]]:
        """From 1 on, and 0, which is no label, of those without a name (DEVICE_UNKNOWN, which is -1)."""
        return devices + 1


_Held = tuple[int, int, int, int, int, int]  # time, tgid, stack, device, bytes, allocations


def _held(process: ProcessMemory, time_ns: int) -> list[_Held]:
    return [
        (time_ns, process.tgid, stack, device, size, count)
        for (stack, device, *_), (size, count) in process.held_by_stack().items()
    ]
