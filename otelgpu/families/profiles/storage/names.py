"""Names that samples of files and devices come with: kept by number until they are asked for. Pure.

In: batches of ``struct profile_file`` and ``struct profile_block`` (``bpf/profile/profile.h``). Out: for the ``other``
of such a sample the path of the file, as its process sees it, or the name of the device. Numbers of files are of their
inodes and names (56 bits of a hash); of devices the kernel's ``dev_t``.

Example: a sample whose ``other`` is ``0x1234502`` is of call 2 on file 0x12345, whose record held the names
``checkpoint.bin``, ``run`` and ``srv``, and that they are all: ``/srv/run/checkpoint.bin``.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import Any, Final

import numpy as np

from otelgpu.model.files import CUT, DELETED
from otelgpu.model.inputs import Batch
from otelgpu.model.samples import FILE_SHIFT, GROUP_SHIFT, OPERATION_SHIFT, SampleKind

NAMES: Final = 4096
"""Files, and devices, whose names are kept; of more, those are forgotten that were named least lately."""

_DEVICE: Final = (1 << OPERATION_SHIFT) - 1


class PathEnd(IntEnum):
    """How a record's path ends, away from the file: ``enum path_end`` of ``bpf/lib/file_paths.h``."""

    WHOLE = 0
    CUT = 1
    DETACHED = 2
    UNREADABLE = 3


class StorageNames:
    """One session's."""

    def __init__(self) -> None:
        self._files: dict[int, str] = {}
        self._devices: dict[int, str] = {}
        self._groups: dict[int, str] = {}

    def see(self, batch: Batch) -> None:
        """Learn the names of a batch; of other batches nothing."""
        if batch.kind == "profile_file":
            for number, record in _first_of_each(batch):
                _keep(self._files, number >> FILE_SHIFT, _path(record))
        elif batch.kind == "profile_block":
            for number, record in _first_of_each(batch):
                device = record["device"].item().partition(b"\0")[0]
                _keep(self._devices, number & _DEVICE, device.decode(errors="replace"))
                if group := number >> GROUP_SHIFT:
                    name = record["group"].item().partition(b"\0")[0]
                    _keep(self._groups, group, name.decode(errors="replace"))

    def name(self, kind: int, number: int) -> str:
        """Path of the file, or name of the device, of a sample of ``kind`` with that ``other``; "": not known.

        With no device in it: name of the control group.
        """
        if kind == SampleKind.FILE:
            return self._files.get(number >> FILE_SHIFT, "")
        if kind == SampleKind.BLOCK:
            device = number & _DEVICE
            return self._devices.get(device, "") if device else self._groups.get(number >> GROUP_SHIFT, "")
        return ""


def last_part(path: str) -> str:
    """The file's own name.

    >>> last_part("/srv/run/checkpoint.bin (deleted)")
    'checkpoint.bin'
    """
    return path.removesuffix(DELETED).rpartition("/")[2]


def _first_of_each(batch: Batch) -> Iterator[tuple[int, Any]]:
    """``other``, and the first record that has it."""
    numbers, first = np.unique(batch.records["other"], return_index=True)
    yield from zip(numbers.tolist(), batch.records[first], strict=True)


def _path(record: Any) -> str:
    """Of a ``struct profile_file``; names may hold any bytes but NUL and a slash."""
    held = record["path"].tobytes().partition(b"\0\0")[0].rstrip(b"\0")
    names = [name.decode(errors="replace") for name in reversed(held.split(b"\0"))]
    end = int(record["path_end"])
    if end == PathEnd.WHOLE:
        names.insert(0, "")
    elif end != PathEnd.DETACHED:
        names.insert(0, CUT)
    return "/".join(names) + (DELETED if record["deleted"] else "")


def _keep(table: dict[int, str], number: int, text: str) -> None:
    table.pop(number, None)
    table[number] = text
    while len(table) > NAMES:
        del table[next(iter(table))]
