"""The control group that the kernel charges for what it writes back of a process' pages.

That is done with control groups v2 and the controllers ``io`` and ``memory``, by ext4, XFS, btrfs and F2FS. Where
``memory`` ends further up than ``io`` it is charged there. The root stands for the whole machine, and charges nobody.

Source: Documentation/admin-guide/cgroup-v2.rst, "Writeback"; mm/backing-dev.c (cgwb_create).
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Final

from otelgpu.processes.kernel_files import kernel_text

CGROUPS: Final = Path("/sys/fs/cgroup")


def charged_folder(pid: int, *, proc: Path = Path("/proc"), cgroups: Path = CGROUPS) -> Path | None:
    """Of a group that pages of ``pid`` are charged to; None where none is, or it is not known."""
    if (own := own_group(pid, proc=proc)) is None or not (cgroups / "cgroup.controllers").exists():
        return None
    folder = _nearest(cgroups.joinpath(*own.parts[1:]), "memory.current", cgroups)
    return _nearest(folder, "io.stat", cgroups)


def own_group(pid: int, *, proc: Path = Path("/proc")) -> PurePosixPath | None:
    """Of its group of version 2, as this process sees it; None of one that lies outside of what it sees."""
    for line in kernel_text(proc / str(pid) / "cgroup").splitlines():
        if line.startswith("0::/"):
            path = PurePosixPath(line[3:])
            return None if ".." in path.parts else path
    return None


def _nearest(folder: Path | None, file: str, cgroups: Path) -> Path | None:
    """Of a group and those above it the first that has the file of a controller; the root has no ``cgroup.type``."""
    for group in (folder, *folder.parents) if folder is not None else ():
        if not group.is_relative_to(cgroups) or not (group / "cgroup.type").exists():
            return None
        if (group / file).exists():
            return group
    return None
