"""Sums of operations for the spans above them: ``cuda.launch.calls`` and the like, from the families' tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from otelgpu.engine.contract import OperationDecoder
from otelgpu.engine.operation_signals import OperationSignals, OperationTotal
from otelgpu.model.operations import OperationKind, Operations, columns_of
from otelgpu.model.spans import Attribute

_KINDS: Final = max(OperationKind) + 1
_NONE: Final = np.zeros(0, dtype=np.intp)
_HALF: Final = np.uint64(32)
_LOW: Final = np.uint64(0xFFFF_FFFF)


class Totals:
    """The summary columns of a session's families, in a fixed order."""

    def __init__(self, families: Sequence[tuple[OperationDecoder, OperationSignals]]) -> None:
        self._totals: list[OperationTotal] = []
        self._columns: dict[tuple[int, int], list[tuple[int, Any]]] = {}  # by family and kind, plain numbers
        for family, (_, signals) in enumerate(families):
            for total in signals.summaries:
                self._columns.setdefault((family, int(total.kind)), []).append(
                    (len(self._totals), total.value)
                )
                self._totals.append(total)

    def __len__(self) -> int:
        return len(self._totals)

    def by_group(self, rows: Operations, group: npt.NDArray[np.int64], groups: int) -> npt.NDArray[np.int64]:
        """Sums per group: shape (groups, len(self)). Exact modulo 2^64."""
        sums = np.zeros((groups, len(self)), dtype=np.int64)
        families, kinds = columns_of(rows, ("family", "kind")).values()
        size = int(families.max(initial=0)) + 1  # of what is there
        places = (group * size + families) * _KINDS + kinds
        counts = np.bincount(places, minlength=groups * size * _KINDS).reshape(groups, size, _KINDS)
        for (family, kind), columns in self._columns.items():
            if family >= size or not counts[:, family, kind].any():
                continue
            summed = any(column is not None for _, column in columns)
            mine = np.flatnonzero((kinds == kind) & (families == family)) if summed else _NONE
            chosen, of_mine = rows.take(mine), group[mine]
            for position, column in columns:
                sums[:, position] = (
                    counts[:, family, kind] if column is None else _sum(column(chosen), of_mine, groups)
                )
        return sums

    def attributes(self, sums: npt.NDArray[np.int64]) -> tuple[Attribute, ...]:
        """Rows of sums, shape (n, len(self)), as attributes of n spans; zeros are left out."""
        found = []
        for total, sum_ in zip(self._totals, sums.T, strict=True):
            present = sum_ != 0
            if present.any():
                values = sum_ if total.per_unit == 1 else sum_ / total.per_unit
                found.append(
                    Attribute(key=total.key, values=values, present=None if present.all() else present)
                )
        return tuple(found)


def _sum(values: npt.NDArray[Any], group: npt.NDArray[np.int64], groups: int) -> npt.NDArray[np.int64]:
    """Sums per group. ``bincount`` adds doubles, which hold the halves of 2^21 words exactly."""
    words = values.astype(np.uint64)
    low = np.bincount(group, words & _LOW, minlength=groups).astype(np.uint64)
    high = np.bincount(group, words >> _HALF, minlength=groups).astype(np.uint64)
    return (low + (high << _HALF)).view(np.int64)
