"""What the kernel counted beside the profile: throttling, faults, who else used the CPUs. Of live processes."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct


class Neighbour(Struct, frozen=True, kw_only=True):
    """Another process, and its CPU time meanwhile."""

    pid: int
    name: str
    cpu_s: float


class Surroundings(Struct, frozen=True, kw_only=True):
    """Of one process, between the beginning and the end of a profile. None: not known.

    ``throttled_s`` and ``throttled_times``: of its control group (``cpu.stat``), ``quota_cpus``: what that may use.
    ``major_faults``, ``minor_faults``: ``/proc/PID/stat``. ``others_cpu_s``: CPU time of all processes but those that
    were recorded, and otelgpu's own.
    """

    throttled_s: float | None = None
    throttled_times: int | None = None
    quota_cpus: float | None = None
    major_faults: int | None = None
    minor_faults: int | None = None
    others_cpu_s: float | None = None
    neighbours: Sequence[Neighbour] = ()
