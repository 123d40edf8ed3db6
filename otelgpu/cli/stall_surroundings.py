"""What the kernel counts of a process and of all others, read at the beginning and at the end of a recording.

Source: proc_pid_stat(5), proc_pid_io(5), cgroups(7); ``cpu.stat`` and ``cpu.max`` (v2), ``cpu.cfs_quota_us`` (v1). A
file that cannot be read says nothing: each of these is evidence beside what was recorded, and no verdict hangs on it.
"""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath
from typing import Final

from msgspec import Struct, structs

from otelgpu.cli.cgroup_writeback import ChargedWrites, charged_writes
from otelgpu.cli.dirty_pages import DirtyPages, dirty_pages, made_dirty
from otelgpu.diagnose.stall.surroundings import GroupWrites, Neighbour, Surroundings, Writer
from otelgpu.processes.kernel_files import kernel_text
from otelgpu.processes.listing import CpuUse, cpu_use, descendants, list_processes

MOST_NEIGHBOURS: Final = 5
LEAST_CPU_S: Final = 0.1
_CGROUPS: Final = Path("/sys/fs/cgroup")


class Reading(Struct, frozen=True, kw_only=True):
    """At one time. ``throttled``: times, of so many periods, and seconds; ``faults``: minor and major; None: not known.

    ``dirtied``: by process, those of the others too; ``charged``: what was written back for its control group.
    """

    group: Path | None
    throttled: tuple[int, int, float] | None
    quota_cpus: float | None
    faults: tuple[int, int] | None
    others: dict[int, CpuUse]
    dirtied: dict[int, DirtyPages]
    charged: ChargedWrites | None = None


def read(pid: int, *, proc: Path = Path("/proc"), cgroups: Path = _CGROUPS) -> Reading:
    """Of a process; of one that is gone there is little."""
    uses = {each: use for each in list_processes(proc=proc) if (use := cpu_use(each, proc=proc)) is not None}
    dirtied = dirty_pages(uses, proc=proc)
    writers = [each for each, pages in dirtied.items() if pages.size and each != pid]
    return structs.replace(
        read_own(pid, proc=proc, cgroups=cgroups),
        others={number: use for number, use in uses.items() if number != pid},
        dirtied=dirtied,
        charged=charged_writes(pid, writers, proc=proc, cgroups=cgroups),
    )


def read_own(pid: int, *, proc: Path = Path("/proc"), cgroups: Path = _CGROUPS) -> Reading:
    """The same, without what others do: a few small files."""
    folder = _tightest(_cpu_group(pid, proc, cgroups), cgroups)
    return Reading(
        group=folder,
        throttled=_throttled(folder),
        quota_cpus=_quota(folder),
        faults=_faults(pid, proc),
        others={},
        dirtied={},
    )


def between(
    before: Reading, after: Reading, mine: frozenset[int] = frozenset(), *, pid: int = 0
) -> Surroundings:
    """What was counted meanwhile. ``mine``: processes that are no neighbours, but part of what was recorded.

    ``pid``: of the process that was read.
    """
    times: int | None = None
    periods: int | None = None
    held_s: float | None = None
    if before.throttled is not None and after.throttled is not None and before.group == after.group:
        times = after.throttled[0] - before.throttled[0]
        periods = after.throttled[1] - before.throttled[1]
        held_s = after.throttled[2] - before.throttled[2]
    faults = (
        (after.faults[0] - before.faults[0], after.faults[1] - before.faults[1])
        if before.faults is not None and after.faults is not None
        else (None, None)
    )
    used, others_s, own = [], 0.0, {os.getpid(), *descendants(os.getpid())} - mine
    for number, use in after.others.items():
        known = before.others.get(number)
        is_same = known is not None and known.start_time_ns == use.start_time_ns
        seconds = use.cpu_s - (known.cpu_s if known is not None and is_same else 0.0)
        if number in mine:
            continue
        others_s += 0.0 if number in own else seconds
        if seconds >= LEAST_CPU_S:
            name = "otelgpu itself" if number in own else use.comm
            used.append(Neighbour(pid=number, name=name, cpu_s=round(seconds, 3)))
    writers = [each for each in made_dirty(before.dirtied, after.dirtied) if each.pid not in mine | {pid}]
    return Surroundings(
        throttled_times=times,
        quota_periods=periods,
        throttled_s=held_s,
        quota_cpus=after.quota_cpus if after.quota_cpus is not None else before.quota_cpus,
        minor_faults=faults[0],
        major_faults=faults[1],
        others_cpu_s=others_s,
        neighbours=sorted(used, key=lambda each: -each.cpu_s)[:MOST_NEIGHBOURS],
        dirtied_bytes=_more(before.dirtied.get(pid), after.dirtied.get(pid)),
        others_dirtied_bytes=sum(each.dirtied_bytes for each in writers),
        writers=writers[:MOST_NEIGHBOURS],
        group_writes=_group_writes(before.charged, after.charged, writers),
    )


def _group_writes(
    before: ChargedWrites | None, after: ChargedWrites | None, writers: list[Writer]
) -> GroupWrites | None:
    """``writers``: all others that made pages dirty."""
    if before is None or after is None or before.group != after.group:
        return None
    grown = {device: size - before.written.get(device, 0) for device, size in after.written.items()}
    return GroupWrites(
        group=after.group,
        bytes_by_device={device: size for device, size in grown.items() if size > 0},
        others_dirtied_bytes=sum(each.dirtied_bytes for each in writers if each.pid in after.members),
    )


def _more(before: DirtyPages | None, after: DirtyPages | None) -> int | None:
    return None if before is None or after is None or after.size < before.size else after.size - before.size


def _cpu_group(pid: int, proc: Path, cgroups: Path) -> Path | None:
    """The folder of the control group that has a CPU quota for the process: v2, or the controller ``cpu`` of v1."""
    for line in kernel_text(proc / str(pid) / "cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        parts = PurePosixPath(path).parts[1:]
        if ".." in parts:
            continue
        if number == "0" and (cgroups / "cgroup.controllers").exists():
            return cgroups.joinpath(*parts)
        if "cpu" in controllers.split(","):
            for name in ("cpu", "cpu,cpuacct"):
                if (cgroups / name).is_dir():
                    return cgroups.joinpath(name, *parts)
    return None


def _tightest(folder: Path | None, cgroups: Path) -> Path | None:
    """Of a group and those above it that which has the smallest quota: it holds all below back, as a pod's does."""
    if folder is None:
        return None
    quotas = {
        group: quota
        for group in (folder, *folder.parents)
        if group.is_relative_to(cgroups) and (quota := _quota(group)) is not None
    }
    return min(quotas, key=lambda group: quotas[group], default=folder)


def _throttled(folder: Path | None) -> tuple[int, int, float] | None:
    if folder is None:
        return None
    fields = dict(
        line.split() for line in kernel_text(folder / "cpu.stat").splitlines() if len(line.split()) == 2
    )
    times, periods = (fields.get(key, "") for key in ("nr_throttled", "nr_periods"))
    micro, nano = (fields.get(key, "") for key in ("throttled_usec", "throttled_time"))
    if not times.isdecimal() or not periods.isdecimal() or not (micro.isdecimal() or nano.isdecimal()):
        return None
    return int(times), int(periods), int(micro) / 1e6 if micro.isdecimal() else int(nano) / 1e9


def _quota(folder: Path | None) -> float | None:
    if folder is None:
        return None
    v2 = kernel_text(folder / "cpu.max").split()
    words = v2 or [kernel_text(folder / name).strip() for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")]
    if len(words) != 2 or not all(word.isdecimal() for word in words) or not int(words[1]):
        return None  # "max", or -1: none
    return int(words[0]) / int(words[1])


def _faults(pid: int, proc: Path) -> tuple[int, int] | None:
    fields = kernel_text(proc / str(pid) / "stat").rpartition(")")[2].split()
    if len(fields) < 10 or not fields[7].isdecimal() or not fields[9].isdecimal():
        return None
    return int(fields[7]), int(fields[9])
