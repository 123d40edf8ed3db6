"""All ranks at once take longer than before, since a step. Pure."""

from __future__ import annotations

from typing import Final

import numpy as np

from otelgpu.diagnose.ranks.facts import F64, OWN, Facts
from otelgpu.diagnose.ranks.peers import (
    LEAST_S,
    LEAST_SIDE,
    Compared,
    deviation,
    median,
    running_median,
    split_of,
)
from otelgpu.diagnose.ranks.replay import Replay
from otelgpu.diagnose.ranks.verdicts import GLOBAL_SLOWDOWN, MIXED, Evidence, RankVerdict
from otelgpu.diagnose.ranks.wording import cost_of, milliseconds, places
from otelgpu.diagnose.ranks.workers import COVERED, LEAST_RUN_SHARE, LEAST_SHARE

LEAST_RELATIVE: Final = float(np.log(1.03))
"""Of own time, over that before."""
DEVIATIONS: Final = 6.0
"""Of a step from its neighbours."""
EVERYONE: Final = 0.9
"""Share of the ranks that became slower with it."""
SHARPER: Final = 0.5
"""The rest around two levels, in that around a straight line: a job that slows down little by little may have longer
sequences, and says no step since when."""
WARM: Final = 1
"""First steps that are not compared: kernels are compiled then."""

NEXT: Final = {
    "compute": "compare clocks, power caps and temperatures with those before that step (nvidia-smi -q), and what was "
    "deployed then",
    "file": "look at the shared file system since that step: its servers, other jobs on it, a checkpoint",
    "input": "look at the shared storage and the data service since that step",
    "host": "look at what else has been running on the hosts since that step",
    "copy": "compare what is copied in a step with before, and the hosts' memory bandwidth",
    MIXED: "look at what changed at that step: clocks, storage, configuration",
}


def global_slowdown(facts: Facts, compared: Compared, replay: Replay) -> tuple[list[RankVerdict], list[str]]:
    """One verdict or none, and what cannot be told."""
    own = facts.own[:, WARM:]
    if own.shape[1] < 2 * LEAST_SIDE:
        return [], []
    logs = np.log(np.maximum(own.sum(axis=0), LEAST_S))
    changes = logs - median(logs, 0)
    if compared.by_bytes:
        changes = changes - _longer_batches(facts)[WARM:]
    common = median(changes, 1)
    first = _change(common)
    if first is None:
        return [], []
    before, after = common[:first], common[first:]
    rise = float(np.median(after) - np.median(before))
    noise = float(deviation(common - running_median(common), 0))
    slower = median(changes[first:], 0) - median(changes[:first], 0) > rise / 2
    if rise < max(LEAST_RELATIVE, DEVIATIONS * noise) or slower.mean() < EVERYONE:
        return [], []
    if not _is_sharp(common, first):
        return [], [
            f"own time grew by {np.expm1(rise):.0%} on all ranks, little by little: longer sequences or slower "
            "machines, which only the bytes of the batches could tell"
        ]
    return _verdict(facts, replay, first + WARM, rise), []


def _longer_batches(facts: Facts) -> F64:
    sizes = np.log(np.maximum(facts.moved, 1.0))
    return np.asarray(sizes - median(sizes, 0))


def _change(values: F64) -> int | None:
    """Where two levels fit best, if the second one is higher."""
    place = split_of(values)
    return place if values[place:].mean() > values[:place].mean() else None


def _is_sharp(values: F64, first: int) -> bool:
    levels = np.where(np.arange(len(values)) < first, np.median(values[:first]), np.median(values[first:]))
    steps = np.arange(len(values))
    line = np.polyval(np.polyfit(steps, values, 1), steps)
    return bool(((values - levels) ** 2).sum() < SHARPER * ((values - line) ** 2).sum())


def _verdict(facts: Facts, replay: Replay, first: int, rise: float) -> list[RankVerdict]:
    before, after = (
        np.nanmedian(facts.own[:, part], axis=1) for part in (slice(WARM, first), slice(first, None))
    )
    more = np.maximum(np.median(after - before, axis=1), 0.0)
    cause = OWN[int(more.argmax())] if more.max() >= COVERED * more.sum() else MIXED
    mended = facts.own.copy()
    mended[:, first:] *= np.minimum(1.0, (before + LEAST_S) / (after + LEAST_S))[:, None, :]
    saved = replay.saved_s(own=mended)
    last = len(facts.steps) - 1
    cost = cost_of(facts, saved, first, last)
    if cost.share < LEAST_SHARE or replay.share(saved) < LEAST_RUN_SHARE:
        return []
    ranks, hosts, _ = places(facts, range(len(facts.ranks)))
    kinds = [OWN.index(cause)] if cause != MIXED else list(range(len(OWN)))
    was, now = (float(np.median(times[kinds].sum(axis=0))) for times in (before, after))
    return [
        RankVerdict(
            klass=GLOBAL_SLOWDOWN,
            cause=cause,
            ranks=ranks,
            hosts=hosts,
            first_step=int(facts.steps[first]),
            last_step=int(facts.steps[last]),
            persistent=False,
            factor=now / was if was > 0 else float(np.exp(rise)),
            cost=cost,
            confidence=0.9,
            evidence=[
                Evidence(
                    name="before_and_after",
                    text=f"{cause if cause != MIXED else 'own time'} a step: {milliseconds(was)} before step "
                    f"{facts.steps[first]}, {milliseconds(now)} since, on all ranks",
                    value=now,
                    peers=was,
                    unit="s",
                )
            ],
            next=NEXT[cause],
        )
    ]
