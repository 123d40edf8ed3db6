"""Sums of operations for the spans above them: ``cuda.launch.calls`` and the like, from the families' tables."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from otelgpu.families.base import OperationDecoder, OperationSignals
from otelgpu.model.operations import OperationKind, Operations


class Totals:
    """The summary columns of a session's families, in a fixed order."""

    def __init__(self, families: Sequence[tuple[OperationDecoder, OperationSignals]]) -> None:
        self._columns = [
            (index, key, kind, column)
            for index, (_, signals) in enumerate(families)
            for key, kind, column in signals.summaries
        ]

    def __len__(self) -> int:
        return len(self._columns)

    def of(self, rows: Operations) -> npt.NDArray[np.int64]:
        """What each operation adds to each column: shape (n, len(self))."""
        totals = np.zeros((len(rows), len(self._columns)), dtype=np.int64)
        families, kinds = np.ascontiguousarray(rows["family"]), np.ascontiguousarray(rows["kind"])
        chosen: dict[tuple[int, OperationKind], npt.NDArray[np.intp]] = {}
        for position, (family, _, kind, column) in enumerate(self._columns):
            if (family, kind) not in chosen:
                chosen[family, kind] = np.flatnonzero((families == family) & (kinds == kind))
            mine = chosen[family, kind]
            totals[mine, position] = 1 if column is None else column(rows)[mine]
        return totals

    def by_group(self, rows: Operations, group: npt.NDArray[np.int64], groups: int) -> npt.NDArray[np.int64]:
        """Sums per group: shape (groups, len(self))."""
        sums = np.zeros((groups, len(self._columns)), dtype=np.int64)
        np.add.at(sums, group, self.of(rows))
        return sums

    def attributes(self, sums: npt.NDArray[np.int64]) -> dict[str, int]:
        """One row of sums as span attributes; zeros are left out."""
        return {key: v for (_, key, _, _), v in zip(self._columns, sums.tolist(), strict=True) if v}
