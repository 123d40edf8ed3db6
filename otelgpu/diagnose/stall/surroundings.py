"""What the kernel counted beside the profile: throttling, faults, who else used the CPUs. Of live processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct


class Neighbour(Struct, frozen=True, kw_only=True):
    """Another process, and its CPU time meanwhile."""

    pid: int
    name: str
    cpu_s: float


class Writer(Struct, frozen=True, kw_only=True):
    """Another process, and how much of the page cache it made dirty meanwhile."""

    pid: int
    name: str
    dirtied_bytes: int


class GroupWrites(Struct, frozen=True, kw_only=True):
    """What the kernel wrote to disks for a control group meanwhile: what it writes back for it, and its own requests.

    ``bytes_by_device``: of a stack of devices each has it once. ``others_dirtied_bytes``: of the pages that were made
    dirty in the group meanwhile, those of other processes.
    """

    group: str
    bytes_by_device: Mapping[str, int]
    others_dirtied_bytes: int = 0


class SocketWait(Struct, frozen=True, kw_only=True):
    """A peer that a thread waited for: in ``looks`` of the ``all_looks`` at which it stood in a call on a socket.

    ``pid`` 0: no process of this machine is known to have the other end; ``elsewhere``: it is in another network
    namespace.
    """

    tid: int
    looks: int
    all_looks: int
    address: str
    pid: int = 0
    name: str = ""
    elsewhere: bool = False


class Surroundings(Struct, frozen=True, kw_only=True):
    """Of one process, between the beginning and the end of a profile. None: not known.

    ``throttled_s`` and ``throttled_times``: of its control group (``cpu.stat``), in ``quota_periods`` in which it ran;
    ``quota_cpus``: what that may use.
    ``major_faults``, ``minor_faults``: ``/proc/PID/stat``. ``others_cpu_s``: CPU time of all processes but those that
    were recorded, and otelgpu's own. ``dirtied_bytes``: pages of files that the process made dirty, which the kernel
    counts there and then (``write_bytes`` of ``/proc/PID/io``) and writes back later; ``others_dirtied_bytes``: the
    same of all other processes that still run and may be looked at, ``writers``: those of most.
    ``group_writes``: None where the kernel charges no control group of the process for what it writes back.
    ``socket_waits``: of TCP connections.
    """

    throttled_s: float | None = None
    throttled_times: int | None = None
    quota_periods: int | None = None
    quota_cpus: float | None = None
    major_faults: int | None = None
    minor_faults: int | None = None
    others_cpu_s: float | None = None
    neighbours: Sequence[Neighbour] = ()
    dirtied_bytes: int | None = None
    others_dirtied_bytes: int = 0
    writers: Sequence[Writer] = ()
    group_writes: GroupWrites | None = None
    socket_waits: Sequence[SocketWait] = ()
