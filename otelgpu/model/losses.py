"""Counters of losses → what was lost since somebody was told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from otelgpu.model.inputs import LossCounted


class LossReports:
    """Remembers what was told of counters that only grow."""

    def __init__(self) -> None:
        self._told: Counter[tuple[str, str]] = Counter()

    def take(self, totals: Mapping[tuple[str, str], int]) -> list[LossCounted]:
        """What ``totals``, by family and reason, grew by since the last call."""
        grown = Counter(totals) - self._told
        self._told += grown
        return [
            LossCounted(family=family, reason=reason, count=count)
            for (family, reason), count in grown.items()
        ]
