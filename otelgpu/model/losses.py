"""Counters of losses → what was lost since somebody was reported."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from otelgpu.model.inputs import LossCounted


class LossReports:
    """Remembers what was reported of counters that only grow."""

    def __init__(self) -> None:
        self._reported: Counter[tuple[str, str]] = Counter()

    def take(self, totals: Mapping[tuple[str, str], int]) -> list[LossCounted]:
        """What ``totals``, by family and reason, grew by since the last call."""
        grown = Counter(totals) - self._reported
        self._reported += grown
        return [
            LossCounted(family=family, reason=reason, count=count)
            for (family, reason), count in grown.items()
        ]


class Reasons(dict[str, str]):
    """Reasons for which losses of one family are counted → what one count means, beside what counts them.

    ``family`` is ``otelgpu.family`` of their metric; ``*`` stands for each family with probes. The manual finds every
    one that is a module's, so that none is listed anywhere else.
    """

    def __init__(self, family: str, texts: Mapping[str, str]) -> None:
        super().__init__(texts)
        self.family = family
