"""Evaluations that nothing marks: forward passes beside training, every so many steps. Pure.

By their signature: at equal distances a step has much more computing than those around it, in more operations, of
which those of the backward pass and the optimizer are as many as always. Where most ranks do it, the steps are no
training and compared with none; where a few do, the others wait for them, and that is the verdict: no GPU is slow.

Where operations are summed up, the batches tell an evaluation from a GPU that is slow as regularly: they are waited for
and copied too. Where these are not in the input either, nothing tells them apart, and that is said.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from otelgpu.diagnose.ranks.facts import COMPUTE, F64, OWN, Codes, Facts, Flags, Query, without_steps
from otelgpu.diagnose.ranks.marks import costs_of
from otelgpu.diagnose.ranks.missing import LEAST_STEPS
from otelgpu.diagnose.ranks.peers import deviation, median, median_of_others, running_median
from otelgpu.diagnose.ranks.verdicts import (
    EVALUATION,
    INCONCLUSIVE,
    LONE_EVALUATION,
    PERIOD,
    Evidence,
    MarkedSteps,
    RankVerdict,
)
from otelgpu.diagnose.ranks.wording import cost_of, extent, milliseconds, numbered, places
from otelgpu.diagnose.ranks.workers import LEAST_SHARE, PERSISTENT, came_last, cells_of

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
"""Share of the ranks that evaluate alone, and of the evaluations by one of ranks that take turns; else the job does."""
MORE_OPERATIONS: Final = 1.1
"""Times the usual number: a GPU that is slow does as many as always, and takes longer for each."""
AS_ALWAYS: Final = 0.2
"""Share of the usual operations that are no more: the backward pass and the optimizer have over half of them."""
SURE: Final = 0.9
"""Confidence where operations say that there was more to do, and what."""
UNSURE: Final = 0.6
"""Where only the distance of the steps and their batches say so."""
FEEDS: Final = ("input", "copy")
"""Kinds of work that batches take: a GPU that is slow has as many of them as always."""
MOST_NOISE: Final = 0.5
"""Of what an evaluation's batches take longer at least: where these times vary more, that they do not is no sign."""
_WARM: Final = 1
_LOOKED_AT: Final = 4
"""Ranks, and steps of each, whose operations are looked at by name."""

_NEXT: Final = (
    "have all ranks evaluate, each a part of the batches, or evaluate in another job from checkpoints: the others wait "
    "meanwhile. A name with “evaluate” in it (torch.profiler.record_function, a probe of your own) marks these steps"
)
_NEXT_UNCLEAR: Final = (
    "record what tells them apart: single operations (a torch.profiler trace of each rank), or what ranks wait for "
    "input and copy. A name with “evaluate” in it (torch.profiler.record_function, a probe of your own) marks "
    "evaluations"
)


class Evaluations(Struct, frozen=True, kw_only=True):
    """``alone``: (step, rank), where ranks evaluate while others wait; ``common``: where most do, at once or in turn.

    ``unclear``: likewise, where ranks evaluate alone or their GPUs are slow, and nothing tells which. ``counted``: of
    each rank, whether operations show that there is more to do.
    """

    alone: Flags
    common: Flags
    unclear: Flags
    counted: Flags

    @property
    def cells(self) -> Flags:
        """(step, rank) of all."""
        return np.asarray(self.alone | self.common | self.unclear)


def find_evaluations(facts: Facts, query: Query) -> Evaluations:
    """``query``: asked only where some steps are long enough."""
    nothing = np.zeros(facts.step_s.shape, dtype=np.bool_)
    none = Evaluations(
        alone=nothing, common=nothing, unclear=nothing, counted=np.zeros(len(facts.ranks), dtype=np.bool_)
    )
    if "compute" not in facts.kinds or len(facts.ranks) < 2 or len(facts.steps) < LEAST_STEPS:
        return none
    long, counted = _long(facts)
    most = np.asarray(long.mean(axis=1) > MOST_ALONE)
    of_few, alone = long & ~most[:, None], np.zeros_like(long)
    for rank in np.flatnonzero(of_few.any(axis=0)).tolist():
        alone[:, rank] = _regular(of_few[:, rank], facts.steps, counted=bool(counted[rank]))
    turns = _in_turn(of_few, facts.steps)
    alone &= ~np.asarray(turns.any(axis=1))[:, None]
    if np.asarray(alone.any(axis=0)).mean() > MOST_ALONE or _is_forward_only(facts, alone, query) is False:
        alone = nothing
    common = long & most[:, None]
    by_name = _is_forward_only(facts, common, query)
    if by_name is False:
        common = nothing
    elif by_name is None or counted.mean() <= MOST_ALONE:
        common = common & _regular(most, facts.steps, counted=False)[:, None]
    if _is_forward_only(facts, turns, query) is not False:
        common = common | turns
    alone, unclear = _told_by_batches(facts, alone, counted)
    return Evaluations(alone=alone, common=common, unclear=unclear, counted=counted)


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


def _in_turn(long: Flags, steps: npt.NDArray[np.int64]) -> Flags:
    """Those at one distance that ranks have one after the other; none where a rank has most of them."""
    found = long & _regular(np.asarray(long.any(axis=1)), steps, counted=False)[:, None]
    times = found.any(axis=1).sum()
    return found if found.sum(axis=0).max() <= MOST_ALONE * times else np.zeros_like(long)


def _told_by_batches(facts: Facts, cells: Flags, counted: Flags) -> tuple[Flags, Flags]:
    """Which of these are evaluations, and of which that is unclear. Those that are neither are of slow GPUs."""
    alone, unclear = cells.copy(), np.zeros_like(cells)
    for ranks in _together(cells):
        more = True if counted[ranks].all() else _has_more_batches(facts, cells[:, ranks], ranks)
        if more is None:
            unclear[:, ranks] = cells[:, ranks]
        if not more:
            alone[:, ranks] = False
    return alone, unclear


def _has_more_batches(facts: Facts, cells: Flags, ranks: Codes) -> bool | None:
    """Whether these ranks wait for batches and copy them longer in these steps, by more than they compute longer.

    A forward pass takes a third of what training takes for a batch. None: it varies too much for that, or is not known.
    """
    steps = np.asarray(cells.any(axis=1))
    compute, feed = facts.own[COMPUTE][:, ranks].sum(axis=1), _feed_s(facts, ranks)
    usual = _around(feed, steps)
    with np.errstate(divide="ignore", invalid="ignore"):
        longer = np.nan_to_num(compute / _around(compute, steps) - 1, posinf=0.0)
    least = float(median((longer * usual)[steps], 0))
    more = float(median((feed - usual)[steps], 0))
    noise = DEVIATIONS * float(deviation((feed - usual)[~steps], 0)) / np.sqrt(steps.sum())
    if more > max(least, noise):
        return True
    return False if least > 0 and more <= noise <= MOST_NOISE * least else None


def _feed_s(facts: Facts, ranks: Codes) -> F64:
    """Of each step, what these ranks wait for batches and copy them, together."""
    kinds = [OWN.index(kind) for kind in FEEDS]
    return np.asarray(facts.own[kinds][:, :, ranks].sum(axis=(0, 2)))


def _is_forward_only(facts: Facts, cells: Flags, query: Query) -> bool | None:
    """Whether some operations are as many as in the steps before; None: by their names that cannot be said."""
    if not cells.any():
        return None
    mine = cells[:, int(cells.any(axis=0).argmax())]
    ranks = np.flatnonzero(cells[mine].any(axis=0))[:_LOOKED_AT]
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
    """A verdict for the ranks that evaluate in the same steps, where the others' waiting is worth one.

    Where their GPUs may as well be slow it is inconclusive, and has all else.
    """
    verdicts = [
        *(
            _evaluation(facts, cells_of(found.alone, ranks), counted=bool(found.counted[ranks].all()))
            for ranks in _together(found.alone)
        ),
        *(_unclear(facts, cells_of(found.unclear, ranks)) for ranks in _together(found.unclear)),
    ]
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


def _evaluation(facts: Facts, cells: Flags, *, counted: bool) -> RankVerdict:
    return _verdict(
        facts,
        cells,
        klass=LONE_EVALUATION,
        confidence=SURE if counted else UNSURE,
        evidence=[_period(facts, cells), (_operations if counted else _batches)(facts, cells)],
        next=_NEXT,
    )


def _unclear(facts: Facts, cells: Flags) -> RankVerdict:
    who = numbered(facts.ranks[cells.any(axis=0)].tolist())
    text = (
        f"single operations, or times of input and copies: every so many steps {who} computes longer; that it "
        "evaluates then, or that its GPU is slow, looks alike"
    )
    return _verdict(
        facts,
        cells,
        klass=INCONCLUSIVE,
        confidence=0.0,
        evidence=[Evidence(name="missing", text=text), _period(facts, cells)],
        next=_NEXT_UNCLEAR,
    )


def _verdict(
    facts: Facts, cells: Flags, *, klass: str, confidence: float, evidence: list[Evidence], next: str
) -> RankVerdict:
    steps, ranks = np.asarray(cells.any(axis=1)), np.flatnonzero(cells.any(axis=0))
    who, hosts, role = places(facts, ranks)
    first, last = extent(steps)
    due = facts.steps[last] + _every(facts, steps)
    last = int(np.searchsorted(facts.steps, due)) - 1
    mine, peers = _times(facts, cells)
    return RankVerdict(
        klass=klass,
        cause="compute",
        ranks=who,
        hosts=hosts,
        role=role,
        first_step=int(facts.steps[first]),
        last_step=int(facts.steps[last]),
        persistent=bool(last + 1 - first >= PERSISTENT * len(steps)),
        factor=mine / peers if peers > 0 else None,
        cost=cost_of(facts, _waited_s(facts, cells), first, last),
        confidence=confidence,
        evidence=[*evidence, *came_last(facts, ranks)],
        next=next,
    )


def _every(facts: Facts, steps: Flags) -> int:
    return int(np.median(np.diff(facts.steps[steps])))


def _times(facts: Facts, cells: Flags) -> tuple[float, float]:
    """Seconds of computing in these steps, in the median: of these ranks, and of the others."""
    compute = facts.own[COMPUTE]
    others = median_of_others(np.where(cells, np.nan, compute))
    return float(np.nanmedian(compute[cells])), float(np.nanmedian(others[cells]))


def _period(facts: Facts, cells: Flags) -> Evidence:
    steps = np.asarray(cells.any(axis=1))
    every, (mine, peers) = _every(facts, steps), _times(facts, cells)
    return Evidence(
        name=PERIOD,
        text=f"{int(steps.sum())} steps, one every {every}: {milliseconds(mine)} of computing in each, of the "
        f"other ranks {milliseconds(peers)}",
        ranks=facts.ranks[cells.any(axis=0)].tolist(),
        value=float(every),
        unit="{step}",
    )


def _operations(facts: Facts, cells: Flags) -> Evidence:
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


def _batches(facts: Facts, cells: Flags) -> Evidence:
    steps = np.asarray(cells.any(axis=1))
    feed = _feed_s(facts, np.flatnonzero(cells.any(axis=0)))
    more, usual = (float(np.nanmedian(feed[which])) for which in (steps, ~steps))
    return Evidence(
        name="batches",
        text=f"{milliseconds(more)} of waiting for input and of copies in these steps, {milliseconds(usual)} in "
        "others: it has more batches. Single operations, which would say what for, are not in the input",
        value=more,
        peers=usual,
        unit="s",
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
