"""Runs of equal calls become one row with a count, so that the volume of spans is bounded.

In: operations and the group (a parent span) of each. Out: rows of :class:`Folded`. Two calls are equal when
the columns of :data:`SAME` are, alike when those of :data:`ALIKE` are; a run is equal calls of one thread that
follow one another. Columns share their bytes by kind, so each is compared for the kinds that have it. Sums
are exact: over the rows of a group, ``count`` adds up to the calls that went in.

Example: a thread launches a, a, b, a. Folded with room: a 2, b 1, a 1. With room for two runs: a 2, b 1, and
one merged row a 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from otelgpu.model.codes import Codes, dense, distinct, mix, order_of
from otelgpu.model.operations import OperationKind, Operations
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Folded:
    """n runs in columns, each of shape (n,).

    ``operations`` are the first call of each run, with ``duration_ns`` and, where the kind has one,
    ``size_bytes`` replaced by sums.
    """

    operations: Operations
    group: npt.NDArray[np.int64]
    count: npt.NDArray[np.int64]
    end_ns: npt.NDArray[np.uint64]  # of the last call to end
    merged: npt.NDArray[np.bool_]  # not one run: calls beyond the bound, summed up
    single: bool = False  # every row is a call as it came

    def __len__(self) -> int:
        return len(self.count)


def unfolded(operations: Operations, group: npt.NDArray[np.int64]) -> Folded:
    """Each operation as a run of one."""
    return Folded(
        operations=operations,
        group=group,
        count=np.ones(len(operations), dtype=np.int64),
        end_ns=operations["start_ns"] + operations["duration_ns"],
        merged=np.zeros(len(operations), dtype=np.bool_),
        single=True,
    )


def fold(work: Folded, *, limit: int, runs: bool = True) -> Folded:
    """Fold each group's calls into runs, at most ``limit`` a group; what was folded before may be folded on.

    Runs beyond the limit are merged with what is alike in their group, whatever lies between them
    (``merged``). With ``runs`` False every row stays a row of its own, within the limit.
    """
    if not len(work):
        return work
    groups, size = dense(work.group, int(work.group.max()) + 1)
    if not runs and np.bincount(groups).max() <= limit:
        return work
    ordered = take(work, _in_time(work, groups, size))
    folded = _sum(ordered, _changes(ordered, SAME)) if runs else ordered
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
    values, tids = distinct(np.ascontiguousarray(work.operations["tid"]))
    threads, count = mix([(groups, size), (tids, len(values))], len(work))
    by_start = np.argsort(work.operations["start_ns"], kind="stable")
    return by_start[order_of(threads[by_start], count)]


def take(folded: Folded, rows: npt.NDArray[np.intp]) -> Folded:
    """The given rows, in the given order."""
    if folded.single:  # the other columns follow from the operations
        return unfolded(folded.operations.take(rows), folded.group[rows])
    return Folded(
        operations=folded.operations.take(rows),
        group=folded.group[rows],
        count=folded.count[rows],
        end_ns=folded.end_ns[rows],
        merged=folded.merged[rows],
    )


def concatenate(parts: Sequence[Folded]) -> Folded:
    """One after the other; at least one part."""
    return Folded(
        operations=concatenate_operations([part.operations for part in parts]),
        group=np.concatenate([part.group for part in parts]),
        count=np.concatenate([part.count for part in parts]),
        end_ns=np.concatenate([part.end_ns for part in parts]),
        merged=np.concatenate([part.merged for part in parts]),
    )


def _of_kinds(rows: Operations, kinds: _Kinds) -> npt.NDArray[np.bool_]:
    wanted = np.zeros(max(OperationKind) + 1, dtype=np.bool_)
    wanted[list(kinds)] = True
    found: npt.NDArray[np.bool_] = wanted[rows["kind"]]
    return found


def _changes(folded: Folded, columns: Mapping[str, _Kinds]) -> npt.NDArray[np.bool_]:
    """Where a row differs from the one before it, in group or in any of ``columns``."""
    rows = folded.operations
    having = {kinds: _of_kinds(rows, kinds)[1:] for kinds in set(columns.values()) if kinds}
    change = np.ones(len(rows), dtype=np.bool_)
    change[1:] = folded.group[1:] != folded.group[:-1]
    for column, kinds in columns.items():
        differs = rows[column][1:] != rows[column][:-1]
        differs = differs.any(axis=1) if differs.ndim == 2 else differs
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
    return Folded(
        operations=first,
        group=folded.group[starts],
        count=np.add.reduceat(folded.count, starts),
        end_ns=np.maximum.reduceat(folded.end_ns, starts),
        merged=np.logical_or.reduceat(folded.merged, starts),
    )


def _merge(folded: Folded) -> Folded:
    """One row for what is alike in a group, whatever lay between."""
    rows = folded.operations
    keys: list[npt.NDArray[Any]] = [
        np.where(_of_kinds(rows, kinds), rows[column], 0) if kinds else rows[column]
        for column, kinds in ALIKE.items()
    ]
    ordered = take(folded, np.lexsort((rows["start_ns"], *keys, folded.group)))
    merged = _sum(ordered, _changes(ordered, ALIKE))
    merged.merged[:] = True
    return merged
