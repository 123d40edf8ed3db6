"""What the kernel wrote to disks for a control group, and who is in it: at one time.

Writeback is charged to the group whose memory the pages were (cgroup writeback: control groups v2 with the controllers
``io`` and ``memory``; ext4, XFS, btrfs and F2FS), so that ``io.stat`` of the group has it beside what its threads asked
for themselves. Where ``memory`` ends further up than ``io`` it is charged there. The root's file is of the whole
machine, and charges nobody.

Source: Documentation/admin-guide/cgroup-v2.rst, "Writeback" and "io.stat"; mm/backing-dev.c (cgwb_create).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Final

from msgspec import Struct

from otelgpu.cli.kernel_files import kernel_text

_LINE: Final = re.compile(r"(\d+:\d+) (?:\w+=\d+ )*?wbytes=(\d+)(?: .*)?", re.ASCII)


class ChargedWrites(Struct, frozen=True, kw_only=True):
    """``written``: bytes by device since it was first used by the group or a group below it.

    ``members``: those of the processes that were asked for that are in the group or below it.
    """

    group: str
    written: dict[str, int]
    members: frozenset[int]


def charged_writes(
    pid: int, others: Iterable[int], *, proc: Path, cgroups: Path, block: Path = Path("/sys/dev/block")
) -> ChargedWrites | None:
    """Of the group that is charged for the pages that ``pid`` makes dirty; None where none is, or it is not known."""
    if (own := _path(pid, proc)) is None or not (cgroups / "cgroup.controllers").exists():
        return None
    folder = _nearest(
        _nearest(cgroups.joinpath(*own.parts[1:]), "memory.current", cgroups), "io.stat", cgroups
    )
    if folder is None:
        return None
    group = PurePosixPath("/", folder.relative_to(cgroups))
    return ChargedWrites(
        group=str(group),
        written={
            _device(match[1], block): int(match[2])
            for line in kernel_text(folder / "io.stat").splitlines()
            if (match := _LINE.fullmatch(line.strip())) is not None
        },
        members=frozenset(
            each for each in others if (path := _path(each, proc)) is not None and path.is_relative_to(group)
        ),
    )


def _nearest(folder: Path | None, file: str, cgroups: Path) -> Path | None:
    """Of a group and those above it the first that has the file of a controller; the root has no ``cgroup.type``."""
    for group in (folder, *folder.parents) if folder is not None else ():
        if not group.is_relative_to(cgroups) or not (group / "cgroup.type").exists():
            return None
        if (group / file).exists():
            return group
    return None


def _path(pid: int, proc: Path) -> PurePosixPath | None:
    """Of its group of version 2, as this process sees it; None of one that lies outside of what it sees."""
    for line in kernel_text(proc / str(pid) / "cgroup").splitlines():
        if line.startswith("0::/"):
            path = PurePosixPath(line[3:])
            return None if ".." in path.parts else path
    return None


def _device(numbers: str, block: Path) -> str:
    with suppress(OSError):
        return os.path.basename(os.readlink(block / numbers))
    return numbers
