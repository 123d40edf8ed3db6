"""``struct hip_call`` records → operations. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from otelgpu.elf.btf import Btf
from otelgpu.engine.call_layout import check_layout
from otelgpu.engine.contract import ContextStep
from otelgpu.model.inputs import Batch
from otelgpu.model.operations import OPERATION, Operations, operations

_PREFIX: Final = "API_"
_NO_FUNCTION: Final = frozenset(("API_NONE", "API_COUNT"))

# Field of struct hip_call → column that must lie at the same place.
_SAME_PLACE: Final[Mapping[str, str]] = {
    "object": "handle",
    "function": "function",
    "other": "other",
    "bytes": "size_bytes",
    "shared_bytes": "shared_bytes",
    "stream": "stream",
    "caller": "caller",
    "detail": "detail",
    "memory": "memory",
    "grid": "grid",
    "block": "block",
    "status": "status",
    "api": "api",
    "device": "device",
}


class HipDecoder:
    """Decodes batches of family ``hip``, whose records are laid out as operations.

    Raises BtfError where a capture's records are laid out otherwise.
    """

    def __init__(self, btf: Btf) -> None:
        self.apis: Mapping[int, str] = {
            number: name.removeprefix(_PREFIX)
            for name, number in btf.enumerators("hip_api").items()
            if name not in _NO_FUNCTION
        }
        self.context_steps: Mapping[int, ContextStep] = {}
        check_layout("hip_call", btf.dtype("hip_call"), _SAME_PLACE)

    def decode(self, batch: Batch) -> Operations:
        """One row per record, in order: shape (n,); those of the batch, seen differently."""
        return batch.records.view(OPERATION) if batch.kind == "hip_call" else operations(0)
