"""Records of family mpi (``bpf/mpi/mpi.h``) → operations of kinds COLLECTIVE, POINT_TO_POINT and STRETCH. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from otelgpu.elf.btf import Btf
from otelgpu.engine.contract import ContextStep
from otelgpu.model.inputs import Batch
from otelgpu.model.operations import (
    DEVICE_UNKNOWN,
    LARGEST_SIZE,
    OperationKind,
    Operations,
    SequenceSource,
    operations,
)
from otelgpu.model.stretches import Stretch

_HEAD: Final = ("trace_id", "span_id", "tgid", "tid", "cgroup_id", "cpu", "trace_flags", "context_source")
NO_TYPE: Final = 255
"""What elements are is not known, only how large they are."""


class MpiDecoder:
    """Decodes batches of family ``mpi``: a :class:`~otelgpu.engine.contract.OperationDecoder`."""

    def __init__(self, btf: Btf) -> None:
        self.apis: Mapping[int, str] = {
            number: symbol.removeprefix("API_")
            for symbol, number in btf.enumerators("mpi_api").items()
            if symbol.startswith("API_MPI_")
        }
        self.context_steps: Mapping[int, ContextStep] = {}

    def decode(self, batch: Batch) -> Operations:
        """One row for each collective, send and receive, in order: shape (n,).

        ``handle`` is the communicator of collectives; of sends and receives 0, for which of these meet depends on tags
        and on who receives from any rank.
        """
        if batch.kind != "mpi_call":
            return operations(0)
        chosen = (batch.records["wait"] == 0) & (batch.records["freed"] == 0)
        chosen &= np.isin(batch.records["api"], list(self.apis))
        heads, records = batch.heads[chosen], batch.records[chosen]
        transfer = records["transfer"] == 1
        rows = _rows(heads)
        rows["kind"] = np.where(transfer, OperationKind.POINT_TO_POINT, OperationKind.COLLECTIVE)
        rows["returned"] = heads["returned"]
        rows["handle"] = np.where(transfer, 0, records["communicator"])
        rows["api"] = records["api"]
        rows["size_bytes"] = np.minimum(records["bytes"], np.uint64(LARGEST_SIZE))
        rows["rank"], rows["peer"] = records["rank"], records["root"]
        rows["sequence_source"] = SequenceSource.UNKNOWN
        rows["datatype"] = rows["reduction"] = NO_TYPE
        rows["device"] = DEVICE_UNKNOWN
        return rows


def waits(batch: Batch) -> Operations:
    """Rows of kind STRETCH, in order: waits for what was begun without waiting. Of batches of other kinds none."""
    if batch.kind != "mpi_call":
        return operations(0)
    rows = _rows(batch.heads[(batch.records["wait"] == 1) & (batch.heads["returned"] == 1)])
    rows["kind"], rows["returned"] = OperationKind.STRETCH, 1
    rows["api"] = Stretch.COMMUNICATION_WAIT
    return rows


def _rows(heads: Operations) -> Operations:
    rows = operations(len(heads))
    for name in _HEAD:
        rows[name] = heads[name]
    rows["start_ns"], rows["duration_ns"] = heads["time_ns"], heads["duration_ns"]
    return rows
