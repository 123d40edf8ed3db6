"""What a process has mapped: ``/proc/PID/maps``.

In: the text of a maps file. Out: :class:`Mapping`. Only :func:`read_maps` and :func:`executable_mappings`
do I/O. Source: proc_pid_maps(5) and fs/proc/task_mmu.c.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from msgspec import Struct

_DELETED = " (deleted)"
# A maps file may have as many lines as vm.max_map_count (65,530 by default) lets it have mappings.
_MAX_MAPS_BYTES = 64 << 20


Inode = tuple[int, int]
"""(device as the kernel writes it, number)."""


class Mapping(Struct, frozen=True, kw_only=True):
    """One line of a maps file. Addresses, ``offset`` (into the file) in bytes; ``end`` is exclusive.

    ``path`` is as the process sees it, without the mark of a deleted file; ``""`` for anonymous memory,
    ``[vdso]``, ``[heap]`` and the like for what the kernel names. A file that was deleted and one whose
    name ends in ``" (deleted)"`` look alike; both have ``deleted``.
    """

    start: int
    end: int
    permissions: str
    offset: int
    device: tuple[int, int]
    inode: int
    path: str
    deleted: bool

    @property
    def executable(self) -> bool:
        """Whether code may run there."""
        return "x" in self.permissions

    @property
    def is_file(self) -> bool:
        """Whether a file lies behind it (also a memfd, or a deleted one)."""
        return self.inode != 0 and self.path.startswith("/")

    def file_offset(self, address: int) -> int:
        """Where in the file ``address`` lies."""
        return address - self.start + self.offset


def parse_maps(text: bytes, *, executable_only: bool = False) -> list[Mapping]:
    r"""The mappings of a maps file, in its order, which is by address. Damaged lines are skipped.

    The kernel escapes a newline in a path, and nothing else, as ``\012``.
    """
    mappings = []
    for line in text.split(b"\n"):
        fields = line.split(b" ", 5)
        if len(fields) < 5 or (executable_only and b"x" not in fields[1]):
            continue
        try:
            start, _, end = fields[0].partition(b"-")
            major, _, minor = fields[3].partition(b":")
            # The path stands behind padding, but may itself end in spaces.
            path = os.fsdecode(fields[5].lstrip(b" ").replace(b"\\012", b"\n")) if len(fields) > 5 else ""
            deleted = path.endswith(_DELETED) and path.startswith("/")
            mappings.append(
                Mapping(
                    start=int(start, 16),
                    end=int(end, 16),
                    permissions=fields[1].decode("ascii"),
                    offset=int(fields[2], 16),
                    device=(int(major, 16), int(minor, 16)),
                    inode=int(fields[4]),
                    path=path.removesuffix(_DELETED) if deleted else path,
                    deleted=deleted,
                )
            )
        except ValueError:
            continue
    return mappings


def find(mappings: Sequence[Mapping], address: int) -> Mapping | None:
    """The mapping that holds ``address``; ``mappings`` ordered by address, as :func:`parse_maps` gives them."""
    row = bisect_right(mappings, address, key=lambda mapping: mapping.start) - 1
    return mappings[row] if row >= 0 and address < mappings[row].end else None


def distinct_files(mappings: Iterable[Mapping]) -> list[Mapping]:
    """The first mapping of each file, by (device, inode), in their order."""
    files: dict[tuple[tuple[int, int], int], Mapping] = {}
    for mapping in mappings:
        if mapping.is_file:
            files.setdefault((mapping.device, mapping.inode), mapping)
    return list(files.values())


def read_maps(pid: int, *, proc: Path = Path("/proc"), executable_only: bool = False) -> list[Mapping]:
    """The mappings of a process or thread.

    Raises OSError when it is gone (FileNotFoundError, ProcessLookupError) or may not be read
    (PermissionError). A process that is exiting has none.
    """
    with open(f"{proc}/{pid}/maps", "rb") as file:
        return parse_maps(file.read(_MAX_MAPS_BYTES), executable_only=executable_only)


def executable_mappings(pid: int, *, proc: Path = Path("/proc")) -> list[Mapping]:
    """Those of :func:`read_maps` in which code may run; none when it is gone or may not be read."""
    try:
        return read_maps(pid, proc=proc, executable_only=True)
    except OSError:
        return []


def inode_of(record: np.void) -> Inode:
    """The file that a ``struct process_mapping`` or ``process_exec`` is about."""
    return int(record["device"]), int(record["inode"])


def mapped_range(record: np.void) -> tuple[int, int]:
    """The addresses of what a record of family ``process`` says was mapped: first, and after the last."""
    start = int(record["address"])
    return start, start + int(record["bytes"])


def mapped_name(record: np.void) -> str:
    """The last part of the path in a ``struct process_mapping`` (bpf/process/process.h)."""
    return bytes(record["name"]).decode(errors="surrogateescape")
