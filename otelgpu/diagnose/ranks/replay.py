"""What a step would take if something were mended: its schedule, run again with other times. Pure.

An operation begins when its rank is free and all that it waits for has ended (max-plus). Of every rank, in each step:
what comes ahead of computing; its units, each a forward and a backward; what comes behind. Groups that exchange
something for every unit wait for each other in every unit. Roles that send to each other are a pipeline: one forward,
one backward, in which a rank receives from its lane's ranks of the stage before. The step takes what the slowest rank
takes.

What is left out (overlap, gaps) is the difference to the step that was seen, and stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import numpy as np
from msgspec import Struct

from otelgpu.diagnose.ranks.facts import COMPUTE, F64, OWN, Codes, Facts, Flags, Group

FORWARD: Final = 1 / 3
"""Of a unit's computing: a backward pass has two matrix products for the forward's one."""


class _Partition(Struct, frozen=True, kw_only=True):
    """Sets of a stage's ranks that wait for each other; who is in none is one by itself."""

    order: Codes
    begins: Codes
    sizes: Codes
    back: Codes

    def latest(self, times: F64) -> F64:
        """(step, rank) → of each rank's set, the latest."""
        found = np.maximum.reduceat(times[:, self.order], self.begins, axis=1)
        return np.asarray(np.repeat(found, self.sizes, axis=1)[:, self.back])


class Stage(Struct, frozen=True, kw_only=True):
    """``ranks``: of all lanes. ``lanes``: the lane of each. ``waits``: for whom each waits in every unit."""

    ranks: Codes
    lanes: Codes
    waits: list[_Partition]


class Schedule(Struct, frozen=True, kw_only=True):
    """``stages`` in their order; one where there is no pipeline. ``lanes``: how many there are."""

    stages: list[Stage]
    lanes: int
    leads: Flags  # (kind, rank), whether the kind comes before computing

    @property
    def piped(self) -> bool:
        """Whether there is a pipeline."""
        return len(self.stages) > 1


def schedule_of(facts: Facts) -> Schedule:
    """A pipeline where roles send to each other."""
    roles = sorted(set(facts.roles), key=_natural)
    role = np.array([roles.index(each) for each in facts.roles])
    names, lane = np.unique(np.asarray(facts.lanes, dtype=object), return_inverse=True)
    sends = any(group.kind == "p2p" for group in facts.groups)
    whole = all(len(set(role[lane == each])) == len(roles) for each in range(len(names)))
    if not whole:  # whose lanes are not known: all are one
        lane = np.zeros_like(lane)
    if not sends:
        role = np.zeros_like(role)
    between = [
        group for group in facts.groups if group.kind == "coll" and is_between_units(group, facts.units)
    ]
    stages = []
    for each in range(role.max(initial=0) + 1):
        ranks = np.flatnonzero(role == each)
        stages.append(Stage(ranks=ranks, lanes=lane[ranks], waits=_partitions(ranks, between)))
    return Schedule(stages=stages, lanes=int(lane.max(initial=0)) + 1, leads=facts.leads)


def is_between_units(group: Group, units: int) -> bool:
    """Whether a group exchanges something for every unit, forward and backward."""
    return group.kind == "p2p" or group.calls_per_step >= 2 * units


def _partitions(ranks: Codes, groups: list[Group]) -> list[_Partition]:
    """Groups within these ranks, those of one partition together: no rank twice."""
    place = {int(rank): at for at, rank in enumerate(ranks)}
    layers: list[tuple[set[int], list[list[int]]]] = []
    for group in groups:
        members = [place[int(rank)] for rank in group.ranks if int(rank) in place]
        if len(members) != len(group.ranks):
            continue
        for taken, sets in layers:
            if not taken & set(members):
                taken.update(members)
                sets.append(members)
                break
        else:
            layers.append((set(members), [members]))
    return [_partition(len(ranks), sets) for _, sets in layers]


def _partition(count: int, sets: list[list[int]]) -> _Partition:
    alone = sorted(set(range(count)) - {rank for each in sets for rank in each})
    everyone = [*sets, *([rank] for rank in alone)]
    order = np.array([rank for each in everyone for rank in each])
    sizes = np.array([len(each) for each in everyone])
    back = np.empty_like(order)
    back[order] = np.arange(count)
    return _Partition(order=order, begins=np.cumsum(sizes) - sizes, sizes=sizes, back=back)


def exchanges(facts: Facts) -> tuple[F64, F64]:
    """Seconds of transfers of each (step, rank): those between units, and those once a step."""
    between, once = np.zeros_like(facts.step_s), np.zeros_like(facts.step_s)
    for group in facts.groups:
        if not np.isfinite(group.transfer_s).any():
            continue
        seconds = np.where(np.isfinite(group.transfer_s), group.transfer_s, np.nanmedian(group.transfer_s))
        share = 1.0 / len(group.ranks) if group.kind == "p2p" else 1.0  # the one that receives waits
        into = between if is_between_units(group, facts.units) else once
        into[:, group.ranks] += share * seconds[:, None]
    return between, once


def step_seconds(schedule: Schedule, own: F64, units: F64, between: F64, once: F64) -> F64:
    """What each step takes. ``own``: (kind, step, rank); ``units``: (unit, step, rank), what was computed for each."""
    others = [place for place in range(len(OWN)) if place != COMPUTE]
    ahead, behind = np.zeros_like(once), once.copy()
    for place in others:
        ahead += own[place] * schedule.leads[place]
        behind += own[place] * ~schedule.leads[place]
    work = units + between / len(units)
    free = [ahead[:, stage.ranks] for stage in schedule.stages]
    if schedule.piped:
        _pipeline(schedule, work, free)
    else:
        stage = schedule.stages[0]
        for unit in work:
            free[0] = _synchronised(stage, free[0] + unit[:, stage.ranks])
    ends = [times + behind[:, stage.ranks] for stage, times in zip(schedule.stages, free, strict=True)]
    return np.asarray(np.max([times.max(axis=1) for times in ends], axis=0))


def _synchronised(stage: Stage, times: F64) -> F64:
    for partition in stage.waits:
        times = partition.latest(times)
    return times


def _pipeline(schedule: Schedule, work: F64, free: list[F64]) -> None:
    """All units through all stages; ``free`` is when each rank is, before and after."""
    stages = schedule.stages
    orders = [list(_order(len(stages) - 1 - place, len(work))) for place in range(len(stages))]
    sent: dict[tuple[int, bool, int], F64] = {}  # (stage, whether forward, unit) → when each lane has it
    while any(orders):
        for place, (stage, order) in enumerate(zip(stages, orders, strict=True)):
            while order:
                forward, unit = order[0]
                source = place - 1 if forward else place + 1
                if 0 <= source < len(stages):
                    if (source, forward, unit) not in sent:
                        break
                    free[place] = np.maximum(free[place], sent[source, forward, unit][:, stage.lanes])
                share = FORWARD if forward else 1 - FORWARD
                free[place] = _synchronised(stage, free[place] + share * work[unit][:, stage.ranks])
                sent[place, forward, unit] = _of_lanes(stage, schedule.lanes, free[place])
                order.pop(0)


def _of_lanes(stage: Stage, lanes: int, times: F64) -> F64:
    """(step, lane): the latest of its ranks."""
    found = np.zeros((len(times), lanes))
    for rank, lane in enumerate(stage.lanes.tolist()):
        np.maximum(found[:, lane], times[:, rank], out=found[:, lane])
    return found


def _order(behind: int, units: int) -> Iterator[tuple[bool, int]]:
    """Whether it is a forward, and the unit: as many forwards go ahead as there are stages behind."""
    ahead = min(behind, units)
    yield from ((True, unit) for unit in range(ahead))
    for unit in range(units):
        if unit + ahead < units:
            yield True, unit + ahead
        yield False, unit


def _natural(name: str) -> list[tuple[bool, int, str]]:
    """Sorts ``stage 10`` behind ``stage 9``."""
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.split(r"(\d+)", name)]


class Replay(Struct, frozen=True, kw_only=True):
    """The job as it was, and `saved_s` of a change."""

    schedule: Schedule
    own: F64
    units: F64
    between: F64
    once: F64
    as_it_was_s: F64
    duration_s: F64

    def saved_s(
        self,
        *,
        own: F64 | None = None,
        units: F64 | None = None,
        between: F64 | None = None,
        once: F64 | None = None,
    ) -> F64:
        """Of each step, no more than it took. Where a rank's computing changes, that of all its units does alike."""
        own = self.own if own is None else np.nan_to_num(own)
        units = self.units if units is None else units
        if own is not self.own:
            units = units * (own[COMPUTE] / np.maximum(self.own[COMPUTE], 1e-12))
        changed = step_seconds(
            self.schedule,
            own,
            units,
            self.between if between is None else between,
            self.once if once is None else once,
        )
        return np.clip(self.as_it_was_s - changed, 0.0, np.nan_to_num(self.duration_s))

    def share(self, saved_s: F64) -> float:
        """Of the run's time."""
        return float(saved_s.sum() / max(float(np.nansum(self.duration_s)), 1e-12))


def replay_of(facts: Facts) -> Replay:
    """See the module."""
    schedule = schedule_of(facts)
    between, once = exchanges(facts)
    own, units = np.nan_to_num(facts.own), np.nan_to_num(facts.compute_units)
    return Replay(
        schedule=schedule,
        own=own,
        units=units,
        between=between,
        once=once,
        as_it_was_s=step_seconds(schedule, own, units, between, once),
        duration_s=facts.duration_s,
    )
