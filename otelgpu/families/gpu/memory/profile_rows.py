"""What processes hold of devices' memory, under the stacks that it was allocated under → rows of profiles. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from otelgpu.engine.memory_labels import KEPT, memory_label
from otelgpu.engine.memory_names import MemoryNames
from otelgpu.engine.profile_rows import ProfileRows, profile_rows
from otelgpu.families.gpu.memory.ledger import MemoryLedger
from otelgpu.families.gpu.memory.process import ProcessMemory
from otelgpu.model.profiles import ValueType
from otelgpu.model.profiling import ProfileKind

IN_USE: Final = ValueType(type="device_memory_in_use", unit="bytes")
IN_USE_ALLOCATIONS: Final = ValueType(type="device_memory_in_use_allocations", unit="count")
AT_EXIT: Final = ValueType(type="device_memory_at_exit", unit="bytes")
"""What a process held when it ended: then it holds nothing any more."""

LEVELS: Final = frozenset((IN_USE, IN_USE_ALLOCATIONS))
"""Reported as they stand at the end of an interval: they are not to be summed over intervals."""


class _Held(NamedTuple):
    time_ns: int
    tgid: int
    stack: int
    device: int
    memory: int
    family: int
    size: int
    number: int


class MemoryProfiles:
    """One session's ledger as a :class:`~otelgpu.engine.services.ProfileSource`."""

    def __init__(self, ledger: MemoryLedger, names: Sequence[MemoryNames | None]) -> None:
        """``names``: of each family by its position in the session."""
        self._ledger, self._names = ledger, names
        self._at_exit: list[_Held] = []

    def see_end(self, process: ProcessMemory, time_ns: int) -> None:
        """A process ends, and has not let go of what it holds."""
        self._at_exit += _held(process, time_ns)

    def take(self, now_ns: int, *, final: bool = False) -> list[ProfileRows]:
        """What processes held that ended. Allocations are calls, and reported with those."""
        found, self._at_exit = self._at_exit, []
        return self._reported(found, AT_EXIT, None)

    def held(self, time_ns: int) -> list[ProfileRows]:
        """What is in use now, by stack and kind of memory: a level, see :data:`LEVELS`."""
        found = [row for process in self._ledger.processes.values() for row in _held(process, time_ns)]
        return self._reported(found, IN_USE, IN_USE_ALLOCATIONS)

    def _reported(
        self, found: Sequence[_Held], of_sizes: ValueType, of_counts: ValueType | None
    ) -> list[ProfileRows]:
        if not found:
            return []
        rows = profile_rows(len(found))
        rows["time_ns"], rows["tgid"], rows["stack"], devices, memories, families, sizes, counts = zip(
            *found, strict=True
        )
        places = list(zip(memories, devices, families, strict=True))
        labels = {place: number for number, place in enumerate(dict.fromkeys(places), 1)}
        rows["label"] = [labels[place] for place in places]
        reported = tuple(
            memory_label(memory, device, self._names[family]) for memory, device, family in labels
        )
        made = []
        for which, values in ((of_sizes, sizes), (of_counts, counts)):
            if which is not None:
                valued = rows.copy()
                valued["value"] = values
                made.append(
                    ProfileRows(kind=ProfileKind.MEM, sample_type=which, rows=valued, labels=reported)
                )
        return made


def _held(process: ProcessMemory, time_ns: int) -> list[_Held]:
    return [
        _Held(time_ns, process.tgid, stack, device, memory, family, size, count)
        for (stack, device, memory, family), (size, count) in process.held_by_stack().items()
        if memory in KEPT
    ]
