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
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from otelgpu.model.codes import Codes, dense, distinct, mix, order_of
from otelgpu.model.context import Context
from otelgpu.model.ids import GOLDEN
from otelgpu.model.operations import OperationKind, Operations, columns_of
from otelgpu.model.operations import concatenate as concatenate_operations

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
    (``merged``). With ``runs`` False every row stays a row of its own, within the limit.
    """
    if not len(work):
        return work
    groups, size = dense(work.group, int(work.group.max()) + 1)
    if not runs and np.bincount(groups).max() <= limit:
        return work
    ordered = take(work, _in_time(work, groups, size))
    folded = _by_call(_sum(ordered, _changes(ordered, SAME))) if runs else ordered
    first_of_group = np.flatnonzero(np.r_[True, folded.group[1:] != folded.group[:-1]])
    lengths = np.diff(np.r_[first_of_group, len(folded)])
    if lengths.max() <= limit:
        return folded
    # Rank by time within the group: the earliest runs keep their detail, whatever their thread.
    by_time = np.lexsort((folded.operations["start_ns"], folded.group))
    rank = np.empty(len(folded), dtype=np.int64)
    rank[by_time] = np.arange(len(folded)) - np.repeat(first_of_group, lengths)
    beyond = np.flatnonzero(rank >= limit)
    return concatenate([take(folded, np.flatnonzero(rank < limit)), _merge(take(folded, beyond))])


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
    wanted = np.zeros(max(OperationKind) + 1, dtype=np.bool_)
    wanted[list(kinds)] = True
    return wanted


def _of_kinds(rows: Operations, kinds: _Kinds) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = _members(kinds)[rows["kind"]]
    return found


def _changes(folded: Folded, columns: Mapping[str, _Kinds]) -> npt.NDArray[np.bool_]:
    """Where a row differs from the one before it, in group or in any of ``columns``."""
    rows = folded.operations
    having = {kinds: _of_kinds(rows, kinds)[1:] for kinds in set(columns.values()) if kinds}
    change = np.ones(len(rows), dtype=np.bool_)
    change[1:] = folded.group[1:] != folded.group[:-1]
    for column, kinds in columns.items():
        values = rows[column]
        for part in values.T if values.ndim == 2 else (values,):
            differs = part[1:] != part[:-1]
            change[1:] |= differs & having[kinds] if kinds else differs
    return change


def _sum(folded: Folded, change: npt.NDArray[np.bool_]) -> Folded:
    """One row for each stretch that begins where ``change`` is set."""
    starts = np.flatnonzero(change)
    rows = folded.operations
    first = rows.take(starts)
    first["duration_ns"] = np.add.reduceat(rows["duration_ns"], starts)
    sized = np.flatnonzero(_of_kinds(first, SIZED))
    first["size_bytes"][sized] = np.add.reduceat(rows["size_bytes"], starts)[sized]
    before = folded.as_runs()
    runs = Runs(
        count=np.add.reduceat(before.count, starts),
        end_ns=np.maximum.reduceat(before.end_ns, starts),
        least_ns=np.minimum.reduceat(before.least_ns, starts),
        most_ns=np.maximum.reduceat(before.most_ns, starts),
        merged=np.logical_or.reduceat(before.merged, starts),
    )
    return Folded(operations=first, group=folded.group[starts], runs=runs)


def _by_call(folded: Folded) -> Folded:
    """In groups of many runs one row for equal calls of a thread. ``folded`` is ordered by group, and so is this."""
    begins = np.flatnonzero(np.r_[True, folded.group[1:] != folded.group[:-1]])
    lengths = np.diff(np.r_[begins, len(folded)])
    many = np.repeat(lengths > RUNS, lengths)
    if not many.any():
        return folded
    some = _gathered(take(folded, np.flatnonzero(many)), SAME)
    both = concatenate([take(folded, np.flatnonzero(~many)), some])
    return take(both, np.lexsort((both.operations["start_ns"], both.group)))


def _merge(folded: Folded) -> Folded:
    """One row for what is alike in a group, whatever lay between."""
    merged = _gathered(folded, ALIKE)
    return replace(merged, runs=replace(merged.as_runs(), merged=np.ones(len(merged), dtype=np.bool_)))


def _gathered(folded: Folded, columns: Mapping[str, _Kinds]) -> Folded:
    """One row for what is equal in a group in these columns, whatever lay between."""
    rows = folded.operations
    key = np.zeros(len(rows), dtype=np.uint64)
    for column, kinds in columns.items():
        values = rows[column]
        for part in values.T if values.ndim == 2 else (values,):
            words = np.where(_of_kinds(rows, kinds), part, 0) if kinds else part
            key = (
                key ^ words.astype(np.uint64)
            ) * GOLDEN  # two calls of one hash are seen to differ, and stay apart
            key ^= key >> np.uint64(32)
    ordered = take(folded, np.lexsort((rows["start_ns"], key, folded.as_runs().merged, folded.group)))
    return _sum(ordered, _changes(ordered, columns))
