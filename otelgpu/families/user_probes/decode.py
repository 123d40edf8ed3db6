"""Records of family probe → operations of kind PROBE. Pure.

The values that a probe reads are in the columns of :data:`SLOTS`, in the order of its arguments; bit i of ``extra``
says that value i could be read. ``detail`` is 1 of hits that are no spans.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from otelgpu.engine.contract import ContextStep
from otelgpu.model.inputs import Batch
from otelgpu.model.operations import OPERATION, OperationKind, Operations, operations
from otelgpu.model.user_probes import MOST_PROBES, UserProbe

SLOTS: Final = ("handle", "other", "size_bytes", "stream")
NO_SPAN: Final = 1
_HEAD: Final = ("trace_id", "span_id", "tgid", "tid", "cgroup_id", "cpu", "trace_flags", "context_source")


class ProbeDecoder:
    """Decodes ``probe_hit`` batches: an :class:`~otelgpu.engine.contract.OperationDecoder`.

    Of a capture that is replayed without its probe file, the probes are called by their numbers.
    """

    def __init__(self, probes: Sequence[UserProbe]) -> None:
        self.apis: Mapping[int, str] = {number: f"probe{number}" for number in range(1, MOST_PROBES + 1)} | {
            probe.number: probe.name for probe in probes
        }
        self.context_steps: Mapping[int, ContextStep] = {}
        self._details = np.zeros(MOST_PROBES + 1, np.uint32)
        for probe in probes:
            self._details[probe.number] = 0 if probe.span else NO_SPAN

    def decode(self, batch: Batch) -> Operations:
        """One row per hit, in order: shape (n,)."""
        if batch.kind != "probe_hit":
            return operations(0)
        known = (batch.records["number"] > 0) & (batch.records["number"] <= MOST_PROBES)
        records, heads = batch.records[known], batch.heads[known]
        rows = np.zeros(len(records), dtype=OPERATION)
        for name in _HEAD:
            rows[name] = heads[name]
        rows["start_ns"], rows["duration_ns"] = heads["time_ns"], heads["duration_ns"]
        rows["returned"], rows["kind"] = heads["returned"], OperationKind.PROBE
        rows["api"], rows["extra"] = records["number"], records["read"]
        rows["detail"] = self._details[records["number"]]
        for index, slot in enumerate(SLOTS):
            rows[slot] = records["values"][:, index]
        return rows
