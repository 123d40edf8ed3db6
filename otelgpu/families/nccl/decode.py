"""Records of family nccl → operations and what is known of communicators. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from otelgpu.elf.btf import Btf
from otelgpu.engine.call_layout import check_layout
from otelgpu.engine.contract import ContextStep
from otelgpu.families.nccl.signals import DATATYPES, IN_PROGRESS
from otelgpu.model.communicators import CommunicatorSeen
from otelgpu.model.inputs import Batch
from otelgpu.model.operations import (
    LARGEST_SIZE,
    OPERATION,
    OperationKind,
    Operations,
    concatenate,
    operations,
)

_PREFIX: Final = "API_"
_NO_FUNCTION: Final = frozenset(("API_NONE", "API_COUNT"))
_KINDS: Final = (
    OperationKind.COLLECTIVE,
    OperationKind.POINT_TO_POINT,
    OperationKind.COMMUNICATOR,
    OperationKind.GROUP,
)

# Field of struct nccl_call → column that must lie at the same place.
_SAME_PLACE: Final[Mapping[str, str]] = {
    "communicator": "handle",
    "hash": "communicator_hash",
    "count": "size_bytes",
    "stream": "stream",
    "sequence": "sequence",
    "extra": "extra",
    "group": "group",
    "rank": "rank",
    "peer": "peer",
    "datatype": "datatype",
    "reduction": "reduction",
    "sequence_source": "sequence_source",
    "status": "status",
    "api": "api",
    "device": "device",
}
_SIZES: Final = np.zeros(256, dtype=np.uint64)  # bytes of an element, by ncclDataType_t
_SIZES[list(DATATYPES)] = [size for _, size in DATATYPES.values()]


class NcclDecoder:
    """Decodes batches of family ``nccl``: a :class:`~otelgpu.engine.contract.CommunicatorDecoder`.

    ``btf`` says the API functions' numbers and the record's layout, which is that of an operation but for the
    elements that become bytes. Raises BtfError where a capture's records are laid out otherwise.
    """

    def __init__(self, btf: Btf) -> None:
        self.apis: Mapping[int, str] = {
            number: name.removeprefix(_PREFIX)
            for name, number in btf.enumerators("nccl_api").items()
            if name not in _NO_FUNCTION
        }
        self.context_steps: Mapping[int, ContextStep] = {}
        check_layout("nccl_call", btf.dtype("nccl_call"), _SAME_PLACE)

    def decode(self, batch: Batch) -> Operations:
        """One row per call, in order: shape (n,). ``size_bytes`` is elements times their size.

        A non-blocking communicator's ``ncclInProgress`` is no error, and its status is 0 here.
        """
        if batch.kind != "nccl_call":
            return operations(0)
        rows: Operations = batch.records.view(OPERATION)
        known = np.isin(rows["kind"], _KINDS)
        rows = concatenate([rows]) if known.all() else rows.compress(known)  # .copy() goes field by field
        counts = np.minimum(rows["size_bytes"], np.uint64(LARGEST_SIZE))  # times 8 is no overflow
        rows["size_bytes"] = np.minimum(counts * _SIZES[rows["datatype"]], np.uint64(LARGEST_SIZE))
        rows["status"][rows["status"] == IN_PROGRESS] = 0
        return rows


def communicators(batch: Batch) -> list[CommunicatorSeen]:
    """What a batch reported of communicators, in its order; of batches of other kinds nothing."""
    if batch.kind != "nccl_communicator":
        return []
    heads = batch.heads
    ends = heads["time_ns"] + heads["duration_ns"]  # a communicator is there when the call returns
    columns: dict[str, list[Any]] = {
        "tgid": heads["tgid"].tolist(),
        "time_ns": ends.tolist(),
        "duration_ns": heads["duration_ns"].tolist(),
    }
    names = (
        *("communicator", "hash", "rank", "ranks", "device", "parent"),
        *("created", "ended", "async_error"),
    )
    columns |= {name: batch.records[name].tolist() for name in names}
    return [
        CommunicatorSeen(
            tgid=tgid,
            time_ns=time_ns,
            duration_ns=duration_ns,
            address=address,
            hash=hash_,
            rank=rank,
            ranks=ranks,
            device=device,
            parent=parent,
            created=bool(created),
            ended=bool(ended),
            async_error=async_error,
        )
        for (
            tgid,
            time_ns,
            duration_ns,
            address,
            hash_,
            rank,
            ranks,
            device,
            parent,
            created,
            ended,
            async_error,
        ) in zip(*columns.values(), strict=True)
    ]
