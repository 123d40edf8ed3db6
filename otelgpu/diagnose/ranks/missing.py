"""When nothing can be said, and what is missing for it. Pure."""

from __future__ import annotations

from typing import Final

import numpy as np

from otelgpu.diagnose.ranks.facts import Facts, Group
from otelgpu.diagnose.ranks.verdicts import INCONCLUSIVE, Evidence, RankVerdict
from otelgpu.diagnose.ranks.workers import LEAST_SHARE

LEAST_STEPS: Final = 8
"""Of fewer, a slow rank and a few slow steps are the same."""
ALWAYS_LAST: Final = 0.8
"""Share of a group's collectives in which one rank was the last."""
LEAST_COLLECTIVES: Final = 11
"""Of fewer, one of two ranks that are equally fast is the last of nearly all too often, by chance."""


def too_little(facts: Facts) -> RankVerdict | None:
    """What rules out every comparison."""
    if len(facts.steps) == 0:
        return _inconclusive(
            facts,
            "steps",
            "no operation says which step it was in",
            "give inputs whose operations have steps and ranks",
        )
    if len(facts.ranks) < 2:
        return _inconclusive(
            facts,
            "ranks",
            "operations of one rank only: nothing to compare it with",
            "add the other ranks' files",
        )
    if len(facts.steps) < LEAST_STEPS:
        return _inconclusive(
            facts, "steps", f"{len(facts.steps)} steps, of {LEAST_STEPS} that it takes", "record for longer"
        )
    return None


def unexplained(facts: Facts, *, explained: bool) -> RankVerdict | None:
    """Where no rule found anything, but what would have shown it was not recorded, or somebody is always waited for.

    ``explained``: ranks or groups are known to be slow that cost too little for a verdict: others wait for these.
    """
    lead = None if explained else _always_last(facts)
    evidence = [_lead(facts, *lead)] if lead else []
    if "compute" not in facts.kinds:
        return _inconclusive(
            facts,
            "device time",
            "no device time: on the host, whose calls only queue work, a GPU that is slow looks like its peers",
            "record device time: --source inject, or a torch.profiler trace of each rank",
            evidence,
        )
    if lead:
        return _inconclusive(
            facts,
            "the time between operations",
            "a rank comes last to nearly all collectives, and no operation of its own shows why",
            "profile that rank: otelgpu profile -p PID; what it does is in none of the operations",
            evidence,
        )
    return None


def _always_last(facts: Facts) -> tuple[Group, int, float] | None:
    """The group with most waiting for one rank that does what the others do; None: nobody is waited for always.

    Waiting in the median of the steps: in single ones it may be for any rank, whose garbage collector stops it.
    """
    total = max(float(np.nansum(facts.duration_s)), 1e-12)
    found = []
    for group in facts.groups:
        roles = {facts.roles[rank] for rank in group.ranks}
        if group.kind != "coll" or len(roles) > 1 or group.missing or group.calls < LEAST_COLLECTIVES:
            continue
        most = int(group.came_last.argmax())
        seen_s = group.waited_s[np.isfinite(group.waited_s)]
        waited = float(np.median(seen_s)) * len(seen_s) / (len(group.ranks) - 1) if len(seen_s) else 0.0
        if group.came_last[most] >= ALWAYS_LAST * group.calls and waited >= LEAST_SHARE * total:
            found.append((group, int(group.ranks[most]), waited / total))
    return max(found, key=lambda each: each[2], default=None)


def _lead(facts: Facts, group: Group, rank: int, waited: float) -> Evidence:
    last = int(group.came_last.max())
    name = group.name or "its group"
    return Evidence(
        name="came_last",
        text=f"rank {facts.ranks[rank]} came last to {last} of {group.calls} collectives of {name}; the others waited "
        f"{waited:.0%} of the time",
        ranks=[int(facts.ranks[rank])],
        value=last / group.calls,
        unit="1",
    )


def _inconclusive(
    facts: Facts, what: str, text: str, then: str, evidence: list[Evidence] | None = None
) -> RankVerdict:
    steps = facts.steps
    return RankVerdict(
        klass=INCONCLUSIVE,
        first_step=int(steps[0]) if len(steps) else 0,
        last_step=int(steps[-1]) if len(steps) else 0,
        persistent=False,
        confidence=0.0,
        evidence=[Evidence(name="missing", text=f"{what}: {text}"), *(evidence or [])],
        next=then,
    )
