"""Whose fault it is that a thread gets no CPU: its control group's quota, others, or the profiler itself. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from msgspec import structs

from otelgpu.diagnose.stall.activities import Activity
from otelgpu.diagnose.stall.causes import CGROUP_THROTTLING, CPU_CONTENTION
from otelgpu.diagnose.stall.observations import CPU, ThreadSeen
from otelgpu.diagnose.stall.surroundings import Surroundings

THROTTLED: Final = 0.5
"""Of the time that a thread waited for a CPU, that its control group was held back: then all of it is that."""
PARTLY_THROTTLED: Final = 0.1
"""The same, from which on the longest waits are that, as many as it was held back for."""
THROTTLED_PERIODS: Final = 0.5
"""Of the periods in which its control group ran, that it spent the quota in: then no more than that could be had."""
THROTTLED_TIMES: Final = 3
"""The least number of periods in which it was."""
RIVALS: Final = 0.5
"""Of the same time, that others ran: of less, they did not keep the thread from running."""


def throttled(found: Sequence[Activity], around: Surroundings | None) -> list[Activity]:
    """Waits for a CPU are the quota's where the control group was held back for a good part of them.

    Or in a good part of its periods: where others run as well, time that it waits for them makes its quota last.
    Where others ran as well, the longest are: who has used up a quota waits for the next period (100 ms), who competes
    for a slice of a scheduler (some 3 ms for each rival).
    """
    held_ns = round((around.throttled_s or 0.0) * 1e9) if around is not None else 0
    waited_ns = round(_waited_s(found) * 1e9)
    if around is None or (around.throttled_times or 0) < THROTTLED_TIMES:
        return list(found)
    if held_ns < PARTLY_THROTTLED * waited_ns:
        return list(found)
    spends = (around.throttled_times or 0) >= THROTTLED_PERIODS * (around.quota_periods or math.inf)
    rest, chosen = waited_ns if spends or held_ns >= THROTTLED * waited_ns else held_ns, set()
    waits = (at for at, each in enumerate(found) if each.cause == CPU_CONTENTION)
    for at in sorted(waits, key=lambda at: -found[at].length_ns):
        if rest <= 0:
            break
        chosen.add(at)
        rest -= found[at].length_ns
    return [
        structs.replace(each, cause=CGROUP_THROTTLING) if at in chosen else each
        for at, each in enumerate(found)
    ]


def unjudged_contention(
    thread: ThreadSeen,
    found: Sequence[Activity],
    threads: Sequence[ThreadSeen],
    around: Surroundings | None,
) -> list[str]:
    """Why waits for a CPU are no verdict; empty where they are. Of what comes from a file nothing speaks against it."""
    if around is None:
        return []
    waited = _waited_s(found)
    if around.quota_cpus is not None and around.throttled_s is None:
        return [
            f"it waited {waited:.2g} s for a CPU, and came into a control group with a quota of "
            f"{around.quota_cpus:.3g} CPUs meanwhile: whether that or others held it back is not known; "
            "attach with -p when it is there"
        ]
    if around.others_cpu_s is None:
        return []
    begin, end = (found[0].begin_ns, found[-1].end_ns) if found else (0, 0)
    own = sum(
        row.length_ns
        for other in threads
        if other is not thread
        for row in other.of(CPU)
        if begin <= row.begin_ns < end
    )
    if around.others_cpu_s + own / 1e9 >= RIVALS * waited:
        return []
    return [
        f"it waited {waited:.2g} s for a CPU, and no other process ran for as long: that was otelgpu itself, "
        "and ends with the recording"
    ]


def _waited_s(found: Sequence[Activity]) -> float:
    return sum(each.length_ns for each in found if each.cause == CPU_CONTENTION) / 1e9
