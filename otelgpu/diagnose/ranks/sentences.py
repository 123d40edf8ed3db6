"""A verdict in one sentence, for who reads no JSON. Pure."""

from __future__ import annotations

from typing import Final

from otelgpu.diagnose.ranks.verdicts import (
    DATA_IMBALANCE,
    GLOBAL_SLOWDOWN,
    HANG,
    INCONCLUSIVE,
    LONE_EVALUATION,
    MIXED,
    PERIOD,
    SLOW_COMMUNICATION,
    SLOW_HOST,
    STAGE_IMBALANCE,
    RankVerdict,
)
from otelgpu.diagnose.ranks.wording import milliseconds, numbered

_WORK: Final = {
    "compute": "computing",
    "host": "host code",
    "input": "waiting for input",
    "file": "file I/O",
    "copy": "copying",
    MIXED: "its own work",
}
_MOST_HOSTS: Final = 4


def sentence(verdict: RankVerdict) -> str:
    """What, where, how much, since when, and what it costs."""
    if verdict.klass == INCONCLUSIVE:
        return f"Inconclusive: {verdict.evidence[0].text}{_cost(verdict)}"
    return f"{_what(verdict)}, {_when(verdict)}{_cost(verdict)}"


def _what(verdict: RankVerdict) -> str:
    ranks = numbered(verdict.ranks)
    times = "" if verdict.factor is None else f"{verdict.factor:.2f} times"
    work = _WORK.get(verdict.cause, verdict.cause)
    if verdict.klass == SLOW_HOST:
        return f"Slow host {', '.join(verdict.hosts)} ({ranks}): {_longer(work, times)}"
    if verdict.klass == SLOW_COMMUNICATION:
        return f"Slow communication in {verdict.group} ({ranks}): transfers take {times} as long as in like groups"
    if verdict.klass == STAGE_IMBALANCE:
        return f"Uneven stages: {verdict.role} ({ranks}) computes {times} as long as the others"
    if verdict.klass == DATA_IMBALANCE:
        where = f", {ranks} most of all" if verdict.ranks else ""
        return f"Uneven batches{where}: the largest has {times} the work of the median"
    if verdict.klass == GLOBAL_SLOWDOWN:
        return f"All ranks became slower: {work} takes {times} as long as before"
    if verdict.klass == HANG:
        return f"Hang: {_absent(verdict)} {verdict.group}"
    places = [verdict.role, ", ".join(verdict.hosts[:_MOST_HOSTS])]
    where = ", ".join(filter(None, places))
    if verdict.klass == LONE_EVALUATION:
        return f"Evaluation on {ranks} alone{f' ({where})' if where else ''}, {_every(verdict)}, while the others wait"
    return f"Slow {ranks}{f' ({where})' if where else ''}: {_longer(work, times)}"


def _every(verdict: RankVerdict) -> str:
    (period,) = (each.value for each in verdict.evidence if each.name == PERIOD)
    return f"one every {period:.0f} steps"


def _absent(verdict: RankVerdict) -> str:
    if verdict.ranks:
        return f"{numbered(verdict.ranks)} never came to"
    return (
        "all members came, and nothing ends:"
        if verdict.cause == "communication"
        else "who is not in the input never came to"
    )


def _longer(work: str, times: str) -> str:
    return (
        f"{work} takes {times} as long as on like ranks"
        if times
        else f"{work} takes longer than on like ranks"
    )


def _when(verdict: RankVerdict) -> str:
    if verdict.klass == HANG:
        return f"in step {verdict.last_step}" if verdict.last_step >= 0 else "where all others wait"
    steps = f"steps {verdict.first_step}–{verdict.last_step}"
    if verdict.klass == LONE_EVALUATION:
        return f"in {steps}"
    return f"all the time ({steps})" if verdict.persistent else f"in {steps}"


def _cost(verdict: RankVerdict) -> str:
    if verdict.cost is None:
        return ""
    cost = verdict.cost
    return (
        f". It costs {milliseconds(cost.seconds_per_step)} a step, {cost.share:.1%} of the time, {cost.gpu_hours:.3g} "
        "GPU-hours"
    )
