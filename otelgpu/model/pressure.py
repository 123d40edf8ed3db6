"""What kept a process from running, as the kernel counts it."""

from __future__ import annotations

from msgspec import Struct


class ProcessPressed(Struct, frozen=True, kw_only=True):
    """What grew from ``since_ns`` to ``time_ns`` (CLOCK_MONOTONIC).

    ``throttled_ns``: in which the cgroups that the process is in, itself and those above, had spent their quota of CPU
    time. ``major_faults``: of the process, page faults that waited for a disk, swap's among them.
    """

    tgid: int
    since_ns: int
    time_ns: int
    throttled_ns: int
    major_faults: int
