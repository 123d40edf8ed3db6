"""Which rank a slow one is best compared with, and in which steps. Pure."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from msgspec import Struct

from otelgpu.diagnose.ranks.facts import Facts
from otelgpu.diagnose.ranks.verdicts import SLOW_HOST, SLOW_WORKER, RanksReport
from otelgpu.errors import OtelgpuError


class Comparison(Struct, frozen=True, kw_only=True):
    """Two ranks in the same steps.

    ``step_s``: what one of these takes; ``own_s``: the normal one's own time of it, and the slow one's. Medians.
    """

    slow: int
    normal: int
    first_step: int
    last_step: int
    step_s: float
    begin_s: float
    end_s: float
    own_s: tuple[float, float]


def compared(
    facts: Facts, report: RanksReport, slow: int | None, profiled: Collection[int]
) -> Comparison | None:
    """Of the ranks of which there are profiles. ``slow``: None for that of the most costly verdict; None: no rank is.

    The normal one has the slow one's role, is in no verdict, and of those the one whose own time is the median.
    Raises :class:`OtelgpuError` where one of both has no profiles.
    """
    verdicts = [each for each in report.verdicts if each.klass in (SLOW_WORKER, SLOW_HOST)]
    first, last = facts.steps[[0, -1]].tolist() if len(facts.steps) else (0, 0)
    if slow is None:
        if not verdicts:
            return None
        chosen = verdicts[0]
        slow = next((rank for rank in chosen.ranks if rank in profiled), chosen.ranks[0])
        first, last = chosen.first_step, chosen.last_step
    if slow not in profiled:
        raise OtelgpuError(f"there are no profiles of rank {slow}", hint=_HINT)
    within = (facts.steps >= first) & (facts.steps <= last)
    own_s = np.nan_to_num(np.nanmedian(facts.own.sum(axis=0)[within], axis=0))  # by rank
    at = {rank: position for position, rank in enumerate(facts.ranks.tolist())}
    if slow not in at:
        raise OtelgpuError(f"rank {slow} is not in the input", hint=f"there are {len(at)} ranks")
    accused = {rank for verdict in verdicts for rank in verdict.ranks}
    role = facts.roles[at[slow]]
    peers = [r for r in at if r != slow and r not in accused and r in profiled and facts.roles[at[r]] == role]
    if not peers:
        raise OtelgpuError(f"there are no profiles of a rank like rank {slow} that is not slow", hint=_HINT)
    peers.sort(key=lambda rank: (own_s[at[rank]], rank))
    normal = peers[(len(peers) - 1) // 2]
    return Comparison(
        slow=slow,
        normal=normal,
        first_step=first,
        last_step=last,
        step_s=float(np.median(facts.duration_s[within])),
        begin_s=float(facts.begin_s[within].min()),
        end_s=float(facts.end_s[within].max()),
        own_s=(float(own_s[at[normal]]), float(own_s[at[slow]])),
    )


_HINT = (
    "take them on each host while the job goes on, with its other data: "
    "otelgpu agent --profiles cpu,offcpu --export file:HOST.jsonl"
)
