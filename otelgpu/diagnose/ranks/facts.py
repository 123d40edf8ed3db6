"""What the queries found, as arrays over (step, rank): the only thing that the rules look at. Pure.

In: the results of ``ranks``, ``own_time``, ``step_marks``, ``groups`` and ``transfers``, as columns. Out: `Facts`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from otelgpu.diagnose.ranks.marks import Marks
from otelgpu.diagnose.ranks.pipeline_places import stages_of
from otelgpu.diagnose.ranks.verdicts import MarkedSteps

F64 = npt.NDArray[np.float64]
Codes = npt.NDArray[np.intp]
Flags = npt.NDArray[np.bool_]
Columns = Mapping[str, npt.NDArray[Any]]
Query = Callable[..., Columns]
"""Runs one of the queries of this folder, by its name: ``own_time``; by name also what stands in braces in it."""

OWN: Final = ("compute", "input", "host", "file", "copy")
"""Kinds whose time is the rank's own."""
STEP: Final = "step"
_KINDS: Final = (*OWN, STEP, "exchange")
"""As ``own_time.sql`` numbers them."""
COMPUTE: Final = OWN.index("compute")
LEAST_RANKS: Final = 0.5
"""Share of the ranks that must have been seen in a step: at the ends of a recording some are missing."""
MOST_UNITS: Final = 30_000_000
"""Values of (unit, step, rank) that are looked at; beyond, units are taken together."""
_BETWEEN: Final = "\x1f"
"""A group's name and its kind, as one key."""
REPEATED: Final = 3.0
"""A rank whose step lasts so many times longer than the same step of the others: it was restarted and did it twice."""


class Group(Struct, frozen=True, kw_only=True):
    """``transfer_s``: of each step, what its calls took once all had come; NaN: not seen of all members.

    ``waited_s``: of all members together; NaN too where any rank did something beside training.
    ``came_last``: how often each of ``ranks`` was the last, of ``calls``.
    """

    name: str
    kind: str  # coll or p2p
    ranks: Codes  # indices into the ranks of `Facts`
    missing: int  # members of which nothing was seen
    calls_per_step: float
    calls: int
    transfer_s: F64
    waited_s: F64
    came_last: Codes


class Facts(Struct, frozen=True, kw_only=True):
    """S steps of R ranks. ``own``: (kind of `OWN`, step, rank), seconds; NaN where the rank was not seen in the step.

    A rank is taken as not seen where it did something beside training (``marked``), and a step in which most did so is
    none of these.

    ``moved``: bytes that were copied to or read for a step: how large its batch was; 0: not known. ``step_s``: what a
    step took by the rank's clock; ``begin_s`` and ``end_s``: of each step, the medians of the ranks' clocks. ``leads``:
    (kind, rank), whether it comes before the step's first computing. ``computations``: (step, rank), operations of
    computing that the input has. ``compute_units``: (unit, step, rank), what of it was for each unit (microbatch).
    ``calls``: the result of ``groups``; ``host_of``: by global rank; both also have
    the ranks of which no step is known.
    """

    steps: npt.NDArray[np.int64]
    ranks: npt.NDArray[np.int64]
    hosts: Sequence[str]
    roles: Sequence[str]
    lanes: Sequence[str]
    kinds: frozenset[str]
    own: F64
    moved: F64
    step_s: F64
    begin_s: F64
    end_s: F64
    leads: Flags
    computations: F64
    compute_units: F64
    groups: Sequence[Group]
    calls: Columns
    host_of: Mapping[int, str]
    limits: Sequence[str]
    marked: Sequence[MarkedSteps]

    @property
    def units(self) -> int:
        """Of a step."""
        return len(self.compute_units)

    @property
    def duration_s(self) -> F64:
        """Of each step: the median over the ranks; NaN of one that none ended."""
        return nanmedian(self.step_s, axis=1)

    def of_same(self, names: Sequence[str]) -> list[Codes]:
        """Ranks by their host, role or lane."""
        codes = np.unique(np.asarray(names, dtype=object), return_inverse=True)[1]
        return [np.flatnonzero(codes == code) for code in range(codes.max(initial=-1) + 1)]


def gather(query: Query) -> Facts:
    """Run the queries. Without any operation of a step: no steps and no ranks."""
    places, times, calls = query("ranks"), query("own_time"), query("groups")
    ranks = np.unique(times["rank"]).astype(np.int64)
    steps = np.unique(times["step"]).astype(np.int64)
    cube = _Cube(times, steps, ranks)
    marks = Marks(query("step_marks"), cube.seen, steps, ranks)
    beside = marks.cells(cube.seen)
    trained = cube.seen & ~beside
    kept = trained.mean(axis=1) >= LEAST_RANKS if len(ranks) else np.zeros(0, dtype=np.bool_)
    row = {int(rank): place for place, rank in enumerate(places["rank"])}
    of = [row[int(rank)] for rank in ranks]
    limits = _limits(places, of, ranks)
    step_s, repeated = cube.step_s()
    if repeated.any():
        names = ", ".join(str(rank) for rank in ranks[repeated.any(axis=0)][:8])
        limits.append(
            f"{int(repeated.sum())} steps were left out that a rank did more than once (ranks {names})"
        )
    marked = marks.costs(nanmedian(step_s, axis=1))
    limits += marks.limits()
    lost = ~trained | repeated
    own = np.stack([np.where(lost, np.nan, cube.seconds(kind)) for kind in OWN])
    moved = np.where(lost, 0.0, cube.moved())
    groups = _groups(calls, query("transfers"), steps, ranks, kept, np.asarray(~beside.any(axis=1)))
    roles, lanes = _roles_and_lanes(places, of, groups)
    last_unit = times["last_unit"][times["kind_code"] == COMPUTE].max(initial=0)
    compute_units = _units(query, int(last_unit) + 1, own[COMPUTE], steps, ranks, groups)
    return Facts(
        steps=steps[kept],
        ranks=ranks,
        hosts=[str(places["host"][place]) for place in of],
        roles=roles,
        lanes=lanes,
        kinds=frozenset(_KINDS[code] for code in np.unique(times["kind_code"])),
        own=own[:, kept],
        moved=moved[kept],
        step_s=np.where(lost, np.nan, step_s)[kept],
        begin_s=cube.begin_s()[kept],
        end_s=cube.end_s()[kept],
        leads=cube.leads(),
        computations=cube.computations()[kept],
        compute_units=compute_units[:, kept],
        groups=groups,
        calls=calls,
        host_of={int(rank): str(host) for rank, host in zip(places["rank"], places["host"], strict=True)},
        limits=limits,
        marked=marked,
    )


def without_steps(facts: Facts, dropped: Flags) -> Facts:
    """The same of the other steps. ``dropped``: of each step."""
    if not dropped.any():
        return facts
    kept = ~dropped
    return replace(
        facts,
        steps=facts.steps[kept],
        own=facts.own[:, kept],
        moved=facts.moved[kept],
        step_s=facts.step_s[kept],
        begin_s=facts.begin_s[kept],
        end_s=facts.end_s[kept],
        computations=facts.computations[kept],
        compute_units=facts.compute_units[:, kept],
        groups=[
            replace(group, transfer_s=group.transfer_s[kept], waited_s=group.waited_s[kept])
            for group in facts.groups
        ],
    )


def _roles_and_lanes(
    places: Columns, of: Sequence[int], groups: Sequence[Group]
) -> tuple[list[str], list[str]]:
    """As the input names them; of a pipeline that it does not, by who sends to whom."""
    roles = [str(places["role"][place]) for place in of]
    lanes = [str(places["lane"][place]) for place in of]
    if not any(roles):
        pairs = [group.ranks.tolist() for group in groups if group.kind == "p2p" and len(group.ranks) == 2]
        found = stages_of(((one, other) for one, other in pairs), len(of))
        if pairs and found is not None:
            roles = [f"stage {stage}" for stage, _ in found]
            lanes = [name or f"lane {lane}" for name, (_, lane) in zip(lanes, found, strict=True)]
    return roles, [name or f"rank {places['rank'][place]}" for name, place in zip(lanes, of, strict=True)]


def _units(
    query: Query,
    units: int,
    compute: F64,
    steps: npt.NDArray[np.int64],
    ranks: npt.NDArray[np.int64],
    groups: Sequence[Group],
) -> F64:
    """As the input says; of a pipeline whose operations do not say their unit, alike, as many as it sends forward."""
    sent = [group.calls_per_step / 2 for group in groups if group.kind == "p2p"]
    alike = max(1, round(float(np.median(sent)))) if sent and units == 1 else 1
    if max(units, alike) * compute.size > MOST_UNITS:
        return compute[None]
    if units == 1:
        return np.repeat(compute[None] / alike, alike, axis=0)
    found = query("unit_compute")
    values = np.zeros((units, *compute.shape))
    at = found["unit"], np.searchsorted(steps, found["step"]), np.searchsorted(ranks, found["rank"])
    values[at] = found["seconds"]
    return np.where(np.isnan(compute), np.nan, values)


def _limits(places: Columns, of: Sequence[int], ranks: npt.NDArray[np.int64]) -> list[str]:
    moved = [
        rank
        for rank, place in zip(ranks, of, strict=True)
        if places["host"][place] != places["other_host"][place]
    ]
    if not moved:
        return []
    names = ", ".join(str(rank) for rank in moved[:8])
    return [f"ranks on two hosts: {names}: they were restarted elsewhere, or two jobs have the same name"]


class _Cube:
    """Results of ``own_time`` by (step, rank)."""

    def __init__(self, times: Columns, steps: npt.NDArray[np.int64], ranks: npt.NDArray[np.int64]) -> None:
        self._times = times
        self._step = np.searchsorted(steps, times["step"])
        self._rank = np.searchsorted(ranks, times["rank"])
        self._shape = len(steps), len(ranks)
        self.seen = np.zeros(self._shape, dtype=np.bool_)
        self.seen[self._step, self._rank] = True
        begin, end = np.full(self._shape, np.inf), np.full(self._shape, -np.inf)
        np.minimum.at(begin, (self._step, self._rank), times["begin_s"])
        np.maximum.at(end, (self._step, self._rank), times["end_s"])
        self._begin, self._end = (np.where(self.seen, each, np.nan) for each in (begin, end))

    def _filled(self, kind: str, column: str, nothing: float) -> F64:
        values = np.full(self._shape, nothing)
        wanted = self._times["kind_code"] == _KINDS.index(kind)
        values[self._step[wanted], self._rank[wanted]] = self._times[column][wanted]
        return values

    def seconds(self, kind: str) -> F64:
        return self._filled(kind, "seconds", 0.0)

    def moved(self) -> F64:
        """Of what feeds the step: the copies to the device, or else what the data loader read, or computing says."""
        for kind in ("copy", "input", "compute"):
            found = self._filled(kind, "moved", 0.0)
            if found.any():
                return found
        return np.zeros(self._shape)

    def computations(self) -> F64:
        return self._filled("compute", "operations", 0.0)

    def begin_s(self) -> F64:
        return nanmedian(self._begin, axis=1)

    def end_s(self) -> F64:
        return nanmedian(self._end, axis=1)

    def step_s(self) -> tuple[F64, Flags]:
        """What each step took, and which ones a rank did more than once.

        By the rank's operations ``step``; elsewise from its first operation in the step to the first in the next.
        """
        begin, extent = self._begin, self._end - self._begin
        said = self._filled(STEP, "seconds", np.nan)
        if np.isnan(said).all() and len(begin):
            said = extent.copy()
            to_next = np.where(self.seen[1:] & self.seen[:-1], begin[1:] - begin[:-1], np.nan)
            said[:-1] = np.where(np.isnan(to_next) | (to_next <= 0), extent[:-1], to_next)
        with np.errstate(invalid="ignore"):
            usual = nanmedian(extent, axis=1)[:, None]
            repeated = (extent > REPEATED * usual) | (self._filled(STEP, "operations", 1.0) > 1)
        return said, repeated

    def leads(self) -> Flags:
        """Which kinds begin before computing does, for each rank, in the median of its steps."""
        first = self._filled("compute", "begin_s", np.nan)
        ahead = np.ones((len(OWN), self._shape[1]), dtype=np.bool_)
        for place, kind in enumerate(OWN):
            behind = nanmedian(self._filled(kind, "begin_s", np.nan) - first, axis=0) > 0
            ahead[place] = ~behind
        return ahead


def nanmedian(values: F64, axis: int) -> F64:
    """The same as numpy's, and NaN of nothing without a warning."""
    empty = np.isnan(values).all(axis=axis, keepdims=True)
    found = np.nanmedian(np.where(empty, 0.0, values), axis=axis)
    return np.where(np.squeeze(empty, axis=axis), np.nan, found)


def _groups(
    members: Columns,
    transfers: Columns,
    steps: npt.NDArray[np.int64],
    ranks: npt.NDArray[np.int64],
    kept: Flags,
    plain: Flags,
) -> list[Group]:
    """A group of one rank tells nothing and is left out."""
    names = members["grp"].astype(str) + _BETWEEN + members["kind"].astype(str)
    keys, of_member = np.unique(names, return_inverse=True)
    of_row = np.searchsorted(keys, transfers["grp"].astype(str) + _BETWEEN + transfers["kind"].astype(str))
    order = np.argsort(of_row, kind="stable")
    bounds = np.searchsorted(of_row[order], np.arange(len(keys) + 1))
    member_order = np.argsort(of_member, kind="stable")
    member_bounds = np.searchsorted(of_member[member_order], np.arange(len(keys) + 1))
    found = []
    for place, key in enumerate(keys.tolist()):
        mine = member_order[member_bounds[place] : member_bounds[place + 1]]
        rows = order[bounds[place] : bounds[place + 1]]
        mine = mine[np.isin(members["rank"][mine], ranks)]
        if len(mine) < 2 or not len(rows):
            continue
        name, _, kind = key.rpartition(_BETWEEN)
        found.append(_group(name, kind, (members, mine), (transfers, rows), steps, ranks, kept, plain))
    return found


def _group(
    name: str,
    kind: str,
    members: tuple[Columns, Codes],
    transfers: tuple[Columns, Codes],
    steps: npt.NDArray[np.int64],
    ranks: npt.NDArray[np.int64],
    kept: Flags,
    plain: Flags,
) -> Group:
    who = np.searchsorted(ranks, np.sort(members[0]["rank"][members[1]]))
    rows = {key: values[transfers[1]] for key, values in transfers[0].items()}
    size = len(who)
    at = np.searchsorted(steps, rows["step"])
    transfer, waited = np.zeros(len(steps)), np.zeros(len(steps))
    np.add.at(transfer, at, rows["transfer_s"])
    np.add.at(waited, at, rows["waited_s"])
    whole = np.full(len(steps), np.inf)
    np.minimum.at(whole, at, rows["least_members"])
    seen = np.isfinite(whole) & (whole >= size)
    last = np.zeros(len(ranks), dtype=np.intp)
    np.add.at(last, np.searchsorted(ranks, rows["last_rank"]), rows["calls"].astype(np.intp))
    calls = int(rows["calls"].sum())
    return Group(
        name=name,
        kind=kind,
        ranks=who,
        missing=max(0, int(members[0]["members"][members[1]].max()) - size),
        calls_per_step=calls / max(1, len(np.unique(at))),
        calls=calls,
        transfer_s=np.where(seen, transfer, np.nan)[kept],
        waited_s=np.where(seen & plain, waited, np.nan)[kept],
        came_last=last[who],
    )
