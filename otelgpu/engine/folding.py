"""Equal calls become one row with a count, so that a trace can be read and the volume of spans is bounded.

In: operations and the group (a parent span) of each. Out: rows of :class:`Folded`. Two calls are equal when
the columns of :data:`SAME` are, alike when those of :data:`ALIKE` are; a run is equal calls of one thread that
follow one another. Columns share their bytes by kind, so each is compared for the kinds that have it. Sums
are exact: over the rows of a group, ``count`` adds up to the calls that went in.

A group of few runs keeps them: what came after what. One of more than :data:`RUNS` is a loop as a rule, whose calls
take turns; there a row is all equal calls of a thread, whatever lies between them. Example: 40 layers of 12 kernels are
480 launches, 480 runs and 12 rows.

Example: a thread launches a, a, b, a. Folded with room: a 2, b 1, a 1. With room for two rows: a 2, b 1, and
one merged row a 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from otelgpu.model.codes import Codes, dense, distinct, mix, order_of
from otelgpu.model.context import Context
from otelgpu.model.ids import GOLDEN
from otelgpu.model.operations import OperationKind, Operations, columns_of
from otelgpu.model.operations import concatenate as concatenate_operations
from otelgpu.spanwriter.folder import Folder
from otelgpu.spanwriter.library import library

_Kinds = tuple[OperationKind, ...]

_ALL: Final[_Kinds] = ()
_LAUNCH: Final = (OperationKind.LAUNCH,)
SIZED: Final = (OperationKind.COPY, OperationKind.ALLOCATION, OperationKind.SET, OperationKind.MAPPING)
"""Kinds whose ``size_bytes`` is a size, which adds up."""

ALIKE: Final[Mapping[str, _Kinds]] = {
    **dict.fromkeys(("tid", "family", "kind", "api", "status", "context_source", "device"), _ALL),
    "name": _LAUNCH,
    "direction": (OperationKind.COPY,),
    "memory": (OperationKind.ALLOCATION,),
}
SAME: Final[Mapping[str, _Kinds]] = {
    **ALIKE,
    "stream": _ALL,
    "shared_bytes": _LAUNCH,
    "grid": _LAUNCH,
    "block": _LAUNCH,
}
"""Columns that are compared, and the kinds that have them (none: all)."""


RUNS: Final = 32
"""Of a group: so many are read one after the other; of more, calls are folded whatever lies between them."""


class Runs(Struct, frozen=True, kw_only=True):
    """What n rows are beside the first of their calls: columns of shape (n,)."""

    count: npt.NDArray[np.int64]
    end_ns: npt.NDArray[np.uint64]  # of the last call to end
    least_ns: npt.NDArray[np.uint64]  # the shortest call
    most_ns: npt.NDArray[np.uint64]  # the longest
    merged: npt.NDArray[np.bool_]  # of calls that are alike only: those beyond the bound, summed up

    def take(self, rows: npt.NDArray[Any]) -> Runs:
        """The given rows, in the given order."""
        return Runs(**{name: getattr(self, name)[rows] for name in _RUN_COLUMNS})


_RUN_COLUMNS: Final = Runs.__struct_fields__


class Folded(Struct, frozen=True, kw_only=True):
    """n rows in columns, each of shape (n,).

    ``operations`` are the first call of each row, with ``duration_ns`` and, where the kind has one,
    ``size_bytes`` replaced by sums. ``runs`` is None where every row is a call as it came.
    """

    operations: Operations
    group: npt.NDArray[np.int64]
    runs: Runs | None

    def __len__(self) -> int:
        return len(self.group)

    @property
    def count(self) -> npt.NDArray[np.int64]:
        """Calls of each row."""
        return self.as_runs().count

    @property
    def end_ns(self) -> npt.NDArray[np.uint64]:
        """When the last call of each row ended."""
        return _ends(self.operations) if self.runs is None else self.runs.end_ns

    @property
    def merged(self) -> npt.NDArray[np.bool_]:
        """Whether a row is of calls that are alike and no more: those beyond the bound, summed up."""
        return self.as_runs().merged

    def as_runs(self) -> Runs:
        """The runs; made up where every row is a call as it came."""
        if self.runs is not None:
            return self.runs
        return Runs(
            count=np.ones(len(self), dtype=np.int64),
            end_ns=_ends(self.operations),
            least_ns=self.operations["duration_ns"],
            most_ns=self.operations["duration_ns"],
            merged=np.zeros(len(self), dtype=np.bool_),
        )


class Parents(Struct, frozen=True, kw_only=True):
    """What ``Folded.group`` indexes: the span that a group's operations go under. Columns of length m."""

    trace_id: npt.NDArray[np.uint8]  # (m, 16)
    span_id: npt.NDArray[np.uint8]  # (m, 8)
    flags: npt.NDArray[np.uint32]  # (m,)

    def context(self, row: int) -> Context:
        """One of them."""
        return Context(self.trace_id[row].tobytes(), self.span_id[row].tobytes(), int(self.flags[row]))


def _ends(operations: Operations) -> npt.NDArray[np.uint64]:
    ends: npt.NDArray[np.uint64] = operations["start_ns"] + operations["duration_ns"]
    return ends


def unfolded(operations: Operations, group: npt.NDArray[np.int64]) -> Folded:
    """Each operation as a run of one."""
    return Folded(operations=operations, group=group, runs=None)


def fold(work: Folded, *, limit: int, runs: bool = True) -> Folded:
    """Fold each group's calls, into at most ``limit`` rows a group; what was folded before may be folded on.

    Rows beyond the limit are merged with what is alike in their group, whatever lies between them
    (``merged``). With ``runs`` False every row stays a row of its own, within the limit. Groups come in their order,
    and their rows in that of their first calls (of those that start at once, as they came), merged ones last.
    """
    if len(work) < 2:
        return work
    groups, size = dense(work.group, int(work.group.max()) + 1)
    if not runs and np.bincount(groups).max() <= limit:
        return work
    if library() is None:
        return _by_numpy(work, groups, size, limit=limit, runs=runs)
    before = None if work.runs is None else {name: getattr(work.runs, name) for name in _RUN_COLUMNS}
    folded = _folder().fold(work.operations, groups, before, limit=limit, runs_kept=RUNS if runs else None)
    return Folded(operations=folded.operations, group=work.group[folded.first], runs=Runs(**folded.runs))


@cache
def _folder() -> Folder:
    return Folder(SAME, ALIKE, SIZED)


class _Rows(NamedTuple):
    """Rows with the position of the first call of each among those that came."""

    folded: Folded
    first: Codes

    def take(self, rows: Codes) -> _Rows:
        return _Rows(take(self.folded, rows), self.first[rows])

    def in_order(self, *before: npt.NDArray[Any]) -> Codes:
        """By group, these columns, start, and as they came."""
        return np.lexsort((self.first, self.folded.operations["start_ns"], *before, self.folded.group))


def _by_numpy(work: Folded, groups: Codes, size: int, *, limit: int, runs: bool) -> Folded:
    """The same without the library, and what it is compared with."""
    order = _in_time(work, groups, size)
    rows = _Rows(take(work, order), order)
    if runs:
        rows = _by_call(_sum(rows, _changes(rows.folded, SAME)))
    rows = rows.take(rows.in_order())
    firsts, lengths = _groups_of(rows)
    if lengths.max() <= limit:
        return rows.folded
    rank = np.arange(len(rows.folded)) - np.repeat(firsts, lengths)
    merged = _merge(rows.take(np.flatnonzero(rank >= limit)))
    both = _both(rows.take(np.flatnonzero(rank < limit)), merged)
    is_beyond = np.arange(len(both.folded)) >= len(both.folded) - len(merged.folded)
    return take(both.folded, both.in_order(is_beyond))


def _groups_of(rows: _Rows) -> tuple[Codes, Codes]:
    """The first row of each group, and how many it has: ``rows`` are in the order of their groups."""
    group = rows.folded.group
    firsts = np.flatnonzero(np.r_[True, group[1:] != group[:-1]])
    return firsts, np.diff(np.r_[firsts, len(group)])


def _both(some: _Rows, others: _Rows) -> _Rows:
    return _Rows(concatenate([some.folded, others.folded]), np.concatenate([some.first, others.first]))


def _in_time(work: Folded, groups: Codes, size: int) -> Codes:
    """The order by group, thread and start."""
    tids, starts = columns_of(work.operations, ("tid", "start_ns")).values()
    values, codes = distinct(tids)
    threads, count = mix([(groups, size), (codes, len(values))], len(work))
    by_start = np.argsort(starts, kind="stable")  # the fastest for what comes in long ascending runs
    return by_start[order_of(threads[by_start], count)]


def take(folded: Folded, rows: npt.NDArray[np.intp]) -> Folded:
    """The given rows, in the given order."""
    runs = None if folded.runs is None else folded.runs.take(rows)
    return Folded(operations=folded.operations.take(rows), group=folded.group[rows], runs=runs)


def concatenate(parts: Sequence[Folded]) -> Folded:
    """One after the other; at least one part."""
    runs: Runs | None = None
    if any(part.runs is not None for part in parts):
        several = [part.as_runs() for part in parts]
        runs = Runs(
            **{name: np.concatenate([getattr(each, name) for each in several]) for name in _RUN_COLUMNS}
        )
    return Folded(
        operations=concatenate_operations([part.operations for part in parts]),
        group=np.concatenate([part.group for part in parts]),
        runs=runs,
    )


@lru_cache
def _members(kinds: _Kinds) -> npt.NDArray[np.bool_]:
    """By kind, the last one for all beyond."""
    wanted = np.zeros(max(OperationKind) + 2, dtype=np.bool_)
    wanted[list(kinds)] = True
    return wanted


def _of_kinds(rows: Operations, kinds: _Kinds) -> npt.NDArray[np.bool_]:
    members = _members(kinds)
    found: npt.NDArray[np.bool_] = members[np.minimum(rows["kind"], len(members) - 1)]
    return found


def _changes(folded: Folded, columns: Mapping[str, _Kinds]) -> npt.NDArray[np.bool_]:
    """Where a row differs from the one before it, in group, in being merged, or in any of ``columns``."""
    rows = folded.operations
    having = {kinds: _of_kinds(rows, kinds)[1:] for kinds in set(columns.values()) if kinds}
    change = np.ones(len(rows), dtype=np.bool_)
    change[1:] = folded.group[1:] != folded.group[:-1]
    if folded.runs is not None:
        change[1:] |= folded.runs.merged[1:] != folded.runs.merged[:-1]
    for column, kinds in columns.items():
        values = rows[column]
        for part in values.T if values.ndim == 2 else (values,):
            differs = part[1:] != part[:-1]
            change[1:] |= differs & having[kinds] if kinds else differs
    return change


def _sum(rows: _Rows, change: npt.NDArray[np.bool_]) -> _Rows:
    """One row for each stretch that begins where ``change`` is set."""
    starts = np.flatnonzero(change)
    calls, before = rows.folded.operations, rows.folded.as_runs()
    first = calls.take(starts)
    first["duration_ns"] = np.add.reduceat(calls["duration_ns"], starts)
    sized = np.flatnonzero(_of_kinds(first, SIZED))
    first["size_bytes"][sized] = np.add.reduceat(calls["size_bytes"], starts)[sized]
    runs = Runs(
        count=np.add.reduceat(before.count, starts),
        end_ns=np.maximum.reduceat(before.end_ns, starts),
        least_ns=np.minimum.reduceat(before.least_ns, starts),
        most_ns=np.maximum.reduceat(before.most_ns, starts),
        merged=np.logical_or.reduceat(before.merged, starts),
    )
    return _Rows(Folded(operations=first, group=rows.folded.group[starts], runs=runs), rows.first[starts])


def _by_call(rows: _Rows) -> _Rows:
    """In groups of many runs one row for equal calls of a thread. ``rows`` are in the order of their groups."""
    _, lengths = _groups_of(rows)
    many = np.repeat(lengths > RUNS, lengths)
    if not many.any():
        return rows
    gathered = _gathered(rows.take(np.flatnonzero(many)), SAME)
    return _both(rows.take(np.flatnonzero(~many)), gathered)


def _merge(rows: _Rows) -> _Rows:
    """One row for what is alike in a group, whatever lay between."""
    runs = replace(rows.folded.as_runs(), merged=np.ones(len(rows.folded), dtype=np.bool_))
    return _gathered(_Rows(replace(rows.folded, runs=runs), rows.first), ALIKE)


def _gathered(rows: _Rows, columns: Mapping[str, _Kinds]) -> _Rows:
    """One row for what is equal in a group in these columns, whatever lay between."""
    calls = rows.folded.operations
    key = np.zeros(len(calls), dtype=np.uint64)
    for column, kinds in columns.items():
        values = calls[column]
        for part in values.T if values.ndim == 2 else (values,):
            words = np.where(_of_kinds(calls, kinds), part, 0) if kinds else part
            key = (
                key ^ words.astype(np.uint64)
            ) * GOLDEN  # two calls of one hash are seen to differ, and stay apart
            key ^= key >> np.uint64(32)
    ordered = rows.take(rows.in_order(key, rows.folded.as_runs().merged))
    return _sum(ordered, _changes(ordered.folded, columns))
