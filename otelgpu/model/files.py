"""Calls that read, wrote or synced a file and took long enough to be reported."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final

from msgspec import Struct

from otelgpu.model.operations import Operations

CUT: Final = "…"
"""At the beginning of a path: in place of the directories nearest to the root, where they are more than are kept."""

DELETED: Final = " (deleted)"
"""Behind the path of a file that has lost its name, as the kernel writes it in ``/proc/PID/fd``."""


class FileCall(IntEnum):
    """What was called: ``enum file_api`` of ``bpf/file/file.h``, and ``api`` of its operations."""

    READ = 1
    WRITE = 2
    SYNC = 3


class FileCalls(Struct, frozen=True, kw_only=True):
    """``rows``: (n,) of kind FILE, whose ``handle`` is the file's. ``names``: handle → the last part of its path."""

    rows: Operations
    names: Mapping[int, str]
