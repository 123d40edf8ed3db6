"""Family ``torch``: its records (``bpf/torch/torch.h``) → calls on an allocator, as operations, and levels. Pure."""

from __future__ import annotations

from typing import Final

import numpy as np

from otelgpu.model.allocators import LEVEL, Levels
from otelgpu.model.inputs import Batch
from otelgpu.model.operations import OPERATION, Memory, OperationKind, Operations, operations

_HEAD: Final = ("trace_id", "span_id", "tgid", "tid", "cgroup_id", "cpu", "trace_flags", "context_source")
_TOTALS: Final = (
    *("allocated", "reserved", "allocated_peak", "reserved_peak"),
    *("allocations", "allocated_bytes", "frees", "freed_bytes", "refusals"),
)


class TorchDecoder:
    """Decodes batches of family ``torch``: an :class:`~otelgpu.engine.contract.AllocatorDecoder`."""

    def tensor_calls(self, batch: Batch) -> Operations:
        """One row per allocation or free, in order, of kind ALLOCATION or FREE: shape (n,). Of other batches none.

        ``handle`` is the address, ``size_bytes`` its size (0 of a free, which the ledger knows), ``device`` as
        :func:`~otelgpu.model.allocators.device_name` has it.
        """
        if batch.kind != "torch_memory":
            return operations(0)
        heads, records = batch.heads, batch.records
        rows = np.zeros(len(records), dtype=OPERATION)
        for name in _HEAD:
            rows[name] = heads[name]
        gives = records["bytes"] >= 0
        rows["start_ns"], rows["returned"] = heads["time_ns"], 1
        rows["kind"] = np.where(gives, OperationKind.ALLOCATION, OperationKind.FREE)
        rows["handle"], rows["memory"] = records["address"], Memory.DEVICE
        rows["size_bytes"] = np.where(gives, records["bytes"], 0)
        rows["device"] = np.ascontiguousarray(records["device"]).view(np.int16)
        return rows

    def levels(self, batch: Batch) -> Levels:
        """One row per device and process: shape (n,). Of other batches none."""
        if batch.kind != "torch_levels":
            return np.zeros(0, dtype=LEVEL)
        found = np.zeros(len(batch.records), dtype=LEVEL)
        found["time_ns"], found["tgid"] = batch.heads["time_ns"], batch.heads["tgid"]
        found["device"] = np.ascontiguousarray(batch.records["key"]["device"]).view(np.int16)
        for name in _TOTALS:
            found[name] = batch.records["totals"][name]
        return found
