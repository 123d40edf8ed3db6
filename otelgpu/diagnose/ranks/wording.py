"""What several rules say in the same way: places, costs, and how sure a verdict is. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from otelgpu.diagnose.ranks.facts import F64, Codes, Facts, Flags
from otelgpu.diagnose.ranks.verdicts import Cost


def cost_of(facts: Facts, saved_s: F64, first: int, last: int) -> Cost:
    """``first`` and ``last``: indices of steps, both within."""
    window = slice(first, last + 1)
    took = np.nansum(facts.duration_s[window])
    total = float(saved_s[window].sum())
    return Cost(
        seconds_per_step=total / (last + 1 - first),
        share=total / max(float(took), 1e-12),
        gpu_hours=total * len(facts.ranks) / 3600,
    )


def extent(flags: Flags) -> tuple[int, int]:
    """The first and the last step that is flagged."""
    found = np.flatnonzero(flags)
    return int(found[0]), int(found[-1])


def places(facts: Facts, ranks: Iterable[int] | Codes) -> tuple[list[int], list[str], str]:
    """Global ranks, their hosts, and their role where it is the same."""
    which = sorted(int(rank) for rank in ranks)
    roles = {facts.roles[rank] for rank in which}
    hosts = dict.fromkeys(facts.hosts[rank] for rank in which if facts.hosts[rank])
    return [int(facts.ranks[rank]) for rank in which], list(hosts), roles.pop() if len(roles) == 1 else ""


def numbered(ranks: Iterable[int], most: int = 16) -> str:
    """``rank 3``; ``ranks 0–7, 12``."""
    found = sorted(ranks)
    parts: list[str] = []
    begin = 0
    for place in range(1, len(found) + 1):
        if place == len(found) or found[place] != found[place - 1] + 1:
            first, last = found[begin], found[place - 1]
            parts.append(
                str(first) if first == last else f"{first}–{last}" if last > first + 1 else f"{first}, {last}"
            )
            begin = place
    shown = ", ".join(parts[:most]) + (", …" if len(parts) > most else "")
    return f"rank {shown}" if len(found) == 1 else f"ranks {shown}"


def milliseconds(seconds: float) -> str:
    """``12.3 ms``; ``1.24 s``."""
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"
