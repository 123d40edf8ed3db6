"""Capabilities: which ones this process has, and which of them each thing that the program does needs.

The one table, :data:`NEEDS`, is what ``otelgpu check`` reports, what a session warns of, what is kept when privileges
are given up (:mod:`otelgpu.kernel.privileges.dropping`), and what docs/reference/privileges.md shows. Source:
capabilities(7), include/uapi/linux/capability.h.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from enum import IntEnum
from pathlib import Path
from typing import Final

from msgspec import Struct

from otelgpu.errors import OtelgpuError


class Capability(IntEnum):
    """Those that something here has a use for."""

    DAC_READ_SEARCH = 2
    KILL = 5
    SETPCAP = 8
    SYS_PTRACE = 19
    SYS_ADMIN = 21
    SYS_RESOURCE = 24
    SYSLOG = 34
    PERFMON = 38
    BPF = 39
    CHECKPOINT_RESTORE = 40

    def __str__(self) -> str:
        return f"CAP_{self.name}"


SPLIT_FROM_ADMIN: Final = frozenset((Capability.BPF, Capability.PERFMON, Capability.CHECKPOINT_RESTORE))
"""What CAP_SYS_ADMIN stands for as well (kernel: ``bpf_capable()``, ``perfmon_capable()`` and the like)."""

_LIST: Final = tuple(Capability)
_PARANOID: Final = Path("/proc/sys/kernel/perf_event_paranoid")
_MOST_PARANOID: Final = 2  # of Linux itself: Documentation/admin-guide/sysctl/kernel.rst


class Need(Struct, frozen=True, kw_only=True):
    """Something that wants capabilities. ``name`` is its line in ``otelgpu check``.

    ``when``: where it matters, "" for always. ``without``: what happens when one is missing. ``later``: whether
    it goes on after everything is attached, so that they must be kept.
    """

    name: str
    capabilities: frozenset[Capability]
    does: str
    without: str
    when: str = ""
    required: bool = False
    later: bool = True


LOADING: Final = Need(
    name="loading programs",
    capabilities=frozenset((Capability.BPF, Capability.PERFMON)),
    does="BPF programs and maps, probes and tracepoints, also those of libraries that are loaded late",
    without="no session begins (source inject needs neither for CUDA calls)",
    required=True,
)
OTHER_PROCESSES: Final = Need(
    name="processes of other users",
    capabilities=frozenset((Capability.SYS_PTRACE,)),
    does="what they have mapped and open (/proc/PID/exe, maps, fd, root, map_files), and names in their memory",
    without="of processes of other users, and of those with more privileges, executable, static libraries, "
    "libraries inside containers, open connections and kernels' names in memory are not seen",
    when="other users' processes, or any in a container",
)
OTHER_FILES: Final = Need(
    name="files of other users",
    capabilities=frozenset((Capability.DAC_READ_SEARCH,)),
    does="programs and libraries that only their owner may read; for another user than root, tracefs too",
    without="calls into programs and libraries that only their owner may read are not seen",
    when="files without read permission for this user, or another user than root",
)
REPLACED_FILES: Final = Need(
    name="deleted files",
    capabilities=frozenset((Capability.CHECKPOINT_RESTORE,)),
    does="libraries that were deleted, replaced or mounted over while in use (/proc/PID/map_files)",
    without="calls into libraries that were deleted or replaced since they were loaded are not seen",
    when="updates under running processes",
)
KERNEL_LOG: Final = Need(
    name="kernel log",
    capabilities=frozenset((Capability.SYSLOG,)),
    does="errors of GPUs (Xid, SXid)",
    without="errors of GPUs (Xid, SXid) are not reported",
    when="kernel.dmesg_restrict=1, fabric_interval_ms not 0",
)
HOLDING: Final = Need(
    name="holding processes",
    capabilities=frozenset((Capability.KILL,)),
    does="letting a process go on that was stopped at a mapping",
    without="a session with hold_on_load does not begin: what it stops could stay stopped",
    when="hold_on_load",
)
SIGNALLING: Final = Need(
    name="signals to a program that changed its user",
    capabilities=frozenset((Capability.KILL,)),
    does="passing SIGTERM and SIGINT on to what `run` started",
    without="the program is not reported to end when otelgpu is, once it runs as another user",
    when="run, record with a program",
)
MOUNTING: Final = Need(
    name="mounting tracefs",
    capabilities=frozenset((Capability.SYS_ADMIN,)),
    does="tracefs, where nobody has mounted it",
    without="tracefs must be mounted already (on a host it is; in a container, mount the host's)",
    when="no tracefs",
    later=False,
)
PERF_EVENTS: Final = Need(
    name="perf events",
    capabilities=frozenset((Capability.SYS_ADMIN,)),
    does="tracepoints, and before Linux 6.6 probes: they are perf events, which these kernels keep from CAP_PERFMON",
    without="no session begins, unless kernel.perf_event_paranoid is set to 2",
    when="kernel.perf_event_paranoid above 2, on kernels of Debian and Ubuntu",
    required=True,
    later=False,
)
LOCKING: Final = Need(
    name="locked memory",
    capabilities=frozenset((Capability.SYS_RESOURCE,)),
    does="the memory of maps, which counted as locked memory then",
    without="RLIMIT_MEMLOCK must be unlimited already",
    when="Linux before 5.11",
    later=False,
)
GIVING_UP: Final = Need(
    name="giving up privileges",
    capabilities=frozenset((Capability.SETPCAP,)),
    does="emptying the bounding set (drop_privileges)",
    without="the bounding set stays; no_new_privs bars the way back all the same",
    when="drop_privileges",
    later=False,
)

NEEDS: Final = (
    LOADING,
    OTHER_PROCESSES,
    OTHER_FILES,
    REPLACED_FILES,
    KERNEL_LOG,
    HOLDING,
    SIGNALLING,
    MOUNTING,
    PERF_EVENTS,
    LOCKING,
    GIVING_UP,
)
"""Everything that wants a capability, the needful first. What is not in it needs none."""

REPORTED: Final = (OTHER_PROCESSES, OTHER_FILES, REPLACED_FILES)
"""Without these a session sees less than it might, which it says when it begins; others speak for themselves."""


class Held(Struct, frozen=True, kw_only=True):
    """The sets of one thread, as bits: capabilities(7)."""

    permitted: int
    effective: int
    inheritable: int
    bounding: int
    ambient: int
    no_new_privileges: bool

    def has(self, capability: Capability) -> bool:
        """Whether it is effective; CAP_SYS_ADMIN stands for those that were split from it."""
        wanted = 1 << capability
        if capability in SPLIT_FROM_ADMIN:
            wanted |= 1 << Capability.SYS_ADMIN
        return bool(self.effective & wanted)

    def missing(self, need: Need) -> list[Capability]:
        """Those of a need that are not effective."""
        return [each for each in _LIST if each in need.capabilities and not self.has(each)]


def held(thread: Path = Path("/proc/thread-self")) -> Held:
    """What a thread has: of the calling one, or of the one whose folder of /proc is given."""
    fields = dict(line.split(":", 1) for line in (thread / "status").read_text().splitlines() if ":" in line)
    return Held(
        permitted=int(fields["CapPrm"], 16),
        effective=int(fields["CapEff"], 16),
        inheritable=int(fields["CapInh"], 16),
        bounding=int(fields["CapBnd"], 16),
        ambient=int(fields["CapAmb"], 16),
        no_new_privileges=fields["NoNewPrivs"].strip() == "1",
    )


def held_by_threads() -> Iterator[tuple[int, Held]]:
    """The same of every thread of this process, by thread id; those that end meanwhile are left out."""
    for name in os.listdir("/proc/self/task"):
        try:
            yield int(name), held(Path("/proc/self/task", name))
        except OSError:
            continue


def perf_events_are_kept(setting: Path = _PARANOID) -> bool:
    """Whether the kernel may keep perf events for CAP_SYS_ADMIN, which then nobody can open who has given that up.

    Linux itself knows levels up to 2; distributions added one for this (security/Kconfig's
    SECURITY_PERF_EVENTS_RESTRICT): 3 in Debian, 4 in Ubuntu. False where the level cannot be read.
    """
    try:
        return int(setting.read_text()) > _MOST_PARANOID
    except (OSError, ValueError):
        return False


def names(capabilities: Iterable[Capability]) -> str:
    """``CAP_BPF, CAP_PERFMON``."""
    return ", ".join(map(str, capabilities))


def require(need: Need) -> None:
    """Raises :class:`OtelgpuError` when a capability that it needs is not effective."""
    if missing := held().missing(need):
        raise OtelgpuError(
            f"{names(missing)} is missing, which {need.name} needs: {need.without}",
            hint=f"run as root, or grant {names(missing)} (docs/reference/privileges.md)",
        )
