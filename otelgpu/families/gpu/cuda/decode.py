"""``struct cuda_call`` records → operations. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from otelgpu.elf.btf import Btf
from otelgpu.engine.call_layout import check_layout
from otelgpu.engine.contract import ContextStep
from otelgpu.families.gpu.cuda.functions import PEER_ACCESS, context_step
from otelgpu.model.codes import all_of
from otelgpu.model.inputs import Batch
from otelgpu.model.operations import (
    DEVICE_KINDS,
    OPERATION,
    CopyDirection,
    OperationKind,
    Operations,
    concatenate,
    operations,
)

_PREFIX: Final = "API_"
_NO_FUNCTION: Final = frozenset(("API_NONE", "API_COUNT"))

# As plain numbers, for numpy asks a member of an enumeration what it is at each call.
_FIRST_KIND, _LAST_KIND = int(DEVICE_KINDS[0]), int(DEVICE_KINDS[-1])
_COPY, _DEVICE = int(OperationKind.COPY), int(OperationKind.DEVICE)
_LAST_DIRECTION = int(CopyDirection.DEFAULT)

# Field of struct cuda_call → column that must lie at the same place.
_SAME_PLACE: Final[Mapping[str, str]] = {
    "object": "handle",
    "function": "function",
    "other": "other",
    "bytes": "size_bytes",
    "shared_bytes": "shared_bytes",
    "stream": "stream",
    "extra": "extra",
    "caller": "caller",
    "detail": "detail",
    "memory": "memory",
    "grid": "grid",
    "block": "block",
    "status": "status",
    "api": "api",
    "device": "device",
}


NAMES_PEER: Final = 1
"""``extra`` of a call that names another device or context, and makes none current."""


class CudaDecoder:
    """Decodes batches of family ``cuda``.

    ``btf`` says the API functions' numbers and the record's layout, which is that of an operation: decoding
    is looking at the same bytes differently. Raises BtfError where a capture's records are laid out otherwise.
    """

    def __init__(self, btf: Btf) -> None:
        self.apis: Mapping[int, str] = {
            number: name.removeprefix(_PREFIX)
            for name, number in btf.enumerators("cuda_api").items()
            if name not in _NO_FUNCTION
        }
        steps = {number: context_step(name) for number, name in self.apis.items()}
        self.context_steps: Mapping[int, ContextStep] = {n: step for n, step in steps.items() if step}
        self._peers = [number for number, name in self.apis.items() if name in PEER_ACCESS]
        check_layout("cuda_call", btf.dtype("cuda_call"), _SAME_PLACE)

    def decode(self, batch: Batch) -> Operations:
        """One row per record that is a call of its own, in order: shape (n,). Names and handles are not.

        The rows are those of the batch, seen differently, unless some must be left out or changed.
        """
        if batch.kind != "cuda_call":
            return operations(0)
        rows: Operations = batch.records.view(OPERATION)
        kinds = np.ascontiguousarray(rows["kind"])
        calls = (kinds >= _FIRST_KIND) & (kinds <= _LAST_KIND)
        if not all_of(calls):
            rows, kinds = rows.compress(calls), kinds[calls]
        rows = _with_directions(rows, np.flatnonzero(kinds == _COPY))
        devices = np.flatnonzero(kinds == _DEVICE)
        return self._with_peers(rows, devices) if len(devices) else rows

    def _with_peers(self, rows: Operations, devices: npt.NDArray[np.intp]) -> Operations:
        """Mark the calls that name a peer in ``extra``: device 0 is a number like any other."""
        peers = devices[np.isin(rows["api"][devices], self._peers)]
        if len(peers):
            rows = concatenate([rows])
            rows["extra"][peers] = NAMES_PEER
        return rows


def _with_directions(rows: Operations, copies: npt.NDArray[np.intp]) -> Operations:
    """Enum cudaMemcpyKind has CopyDirection's values, but a program may pass anything."""
    absurd = copies[rows["direction"][copies] > _LAST_DIRECTION]
    if len(absurd):
        rows = concatenate([rows])  # .copy() would go field by field
        rows["direction"][absurd] = CopyDirection.UNKNOWN
    return rows
