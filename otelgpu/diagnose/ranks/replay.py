"""What a step would take if something were mended: the schedule as a closed form, replayed with other times. Pure.

All ranks of a lane work on the same units; of a role's ranks in a lane, the slowest decides. Without a pipeline a lane
takes what its slowest rank takes. With one (roles that send to each other) it is one forward, one backward: a stage
begins when it and all before it are ready, works through its units, waits for the first one to come back from the
stages behind unless its own forwards meanwhile take longer, and ends no earlier than the stage behind plus one
backward. The step takes what the slowest lane takes.

Example: 4 stages, 8 units, 1 s a unit on each: 8 + 3 = 11 s; with 2 s on the last stage: 8 × 2 + 3 = 19 s.

What the model leaves out (overlap, gaps) is the difference to the step that was seen, and stays as it is.
"""

from __future__ import annotations

import re
from typing import Final

import numpy as np
from msgspec import Struct

from otelgpu.diagnose.ranks.facts import COMPUTE, F64, OWN, Codes, Facts

FORWARD: Final = 1 / 3
"""Of a unit's computing: a backward pass has two matrix products for the forward's one."""


class Schedule(Struct, frozen=True, kw_only=True):
    """``cells``: for each stage in its order, the ranks of each lane: (stage, lane) → indices of ranks."""

    cells: list[list[Codes]]
    units: int
    leads: F64  # (kind, rank), 1 where the kind comes before computing
    piped: bool


def schedule_of(facts: Facts) -> Schedule:
    """A pipeline where roles send to each other and every lane has all of them."""
    roles = sorted(set(facts.roles), key=_natural)
    lanes = sorted(set(facts.lanes), key=_natural)
    ranks = np.arange(len(facts.ranks))
    role = np.array([roles.index(each) for each in facts.roles])
    lane = np.array([lanes.index(each) for each in facts.lanes])
    cells = [[ranks[(role == r) & (lane == each)] for each in range(len(lanes))] for r in range(len(roles))]
    sends = any(group.kind == "p2p" for group in facts.groups)
    piped = len(roles) > 1 and sends and all(len(cell) for stage in cells for cell in stage)
    if not piped:
        cells = [[ranks]]
    return Schedule(
        cells=cells, units=facts.units if piped else 1, leads=facts.leads.astype(np.float64), piped=piped
    )


def exchanges(facts: Facts) -> tuple[F64, F64]:
    """Seconds of transfers of each (step, rank): those between units, and those once a step."""
    between, once = np.zeros_like(facts.step_s), np.zeros_like(facts.step_s)
    for group in facts.groups:
        if not np.isfinite(group.transfer_s).any():
            continue
        seconds = np.where(np.isfinite(group.transfer_s), group.transfer_s, np.nanmedian(group.transfer_s))
        share = 1.0 / len(group.ranks) if group.kind == "p2p" else 1.0  # the one that receives waits
        into = between if is_between_units(group.kind, group.calls_per_step, facts.units) else once
        into[:, group.ranks] += share * seconds[:, None]
    return between, once


def is_between_units(kind: str, calls_per_step: float, units: int) -> bool:
    """Whether a group exchanges something for every unit."""
    return kind == "p2p" or calls_per_step >= 2 * units


def step_seconds(schedule: Schedule, own: F64, between: F64, once: F64) -> F64:
    """What each step takes, by the model. ``own``: (kind, step, rank)."""
    filled = np.nan_to_num(own)
    others = [place for place in range(len(OWN)) if place != COMPUTE]
    ahead = sum(filled[place] * schedule.leads[place] for place in others)
    behind = sum(filled[place] * (1 - schedule.leads[place]) for place in others) + once
    work = filled[COMPUTE] + between
    if not schedule.piped:
        return np.asarray((ahead + work + behind).max(axis=1))
    lanes = [
        _lane([(ahead[:, cell], work[:, cell], behind[:, cell]) for cell in column], schedule.units)
        for column in zip(*schedule.cells, strict=True)
    ]
    return np.asarray(np.max(lanes, axis=0))


def _lane(stages: list[tuple[F64, F64, F64]], units: int) -> F64:
    """One lane's steps: of each stage what comes ahead, the work and what comes behind, of its ranks."""
    unit = [work.max(axis=1) / units for _, work, _ in stages]
    ready = stages[0][0].max(axis=1)
    begins = [ready]
    for place, (before, _, _) in enumerate(stages[1:]):
        ready = np.maximum(before.max(axis=1), ready + FORWARD * unit[place])
        begins.append(ready)
    end = total = np.zeros_like(ready)
    behind_it = np.zeros_like(ready)  # one unit of all the stages behind
    for place in reversed(range(len(stages))):
        ahead = min(len(stages) - 1 - place, units - 1)  # forwards before the first backward
        waits = np.maximum(behind_it - ahead * FORWARD * unit[place], 0.0)
        end = np.maximum(begins[place] + units * unit[place] + waits, end + (1 - FORWARD) * unit[place])
        total = np.maximum(total, end + stages[place][2].max(axis=1))
        behind_it = behind_it + unit[place]
    return np.asarray(total)


def _natural(name: str) -> list[tuple[bool, int, str]]:
    """Sorts ``stage 10`` behind ``stage 9``."""
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.split(r"(\d+)", name)]


class Replay(Struct, frozen=True, kw_only=True):
    """The job as it was, and `saved_s` of a change."""

    schedule: Schedule
    own: F64
    between: F64
    once: F64
    as_it_was_s: F64
    duration_s: F64

    def saved_s(self, *, own: F64 | None = None, between: F64 | None = None, once: F64 | None = None) -> F64:
        """Of each step, no more than it took."""
        changed = step_seconds(
            self.schedule,
            self.own if own is None else own,
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
    return Replay(
        schedule=schedule,
        own=facts.own,
        between=between,
        once=once,
        as_it_was_s=step_seconds(schedule, facts.own, between, once),
        duration_s=facts.duration_s,
    )
