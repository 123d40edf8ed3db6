"""Profiles as a few lines of text: what a terminal gets. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

import numpy as np

from otelgpu.model.profiles import ProfileColumns
from otelgpu.model.quantities import duration, size

SHOWN: Final = 10
"""Stacks of each sample type that a summary has."""
_FRAMES: Final = 5
"""Innermost frames of a stack in a summary."""
_KINDS: Final = 64
"""Sample types that are summed up."""
_STACKS: Final = 4096
"""Different stacks of one sample type that are summed up: of more, those with the least are dropped."""


class TopStacks:
    """Sums of values by stack, of each sample type, within bounds."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, str], Counter[tuple[str, ...]]] = {}
        self._totals: Counter[tuple[str, str]] = Counter()

    def add(self, columns: ProfileColumns) -> None:
        """Take a batch."""
        kind = columns.sample_type.type, columns.sample_type.unit
        if kind not in self._sums and len(self._sums) >= _KINDS:
            return
        sums = self._sums.setdefault(kind, Counter())
        values = np.zeros(len(columns.stacks), dtype=np.float64)
        np.add.at(values, columns.stack, columns.value)
        for stack, value in zip(columns.stacks, values.tolist(), strict=True):
            if value:
                sums[_shown(columns, stack)] += int(value)
        self._totals[kind] += int(values.sum())
        if len(sums) > _STACKS:
            self._sums[kind] = Counter(dict(sums.most_common(_STACKS // 2)))

    def lines(self) -> list[str]:
        """The largest of each type, with their share."""
        found: list[str] = []
        for kind, sums in sorted(self._sums.items()):
            total = self._totals[kind]
            found.append(f"profile {kind[0]}  {_quantity(total, kind[1])}")
            for stack, value in sums.most_common(SHOWN):
                share = 100 * value / total if total else 0.0
                found.append(f"  {share:5.1f} %  {_quantity(value, kind[1]):>9}  {' < '.join(stack)}")
        return found


def _shown(columns: ProfileColumns, stack: Sequence[int]) -> tuple[str, ...]:
    names = []
    for code in stack[:_FRAMES]:
        lines = columns.locations[code].lines
        names.append(columns.functions[lines[0].function].name if lines else "?")
    return (*names, "…") if len(stack) > _FRAMES else tuple(names)


def _quantity(value: int, unit: str) -> str:
    if unit == "nanoseconds":
        return duration(value)
    return size(value) if unit == "bytes" else f"{value:,}"
