"""Records of family gloo (``bpf/gloo/gloo.h``) → operations of kinds COLLECTIVE, POINT_TO_POINT and STRETCH. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import numpy as np

from otelgpu.elf.btf import Btf
from otelgpu.engine.contract import ContextStep
from otelgpu.model.inputs import Batch
from otelgpu.model.operations import (
    DEVICE_UNKNOWN,
    LARGEST_SIZE,
    OPERATION,
    OperationKind,
    Operations,
    SequenceSource,
    operations,
)
from otelgpu.model.stretches import Stretch

_HEAD: Final = ("trace_id", "span_id", "tgid", "tid", "cgroup_id", "cpu", "trace_flags", "context_source")
_MANGLED: Final = re.compile(r"API__ZN4gloo(\d+)(\w+)")
_TRANSFER: Final = re.compile(r"API__ZN4c10d16ProcessGroupGloo\d+(send|recv)(?:Anysource)?E")
NO_TYPE: Final = 255
"""gloo's options do not say what their elements are."""


class GlooDecoder:
    """Decodes batches of family ``gloo``: a :class:`~otelgpu.engine.contract.OperationDecoder`."""

    def __init__(self, btf: Btf) -> None:
        self.apis: Mapping[int, str] = {
            number: name
            for symbol, number in btf.enumerators("gloo_api").items()
            if (name := _name_of(symbol))
        }
        self.context_steps: Mapping[int, ContextStep] = {}

    def decode(self, batch: Batch) -> Operations:
        """One row for each collective, send and receive, in order: shape (n,).

        ``handle`` is the group's context, of sends and receives the ``ProcessGroupGloo``; ``sequence`` is the tag, of
        those the number between the two ranks.
        """
        if batch.kind != "gloo_call":
            return operations(0)
        known = np.isin(batch.records["api"], list(self.apis))
        heads, records = batch.heads[known], batch.records[known]
        rows = _rows(heads)
        rows["kind"] = np.where(
            records["transfer"] == 1, OperationKind.POINT_TO_POINT, OperationKind.COLLECTIVE
        )
        rows["returned"] = heads["returned"]
        rows["handle"], rows["api"] = records["context"], records["api"]
        rows["size_bytes"] = np.minimum(records["bytes"], np.uint64(LARGEST_SIZE))
        rows["rank"], rows["peer"] = records["rank"], records["root"]
        rows["sequence"] = records["tag"]
        tagged = (records["tagged"] == 1) & (records["rank"] >= 0)
        rows["sequence_source"] = np.where(tagged, SequenceSource.CALL, SequenceSource.UNKNOWN)
        rows["datatype"] = rows["reduction"] = NO_TYPE
        rows["device"] = DEVICE_UNKNOWN
        return rows


def stretches(batch: Batch) -> Operations:
    """Rows of kind STRETCH, in order; of batches of other kinds none. Unknown ones are passed over."""
    if batch.kind != "gloo_stretch":
        return operations(0)
    known = np.isin(batch.records["of"], tuple(Stretch))
    rows = _rows(batch.heads[known])
    rows["kind"], rows["returned"] = OperationKind.STRETCH, 1
    rows["api"] = batch.records["of"][known]
    return rows


def _rows(heads: Operations) -> Operations:
    rows = np.zeros(len(heads), dtype=OPERATION)
    for name in _HEAD:
        rows[name] = heads[name]
    rows["start_ns"], rows["duration_ns"] = heads["time_ns"], heads["duration_ns"]
    return rows


def _name_of(symbol: str) -> str:
    """``gloo::allreduce`` of an enumerator; "" of a function of which there are no calls in records.

    >>> _name_of("API__ZN4gloo9allreduceERKNS_16AllreduceOptionsE")
    'gloo::allreduce'
    >>> _name_of("API__ZN4c10d16ProcessGroupGloo4sendERSt6vectorIN2at6TensorESaIS3_EEii")
    'gloo::send'
    """
    if found := _MANGLED.match(symbol):
        return f"gloo::{found[2][: int(found[1])]}"
    found = _TRANSFER.match(symbol)
    return f"gloo::{found[1]}" if found else ""
