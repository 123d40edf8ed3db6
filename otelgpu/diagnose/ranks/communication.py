"""Slow transfers: groups whose exchange takes longer than that of groups like them, with all members there. Pure."""

from __future__ import annotations

from collections import defaultdict
from typing import Final

import numpy as np
from msgspec import Struct

from otelgpu.diagnose.ranks.facts import F64, Facts, Flags, Group
from otelgpu.diagnose.ranks.peers import (
    SMOOTHED,
    deviation,
    deviation_of_others,
    median,
    median_of_others,
    running_median,
    runs,
)
from otelgpu.diagnose.ranks.replay import Replay, is_between_units
from otelgpu.diagnose.ranks.verdicts import SLOW_COMMUNICATION, Evidence, RankVerdict
from otelgpu.diagnose.ranks.wording import cost_of, extent, milliseconds, places
from otelgpu.diagnose.ranks.workers import HIDDEN, LEAST_RUN, LEAST_RUN_SHARE, LEAST_SHARE, PERSISTENT

LEAST_RELATIVE: Final = float(np.log(1.5))
"""Over like groups: they need not move quite the same, for stages differ in their parameters."""
DEVIATIONS: Final = 4.0
"""How many standard deviations of the like groups, of a running median."""
LEAST_ALIKE: Final = 3
"""Groups that are compared: of two that differ, either may be the odd one."""

NEXT: Final = (
    "look at the links between {hosts}: port errors and retransmissions (otelgpu top rdma, ibqueryerrors), "
    "NVLink (nvidia-smi nvlink -e), then nccl-tests of these ranks alone"
)


class _Slow(Struct, frozen=True, kw_only=True):
    """``more_s``: of each step, what the group's transfers took longer."""

    group: Group
    steps: Flags
    more_s: F64
    factor: float
    usual_s: F64


def slow_groups(facts: Facts, replay: Replay) -> list[RankVerdict]:
    """Groups worth a verdict, most costly first; those that hide each other in one."""
    slow = [each for like in _alike(facts) for each in _slow_of(like)]
    if not slow:
        return []
    alone = [_saved(facts, replay, [each]) for each in slow]
    joint = _saved(facts, replay, slow)
    worth = [_is_worth(facts, saved, each.steps) for saved, each in zip(alone, slow, strict=True)]
    by_themselves = sum(saved.sum() for saved, good in zip(alone, worth, strict=True) if good)
    everything = np.any([each.steps for each in slow], axis=0)
    if joint.sum() - by_themselves > HIDDEN * joint.sum() and _is_worth(facts, joint, everything):
        return [_verdict(facts, slow, joint)]
    found = [
        _verdict(facts, [each], saved) for each, saved, good in zip(slow, alone, worth, strict=True) if good
    ]
    return sorted(found, key=lambda verdict: -verdict.cost.gpu_hours if verdict.cost else 0.0)


def some_are_slow(facts: Facts) -> bool:
    """Whether any group is, whatever it costs."""
    return any(_slow_of(like) for like in _alike(facts))


def _alike(facts: Facts) -> list[list[Group]]:
    """Groups of one kind and size, that are called as often, and have their members on as many hosts."""
    found: dict[tuple[str, int, int, int], list[Group]] = defaultdict(list)
    for group in facts.groups:
        if group.missing or np.isfinite(group.transfer_s).sum() < LEAST_RUN:
            continue
        hosts = len({facts.hosts[rank] for rank in group.ranks})
        found[group.kind, len(group.ranks), round(group.calls_per_step), hosts].append(group)
    return [groups for groups in found.values() if len(groups) >= LEAST_ALIKE]


def _slow_of(groups: list[Group]) -> list[_Slow]:
    logs = np.log(np.maximum(np.stack([group.transfer_s for group in groups], axis=1), 1e-9))
    others = median_of_others(logs)
    relative = logs - others
    smooth = running_median(relative)
    noise = median_of_others(deviation(relative - smooth, 0))
    sigma = np.hypot(SMOOTHED * noise, deviation_of_others(median(relative, 0)))
    with np.errstate(invalid="ignore"):
        flags = runs(smooth > np.maximum(LEAST_RELATIVE, DEVIATIONS * sigma), LEAST_RUN)
    found = []
    for place in np.flatnonzero(flags.any(axis=0)).tolist():
        steps = flags[:, place]
        if steps.mean() >= PERSISTENT:
            first, last = extent(steps)
            steps[first : last + 1] = True
        normal = np.exp(others[:, place])
        more = np.where(steps, np.maximum(groups[place].transfer_s - normal, 0.0), 0.0)
        found.append(
            _Slow(
                group=groups[place],
                steps=steps,
                more_s=np.nan_to_num(more),
                factor=float(np.exp(np.nanmedian(relative[steps, place]))),
                usual_s=normal,
            )
        )
    return found


def _saved(facts: Facts, replay: Replay, slow: list[_Slow]) -> F64:
    between, once = replay.between.copy(), replay.once.copy()
    for each in slow:
        group = each.group
        share = 1.0 / len(group.ranks) if group.kind == "p2p" else 1.0
        into = between if is_between_units(group, facts.units) else once
        into[:, group.ranks] -= share * each.more_s[:, None]
    return replay.saved_s(between=between, once=once)


def _is_worth(facts: Facts, saved_s: F64, steps: Flags) -> bool:
    whole = float(saved_s.sum()) / max(float(np.nansum(facts.duration_s)), 1e-12)
    return cost_of(facts, saved_s, *extent(steps)).share >= LEAST_SHARE and whole >= LEAST_RUN_SHARE


def _verdict(facts: Facts, slow: list[_Slow], saved: F64) -> RankVerdict:
    """Of one group, or of several: then the hosts that they have in common."""
    steps = np.any([each.steps for each in slow], axis=0)
    first, last = extent(steps)
    ranks, hosts, role = places(facts, np.unique(np.concatenate([each.group.ranks for each in slow])))
    common = set.intersection(*({facts.hosts[rank] for rank in each.group.ranks} for each in slow))
    named = [host for host in hosts if host in common] or hosts
    evidence = []
    for each in slow:
        mine = float(np.nanmedian(each.group.transfer_s[each.steps]))
        usual = float(np.nanmedian(each.usual_s[each.steps]))
        evidence.append(
            Evidence(
                name="transfer",
                text=f"{each.group.name}: {milliseconds(mine)} a step with all members there, groups like it "
                f"{milliseconds(usual)}",
                ranks=[int(facts.ranks[rank]) for rank in each.group.ranks],
                value=mine,
                peers=usual,
                unit="s",
            )
        )
    return RankVerdict(
        klass=SLOW_COMMUNICATION,
        cause="communication",
        ranks=ranks,
        hosts=named if len(slow) > 1 else hosts,
        role=role,
        group=", ".join(each.group.name for each in slow),
        first_step=int(facts.steps[first]),
        last_step=int(facts.steps[last]),
        persistent=bool((last + 1 - first) >= PERSISTENT * len(steps)),
        factor=float(np.median([each.factor for each in slow])),
        cost=cost_of(facts, saved, first, last),
        confidence=round(float(np.mean([each.steps[first : last + 1].mean() for each in slow])), 3),
        evidence=evidence,
        next=NEXT.format(hosts=" and ".join(named[:4]) or "its members"),
    )
