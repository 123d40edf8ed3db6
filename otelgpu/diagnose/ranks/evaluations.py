"""Evaluations that nothing marks: forward passes beside training, every so many steps. Pure.

By their signature: at equal distances a step has much more computing than those around it, in more operations, of
which those of the backward pass and the optimizer are as many as always. Where most ranks do it, the steps are no
training and compared with none; where a few do, the others wait for them, and that is the verdict: no GPU is slow.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from otelgpu.diagnose.ranks.facts import COMPUTE, F64, Codes, Facts, Flags, Query, without_steps
from otelgpu.diagnose.ranks.marks import costs_of
from otelgpu.diagnose.ranks.missing import LEAST_STEPS
from otelgpu.diagnose.ranks.peers import deviation, median, median_of_others, running_median
from otelgpu.diagnose.ranks.verdicts import (
    EVALUATION,
    LONE_EVALUATION,
    PERIOD,
    Evidence,
    MarkedSteps,
    RankVerdict,
)
from otelgpu.diagnose.ranks.wording import cost_of, extent, milliseconds, places
from otelgpu.diagnose.ranks.workers import LEAST_SHARE, PERSISTENT, came_last

LEAST_TIMES: Final = 4
"""At equal distances: fewer are so by chance."""
LEAST_COUNTED: Final = 3
"""The same, where operations show that there is more to do. What most ranks do at once may happen once."""
LEAST_PERIOD: Final = 4
"""Steps: what a rank does more often is what its steps are."""
REGULAR: Final = 0.8
"""Share of the long steps that are at one distance, and of the steps at that distance that are long."""
LEAST_LONGER: Final = 0.15
"""Of the rank's usual computing in a step: an evaluation takes many batches, and a step few."""
DEVIATIONS: Final = 8.0
"""Of a rank's steps from their neighbours: a single step is compared, and there are many of them."""
MOST_ALONE: Final = 0.5
"""Share of the ranks that evaluate alone; of more, the job does."""
MORE_OPERATIONS: Final = 1.1
"""Times the usual number: a GPU that is slow does as many as always, and takes longer for each."""
AS_ALWAYS: Final = 0.2
"""Share of the usual operations that are no more: the backward pass and the optimizer have over half of them."""
SURE: Final = 0.9
"""Confidence where operations say that there was more to do, and what."""
UNSURE: Final = 0.6
"""Where only the distance of the steps says so."""
_WARM: Final = 1
_LOOKED_AT: Final = 4
"""Ranks, and steps of each, whose operations are looked at by name."""

_NEXT: Final = (
    "have all ranks evaluate, each a part of the batches, or evaluate in another job from checkpoints: the others wait "
    "meanwhile. A name with “evaluate” in it (torch.profiler.record_function, a probe of your own) marks these steps"
)


class Evaluations(Struct, frozen=True, kw_only=True):
    """``alone``: (step, rank), where ranks evaluate while others wait; ``common``: the same where most ranks do.

    ``counted``: operations show that there is more to do, not only the distance of the steps.
    """

    alone: Flags
    common: Flags
    counted: bool

    @property
    def cells(self) -> Flags:
        """(step, rank) of both."""
        return np.asarray(self.alone | self.common)


def find_evaluations(facts: Facts, query: Query) -> Evaluations:
    """``query``: asked only where some steps are long enough."""
    nothing = np.zeros(facts.step_s.shape, dtype=np.bool_)
    none = Evaluations(alone=nothing, common=nothing, counted=False)
    if "compute" not in facts.kinds or len(facts.ranks) < 2 or len(facts.steps) < LEAST_STEPS:
        return none
    long, counted = _long(facts)
    most = np.asarray(long.mean(axis=1) > MOST_ALONE)
    alone = np.zeros_like(long)
    for rank in np.flatnonzero((long & ~most[:, None]).any(axis=0)).tolist():
        alone[:, rank] = _regular(long[:, rank] & ~most, facts.steps, counted=bool(counted[rank]))
    if np.asarray(alone.any(axis=0)).mean() > MOST_ALONE or _is_forward_only(facts, alone, query) is False:
        alone = nothing
    common = long & most[:, None]
    by_name = _is_forward_only(facts, common, query)
    if by_name is False:
        common = nothing
    elif by_name is None or counted.mean() <= MOST_ALONE:
        common = common & _regular(most, facts.steps, counted=False)[:, None]
    of = (alone | common).any(axis=0)
    return Evaluations(alone=alone, common=common, counted=bool(of.any() and counted[of].all()))


def _long(facts: Facts) -> tuple[Flags, Flags]:
    """Steps in which a rank computes much longer than in those around, and more; and whose operations are counted.

    The first ones compile and choose kernels.
    """
    compute = facts.own[COMPUTE]
    usual = running_median(compute)
    rise = compute - usual
    with np.errstate(invalid="ignore"):
        found = np.asarray(rise > np.maximum(LEAST_LONGER * usual, DEVIATIONS * deviation(rise, 0)))
        found[:_WARM] = False
        counts = np.where(np.isnan(compute), np.nan, facts.computations)
        times = median(np.where(found, np.nan, counts), 0)
        counted = np.asarray(times > 1)
        found &= ~counted | (counts >= MORE_OPERATIONS * times)
    return found, counted


def _regular(flags: Flags, steps: npt.NDArray[np.int64], *, counted: bool) -> Flags:
    """Those at one distance from each other, where they are most of all and hardly any is missing; else none."""
    none = np.zeros_like(flags)
    least = LEAST_COUNTED if counted else LEAST_TIMES
    at = steps[flags]
    if len(at) < least:
        return none
    period = int(np.median(np.diff(at)))
    if period < LEAST_PERIOD:
        return none
    rests, counts = np.unique(at % period, return_counts=True)
    on = steps % period == rests[counts.argmax()]
    found = np.asarray(flags & on)
    first, last = extent(flags)
    due = int(on[first : last + 1].sum())
    return found if found.sum() >= max(least, REGULAR * len(at), REGULAR * due) else none


def _is_forward_only(facts: Facts, cells: Flags, query: Query) -> bool | None:
    """Whether some operations are as many as in the steps before; None: by their names that cannot be said."""
    if not cells.any():
        return None
    ranks = np.flatnonzero(cells.any(axis=0))[:_LOOKED_AT]
    mine = cells[:, ranks[0]]
    steps = [step for step in np.flatnonzero(mine).tolist() if not mine[step - 1]][:_LOOKED_AT]
    found = query(
        "computations",
        steps=", ".join(str(int(facts.steps[at])) for step in steps for at in (step - 1, step)),
        ranks=", ".join(str(int(facts.ranks[rank])) for rank in ranks.tolist()),
    )
    names, of = np.unique(found["name"].astype(str), return_inverse=True)
    later = np.isin(found["step"], facts.steps[steps])
    before = np.bincount(of, weights=found["operations"] * ~later, minlength=len(names))
    if np.count_nonzero(before) < 2:
        return None
    after = np.bincount(of, weights=found["operations"] * later, minlength=len(names))
    as_always = before[after < MORE_OPERATIONS * before].sum()
    return bool(as_always >= AS_ALWAYS * before.sum())


def trained(facts: Facts, found: Evaluations) -> Facts:
    """The same without them: what rules compare."""
    if not found.cells.any():
        return facts
    cells = found.cells
    plain = ~np.asarray(cells.any(axis=1))
    changed = replace(
        facts,
        own=np.where(cells, np.nan, facts.own),
        moved=np.where(cells, 0.0, facts.moved),
        step_s=np.where(cells, np.nan, facts.step_s),
        compute_units=np.where(cells, np.nan, facts.compute_units),
        groups=[replace(group, waited_s=np.where(plain, group.waited_s, np.nan)) for group in facts.groups],
    )
    return without_steps(changed, np.asarray(found.common.any(axis=1)))


def marked_by(facts: Facts, found: Evaluations) -> list[MarkedSteps]:
    """As of those that names mark."""
    each = [cells for cells in (found.alone, found.common) if cells.any()]
    costs = [costs_of({EVALUATION: cells}, facts.ranks, facts.duration_s) for cells in each]
    return [replace(marked, inferred=True) for (marked,) in costs]


def lone_evaluations(facts: Facts, found: Evaluations) -> list[RankVerdict]:
    """A verdict for the ranks that evaluate in the same steps, where the others' waiting is worth one."""
    verdicts = [_verdict(facts, found, ranks) for ranks in _together(found.alone)]
    return [each for each in verdicts if each.cost is not None and each.cost.share >= LEAST_SHARE]


def _together(cells: Flags) -> Iterator[Codes]:
    """Ranks with most of their steps in common."""
    left = np.flatnonzero(cells.any(axis=0))
    while len(left):
        mine = cells[:, left[0]]
        both = (cells[:, left] & mine[:, None]).sum(axis=0)
        same = both >= REGULAR * np.maximum(cells[:, left].sum(axis=0), mine.sum())
        yield left[same]
        left = left[~same]


def _verdict(facts: Facts, found: Evaluations, ranks: Codes) -> RankVerdict:
    cells = np.zeros_like(found.alone)
    cells[:, ranks] = found.alone[:, ranks]
    steps = np.asarray(cells.any(axis=1))
    who, hosts, role = places(facts, ranks)
    period = int(np.median(np.diff(facts.steps[steps])))
    first, last = extent(steps)
    last = int(np.searchsorted(facts.steps, facts.steps[last] + period)) - 1  # until the next one is due
    mine = float(np.nanmedian(facts.own[COMPUTE][cells]))
    peers = float(np.nanmedian(median_of_others(np.where(cells, np.nan, facts.own[COMPUTE]))[cells]))
    evidence = [
        Evidence(
            name=PERIOD,
            text=f"{int(steps.sum())} steps, one every {period}: {milliseconds(mine)} of computing in each, of the "
            f"other ranks {milliseconds(peers)}",
            ranks=who,
            value=float(period),
            unit="{step}",
        ),
        _operations(facts, cells, counted=found.counted),
        *came_last(facts, ranks),
    ]
    return RankVerdict(
        klass=LONE_EVALUATION,
        cause="compute",
        ranks=who,
        hosts=hosts,
        role=role,
        first_step=int(facts.steps[first]),
        last_step=int(facts.steps[last]),
        persistent=bool(last + 1 - first >= PERSISTENT * len(steps)),
        factor=mine / peers if peers > 0 else None,
        cost=cost_of(facts, _waited_s(facts, cells), first, last),
        confidence=SURE if found.counted else UNSURE,
        evidence=evidence,
        next=_NEXT,
    )


def _operations(facts: Facts, cells: Flags, *, counted: bool) -> Evidence:
    if not counted:
        return Evidence(
            name="operations",
            text="single operations are not in the input: that it has more to do, and is not slower, only the "
            "distance of the steps says",
        )
    counts = np.where(np.isnan(facts.own[COMPUTE]), np.nan, facts.computations)
    more = float(np.nanmedian(counts[cells]))
    usual = float(np.nanmedian(np.where(cells, np.nan, counts)[:, cells.any(axis=0)]))
    return Evidence(
        name="operations",
        text=f"{more:.0f} operations in these steps, {usual:.0f} in others: forward passes beside training",
        value=more,
        peers=usual,
        unit="{operation}",
    )


def _waited_s(facts: Facts, cells: Flags) -> F64:
    """What each of these steps takes longer than those around, and no more than the ranks' own time is longer."""
    steps = np.asarray(cells.any(axis=1))
    longer = facts.duration_s - _around(facts.duration_s, steps)
    own = facts.own.sum(axis=0)
    usual = np.stack([_around(own[:, rank], steps) for rank in range(own.shape[1])], axis=1)
    most = np.where(cells, np.nan_to_num(own - usual), 0.0).max(axis=1)
    return np.where(steps, np.clip(np.nan_to_num(longer), 0.0, most), 0.0)


def _around(values: F64, flagged: Flags) -> F64:
    """Of each step, the running median without those that are flagged."""
    return running_median(np.where(flagged, np.nan, values)[:, None])[:, 0]
