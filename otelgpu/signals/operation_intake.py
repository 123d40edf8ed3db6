"""What is done with operations as they come: who looks at which, in what order, and whose each of them is. Pure.

In: rows of one family, decoded, and where the session stands in time. Out: what of them is told at once; all others
wait with whom they were given to.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from otelgpu.correlate.function_names import FunctionNames
from otelgpu.correlate.memory import KINDS as MEMORY_KINDS
from otelgpu.correlate.memory import MemoryLedger
from otelgpu.families.probe.decode import NO_SPAN
from otelgpu.model.operations import OperationKind, Operations
from otelgpu.signals.collective_session import CollectiveSession
from otelgpu.signals.device_session import DeviceSession
from otelgpu.signals.operation_metrics import OperationMeter
from otelgpu.signals.operation_spans import Vocabulary
from otelgpu.signals.ownership import Ownership, Work, only
from otelgpu.signals.parts import Part, SmallParts, parts_of
from otelgpu.signals.profiler import Profiler
from otelgpu.signals.summary import Summary
from otelgpu.signals.training_session import TrainingSession

_TOGETHER: Final = (OperationKind.COLLECTIVE, OperationKind.POINT_TO_POINT)
"""Calls that several processes make together: they are told in traces of their own."""

_WAITED: Final = (OperationKind.SYNCHRONIZATION, OperationKind.GRAPH)
"""Calls of a device's API that tell how long such a call was waited for, and whether it was made at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationIntake:
    """One session's."""

    ownership: Ownership
    functions: FunctionNames
    vocabulary: Vocabulary
    meter: OperationMeter
    summary: Summary
    ledger: MemoryLedger
    device: DeviceSession
    collectives: CollectiveSession
    training: TrainingSession
    profiler: Profiler
    _small: SmallParts = field(default_factory=SmallParts)

    def take(self, fed: Operations, family: int, now_ns: int) -> Iterable[Work]:
        """Give each its owner, count it, and put it where it waits."""
        # First, for as they came they are in the order of their times, or nearly.
        owners = self.ownership.owners(
            np.ascontiguousarray(fed["tid"]), np.ascontiguousarray(fed["start_ns"])
        )
        rows, parts, order = parts_of(fed, family)
        owners = owners[order]
        self.device.add_calls(rows, now_ns)  # before the names, which lie where it reads
        for part in parts:
            if part.kind in MEMORY_KINDS:
                self.ledger.add(part.rows)
            elif part.kind in _WAITED and self.collectives.has_communicators(part.tgid):
                self.collectives.see_waits(part.rows)
            elif part.kind == OperationKind.GROUP:
                self.collectives.see_groups(part.rows)
        self._set_names(parts)
        self.profiler.see_calls(rows)
        self._measure(self._small.pass_on(parts))
        together = np.isin(rows["kind"], _TOGETHER)
        if together.any():
            collectives, callers = only(together, rows, owners)
            self.training.take(collectives)  # which only looks at them
            self.collectives.take(collectives, callers)
            rows, owners = only(~together, rows, owners)
        silent = (rows["kind"] == OperationKind.PROBE) & (rows["detail"] == NO_SPAN)
        if silent.any():
            rows, owners = only(~silent, rows, owners)
        return self.ownership.give(rows, owners)

    def settle(self) -> None:
        """Measure what was too little to be measured by itself."""
        self._measure(self._small.release())

    def _set_names(self, parts: Sequence[Part]) -> None:
        for part in parts:
            if part.kind is OperationKind.LAUNCH:
                addresses = np.ascontiguousarray(part.rows["function"])
                part.rows["name"] = self.functions.indices(part.tgid, addresses)

    def _measure(self, parts: Sequence[Part]) -> None:
        self.meter.measure(parts)
        self.summary.add_operations(parts, self.vocabulary)
