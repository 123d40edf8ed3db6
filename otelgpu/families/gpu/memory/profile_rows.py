"""What processes hold of devices' memory, under the stacks that it was allocated under → rows of profiles. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from otelgpu.engine.memory_labels import KEPT, memory_label
from otelgpu.engine.memory_names import MemoryNames
from otelgpu.engine.profile_rows import ProfileRows, profile_rows
from otelgpu.families.gpu.memory.ledger import MemoryLedger
from otelgpu.model.profiles import ValueType
from otelgpu.model.profiling import ProfileKind

IN_USE: Final = ValueType(type="device_memory_in_use", unit="bytes")
IN_USE_ALLOCATIONS: Final = ValueType(type="device_memory_in_use_allocations", unit="count")

LEVELS: Final = frozenset((IN_USE, IN_USE_ALLOCATIONS))
"""Reported as they stand at the end of an interval: they are not to be summed over intervals."""


class MemoryProfiles:
    """One session's ledger as a :class:`~otelgpu.engine.services.ProfileSource`."""

    def __init__(self, ledger: MemoryLedger, names: Sequence[MemoryNames | None]) -> None:
        """``names``: of each family by its position in the session."""
        self._ledger, self._names = ledger, names

    def take(self, now_ns: int, *, final: bool = False) -> list[ProfileRows]:
        """None: allocations are calls, and reported with those."""
        return []

    def held(self, time_ns: int) -> list[ProfileRows]:
        """What is in use now, by stack and kind of memory: a level, see :data:`LEVELS`."""
        found = [
            (process.tgid, stack, device, memory, family, size, count)
            for process in self._ledger.processes.values()
            for (stack, device, memory, family), (size, count) in process.held_by_stack().items()
            if memory in KEPT
        ]
        if not found:
            return []
        tgids, stacks, devices, memories, families, sizes, counts = zip(*found, strict=True)
        rows = profile_rows(len(found))
        rows["time_ns"], rows["tgid"], rows["stack"], rows["value"] = time_ns, tgids, stacks, sizes
        places = list(zip(memories, devices, families, strict=True))
        labels = {place: number for number, place in enumerate(dict.fromkeys(places), 1)}
        rows["label"] = [labels[place] for place in places]
        reported = tuple(
            memory_label(memory, device, self._names[family]) for memory, device, family in labels
        )
        number = rows.copy()
        number["value"] = counts
        return [
            ProfileRows(kind=ProfileKind.MEM, sample_type=IN_USE, rows=rows, labels=reported),
            ProfileRows(kind=ProfileKind.MEM, sample_type=IN_USE_ALLOCATIONS, rows=number, labels=reported),
        ]
