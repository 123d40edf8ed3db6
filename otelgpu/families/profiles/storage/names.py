"""Names that samples of files and devices come with: kept by number until they are asked for. Pure.

In: batches of ``struct profile_file`` and ``struct profile_block`` (``bpf/profile/profile.h``). Out: the name for the
``other`` of such a sample. Numbers of files are of their inodes (56 bits of a hash); of devices the kernel's ``dev_t``.

Example: a sample whose ``other`` is ``0x1234502`` is of call 2 on file 0x12345, which the same record called
``checkpoint.bin``.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from otelgpu.model.inputs import Batch
from otelgpu.model.samples import FILE_SHIFT, OPERATION_SHIFT, SampleKind

NAMES: Final = 4096
"""Files, and devices, whose names are kept; of more, those are forgotten that were named least lately."""

_DEVICE: Final = (1 << OPERATION_SHIFT) - 1
_FIELDS: Final = {"profile_file": "file", "profile_block": "device"}


class StorageNames:
    """One session's."""

    def __init__(self) -> None:
        self._files: dict[int, str] = {}
        self._devices: dict[int, str] = {}

    def see(self, batch: Batch) -> None:
        """Learn the names of a batch; of other batches nothing."""
        field = _FIELDS.get(batch.kind)
        if field is None:
            return
        numbers, first = np.unique(batch.records["other"], return_index=True)
        named = batch.records[field][first]
        texts = [bytes(name).partition(b"\0")[0].decode(errors="replace") for name in named]
        for number, text in zip(numbers.tolist(), texts, strict=True):
            if field == "file":
                _keep(self._files, number >> FILE_SHIFT, text)
            else:
                _keep(self._devices, number & _DEVICE, text)

    def name(self, kind: int, number: int) -> str:
        """Of the file or device that a sample of ``kind`` with that ``other`` is of; "" where it is not known."""
        if kind == SampleKind.FILE:
            return self._files.get(number >> FILE_SHIFT, "")
        if kind == SampleKind.BLOCK:
            return self._devices.get(number & _DEVICE, "")
        return ""


def _keep(table: dict[int, str], number: int, text: str) -> None:
    table.pop(number, None)
    table[number] = text
    while len(table) > NAMES:
        del table[next(iter(table))]
