"""What the kernel wrote to disks for a control group, and who is in it: at one time.

What is written back for it (:mod:`otelgpu.processes.charged_groups`) is in ``io.stat`` of the group beside what its
threads asked for themselves.

Source: Documentation/admin-guide/cgroup-v2.rst, "io.stat".
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Final

from msgspec import Struct

from otelgpu.processes.charged_groups import charged_folder, own_group
from otelgpu.processes.kernel_files import kernel_text

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
    folder = charged_folder(pid, proc=proc, cgroups=cgroups)
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
            each
            for each in others
            if (path := own_group(each, proc=proc)) is not None and path.is_relative_to(group)
        ),
    )


def _device(numbers: str, block: Path) -> str:
    with suppress(OSError):
        return os.path.basename(os.readlink(block / numbers))
    return numbers
