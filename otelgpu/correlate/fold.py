"""Runs of equal calls become one row with a count, so that the volume of spans is bounded.

In: operations and the group (a parent span) of each. Out: rows of :data:`FOLDED`. Two calls are equal when
the columns of :data:`SAME` are, alike when those of :data:`ALIKE` are; a run is equal calls of one thread that
follow one another. Sums are exact: over the rows of a group, ``count`` adds up to the calls that went in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from otelgpu.model.operations import Operations
from otelgpu.model.operations import concatenate as concatenate_operations

ALIKE: Final = ("tid", "family", "kind", "api", "name", "status", "direction", "context_source")
SAME: Final = (*ALIKE, "stream", "shared_bytes", "grid", "block")


@dataclass(frozen=True, slots=True, kw_only=True)
class Folded:
    """n runs in columns, each of shape (n,).

    ``operations`` are the first call of each run, with ``size_bytes`` and ``duration_ns`` replaced by sums.
    """

    operations: Operations
    group: npt.NDArray[np.int64]
    count: npt.NDArray[np.int64]
    end_ns: npt.NDArray[np.uint64]  # of the last call to end
    merged: npt.NDArray[np.bool_]  # not one run: calls beyond the bound, summed up

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
    )


def fold(work: Folded, *, limit: int, runs: bool = True) -> Folded:
    """Fold each group's calls into runs, at most ``limit`` a group; what was folded before may be folded on.

    Runs beyond the limit are merged with what is alike in their group, whatever lies between them
    (``merged``). With ``runs`` False every row stays a row of its own, within the limit.
    """
    if not len(work):
        return work
    rows = work.operations
    ordered = take(work, np.lexsort((rows["start_ns"], rows["tid"], work.group)))
    folded = _sum(ordered, _changes(ordered, SAME)) if runs else ordered
    first_of_group = np.flatnonzero(np.r_[True, folded.group[1:] != folded.group[:-1]])
    lengths = np.diff(np.r_[first_of_group, len(folded)])
    # Rank by time within the group: the earliest runs keep their detail, whatever their thread.
    by_time = np.lexsort((folded.operations["start_ns"], folded.group))
    rank = np.empty(len(folded), dtype=np.int64)
    rank[by_time] = np.arange(len(folded)) - np.repeat(first_of_group, lengths)
    beyond = np.flatnonzero(rank >= limit)
    if not len(beyond):
        return folded
    return concatenate([take(folded, np.flatnonzero(rank < limit)), _merge(take(folded, beyond))])


def take(folded: Folded, rows: npt.NDArray[np.intp]) -> Folded:
    """The given rows, in the given order."""
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


def _changes(folded: Folded, columns: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Where a row differs from the one before it, in group or in any of ``columns``."""
    rows = folded.operations
    change = np.ones(len(rows), dtype=np.bool_)
    change[1:] = folded.group[1:] != folded.group[:-1]
    for column in columns:
        differs = rows[column][1:] != rows[column][:-1]
        change[1:] |= differs.any(axis=1) if differs.ndim == 2 else differs
    return change


def _sum(folded: Folded, change: npt.NDArray[np.bool_]) -> Folded:
    """One row for each stretch that begins where ``change`` is set."""
    starts = np.flatnonzero(change)
    rows = folded.operations
    first = rows.take(starts)
    for column in ("size_bytes", "duration_ns"):
        first[column] = np.add.reduceat(rows[column], starts)
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
    keys = [rows[column] for column in ALIKE]
    ordered = take(folded, np.lexsort((rows["start_ns"], *keys, folded.group)))
    merged = _sum(ordered, _changes(ordered, ALIKE))
    merged.merged[:] = True
    return merged
