"""Counters of losses → what was lost since somebody was reported."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from enum import StrEnum

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


class Nature(StrEnum):
    """What a count of a reason means for whoever reads the results."""

    LOST = "lost"
    """Something is missing from the results that should be there."""
    INTENDED = "intended"
    """A bound, a filter or a setting was at work."""
    UNAVAILABLE = "unavailable"
    """This machine does not have it, or does not let this program have it: nothing of it was there to be lost."""


class Reasons(dict[str, str]):
    """Reasons for which losses of one family are counted → what one count means, beside what counts them.

    ``family`` is ``otelgpu.family`` of their metric; ``*`` stands for each family with probes. The manual finds every
    one that is a module's, so that none is listed anywhere else. ``intended`` and ``unavailable`` name those of these
    natures; the others are :attr:`Nature.LOST`.
    """

    def __init__(
        self,
        family: str,
        texts: Mapping[str, str],
        *,
        intended: Collection[str] = (),
        unavailable: Collection[str] = (),
    ) -> None:
        super().__init__(texts)
        self.family = family
        self.natures = dict.fromkeys(intended, Nature.INTENDED) | dict.fromkeys(
            unavailable, Nature.UNAVAILABLE
        )
        if unknown := self.natures.keys() - texts.keys():
            raise ValueError(f"{family}: no reasons of this table: {', '.join(sorted(unknown))}")
