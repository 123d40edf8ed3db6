"""Equal rows to one row with a count: the library's ``fold_rows``. Pure."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from otelgpu.model.codes import Codes, bounds
from otelgpu.model.operations import OPERATION, OperationKind, Operations
from otelgpu.spanwriter.library import Folding, Runs, library

Compared = Mapping[str, Iterable[int]]
"""Columns, and the kinds of rows that have them; none: all."""

_KINDS: Final = max(OperationKind) + 1
_EVERY_ROW_STAYS: Final = -1
RUN_COLUMNS: Final[Mapping[str, Any]] = {
    "count": np.int64,
    **dict.fromkeys(("end_ns", "least_ns", "most_ns"), np.uint64),
    "merged": np.bool_,
}
"""The columns of ``struct runs``."""


class FoldedRows(Struct, frozen=True, kw_only=True):
    """n rows. ``runs``: by :data:`RUN_COLUMNS`. ``first``: the positions of the first call of each."""

    operations: Operations
    first: npt.NDArray[np.int64]
    runs: Mapping[str, npt.NDArray[Any]]


class Folder:
    """Rows are equal where all columns of ``same`` are, alike where those of ``alike`` are, which are among them.

    ``sized``: the kinds whose ``size_bytes`` adds up.
    """

    def __init__(self, same: Compared, alike: Compared, sized: Iterable[int]) -> None:
        self._same, self._alike = _masks(same), _masks(alike)
        self._sized = sum(1 << kind for kind in sized)

    def fold(
        self,
        rows: Operations,
        groups: Codes,
        runs: Mapping[str, npt.NDArray[Any]] | None,
        *,
        limit: int,
        runs_kept: int | None,
    ) -> FoldedRows:
        """At least one row; each group's, by start and then as they came, those beyond ``limit`` merged and last.

        ``runs``: what rows are that were folded before. ``runs_kept``: so many runs of a group stay, of more all equal
        rows become one; None: every row stays. Raises ValueError for a group below 0.
        """
        low, high = bounds(groups)
        if low < 0:
            raise ValueError(f"a group below 0: {low}")
        rows, groups = np.ascontiguousarray(rows), np.ascontiguousarray(groups, dtype=np.int64)
        kept = {} if runs is None else {n: np.ascontiguousarray(runs[n], t) for n, t in RUN_COLUMNS.items()}
        size = OPERATION.fields["size_bytes"][1] if OPERATION.fields is not None else 0
        folding = Folding(
            rows=rows.ctypes.data,
            group=groups.ctypes.data,
            same=self._same.ctypes.data,
            alike=self._alike.ctypes.data,
            n=len(rows),
            groups=high + 1,
            limit=max(limit, 0),
            runs_kept=_EVERY_ROW_STAYS if runs_kept is None else runs_kept,
            sized=self._sized,
            kinds=_KINDS,
            size_offset=size,
        )
        if kept:
            folding.before = ctypes.pointer(_pointers(kept))
        made, first = np.empty(len(rows), dtype=OPERATION), np.empty(len(rows), dtype=np.int64)
        columns = {name: np.empty(len(rows), dtype=form) for name, form in RUN_COLUMNS.items()}
        found: Any = library()
        count = found.fold_rows(
            ctypes.byref(folding), made.ctypes.data, first.ctypes.data, ctypes.byref(_pointers(columns))
        )
        if count < 0:
            raise MemoryError
        return FoldedRows(
            operations=made[:count],
            first=first[:count],
            runs={name: column[:count] for name, column in columns.items()},
        )


def _pointers(columns: Mapping[str, npt.NDArray[Any]]) -> Runs:
    return Runs(**{name: column.ctypes.data for name, column in columns.items()})


def _masks(columns: Compared) -> npt.NDArray[np.uint8]:
    """The bits that are compared of rows of each kind, the last ones of those that are of none."""
    masks = np.zeros((_KINDS + 1, OPERATION.itemsize), dtype=np.uint8)
    assert OPERATION.fields is not None
    for name, kinds in columns.items():
        form, offset = OPERATION.fields[name][:2]
        masks[list(kinds) or slice(None), offset : offset + form.itemsize] = 0xFF
    return masks
