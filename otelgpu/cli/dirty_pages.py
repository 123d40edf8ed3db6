"""Who made pages of files dirty meanwhile: the kernel counts that there and then, and writes them back later.

In: processes. Out: bytes by process, and how they grew between two readings.

Source: proc_pid_io(5), ``write_bytes``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from otelgpu.diagnose.stall.surroundings import Writer
from otelgpu.processes.kernel_files import kernel_text
from otelgpu.processes.listing import CpuUse


class DirtyPages(Struct, frozen=True, kw_only=True):
    """Bytes that a process has made dirty so far. ``started_ns`` tells it from another that has its number later."""

    name: str
    started_ns: int
    size: int


def dirty_pages(uses: Mapping[int, CpuUse], *, proc: Path) -> dict[int, DirtyPages]:
    """Of those of the processes that may be looked at."""
    return {
        pid: DirtyPages(name=use.comm, started_ns=use.start_time_ns, size=size)
        for pid, use in uses.items()
        if (size := _write_bytes(pid, proc)) is not None
    }


def made_dirty(before: Mapping[int, DirtyPages], after: Mapping[int, DirtyPages]) -> list[Writer]:
    """Between two readings, the most first."""
    found = []
    for pid, now in after.items():
        known = before.get(pid)
        was = known.size if known is not None and known.started_ns == now.started_ns else 0
        if now.size > was:
            found.append(Writer(pid=pid, name=now.name, dirtied_bytes=now.size - was))
    return sorted(found, key=lambda each: -each.dirtied_bytes)


def _write_bytes(pid: int, proc: Path) -> int | None:
    """Counted as pages are made dirty, whoever writes them back. None: not told, or not counted."""
    for line in kernel_text(proc / str(pid) / "io").splitlines():
        key, _, value = line.partition(":")
        if key == "write_bytes" and value.strip().isdecimal():
            return int(value)
    return None
