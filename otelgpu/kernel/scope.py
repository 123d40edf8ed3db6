"""Which processes the programs record, as the maps of the process family have it."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable, Set
from pathlib import Path
from typing import Final

from msgspec import Struct

from otelgpu.errors import OtelgpuError
from otelgpu.kernel import features
from otelgpu.kernel.libbpf import BpfError
from otelgpu.kernel.loader import LoadedFamily

_PROCESSES: Final = "scope_processes"


class Scope(Struct, frozen=True, kw_only=True):
    """Whose events are wanted."""

    everything: bool = False
    processes: tuple[int, ...] = ()
    follow_children: bool = True
    newborn: bool = False  # they have not begun to run: no call of theirs is under way
    cgroups: tuple[Path, ...] = ()  # directories of cgroup v2
    admits: Callable[[int], bool] | None = None  # whether a process that starts is to be observed too

    def constants(self) -> dict[str, int]:
        """Of the BPF programs (bpf/lib/scope.h), by name."""
        return {
            "scope_all": int(self.everything),
            "scope_agent": os.getpid(),
            "scope_cgroup_count": len(self.cgroups),
            "scope_pid_namespace": features.pid_namespace(),
            "scope_follow": int(self.follow_children),
            "calls_before": int(not self.newborn),
        }


def put_process(process: LoadedFamily, tgid: int) -> bool:
    """Bring a process into scope; False when there is no room."""
    try:
        process.map(_PROCESSES).put(struct.pack("<I", tgid), b"\1")
    except BpfError:
        return False
    return True


def is_listed(process: LoadedFamily, tgid: int) -> bool:
    """Whether a process is in scope by its number."""
    return process.map(_PROCESSES).get(struct.pack("<I", tgid)) is not None


def keep_only(process: LoadedFamily, wanted: Set[int]) -> Set[int]:
    """Take all other processes out of scope; those of ``wanted`` that are yet to be brought into it."""
    scoped = process.map(_PROCESSES)
    before = {struct.unpack("<I", key)[0] for key in scoped.list_keys()}
    for tgid in before - wanted:
        scoped.delete(struct.pack("<I", tgid))
    return wanted - before


def put_cgroups(process: LoadedFamily, directories: Iterable[Path]) -> None:
    """Bring what is in these of cgroup v2 into scope. Raises :class:`OtelgpuError` where one is none."""
    for slot, directory in enumerate(directories):
        _put_cgroup(process, slot, directory)


def _put_cgroup(process: LoadedFamily, slot: int, directory: Path) -> None:
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise OtelgpuError(f"cannot open cgroup {directory}: {error.strerror}") from error
    try:
        process.map("scope_cgroups").put(struct.pack("<I", slot), struct.pack("<i", descriptor))
    except BpfError as error:
        raise OtelgpuError(
            f"{directory} is not a cgroup v2 directory: {error.message}",
            "give a directory of the unified hierarchy",
        ) from error
    finally:
        os.close(descriptor)
