"""What is new in a diagnosis that is made again and again: each verdict once, again when it changes, and its end. Pure.

In: the verdicts of each look, and the newest step. Out: :class:`Change`. Example: rank 3 is slow from step 40 on. The
look at step 52 gives ``began``, those after it nothing while it is as slow, and the first one that sees ten steps
without it ``ended``, with the last step in which it was slow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from otelgpu.diagnose.ranks.verdicts import INCONCLUSIVE, RankVerdict
from otelgpu.model.verdict import BEGAN, CHANGED, ENDED

OVER_STEPS: Final = 10
"""So many steps without it, and it is over: rules see a fault's last step some steps late."""
FACTOR_CHANGED: Final = 1.25
"""A factor that grew or fell so much is news."""
LOOKS_WITHOUT: Final = 2
"""A verdict that so many looks in a row do not give is over: one may be at the edge of a bound."""


class Change(Struct, frozen=True, kw_only=True):
    """One piece of news. ``state``: as of :class:`~otelgpu.model.verdict.Verdict`."""

    state: str
    verdict: RankVerdict


class _Known(Struct, kw_only=True):
    """``reported``: as it was when that was last said; ``latest``: as the last look had it."""

    reported: RankVerdict
    latest: RankVerdict
    is_over: bool
    looks_without: int = 0


class Following:
    """The verdicts of one job over time."""

    def __init__(self) -> None:
        self._known: list[_Known] = []

    def take(self, verdicts: Sequence[RankVerdict], newest_step: int) -> list[Change]:
        """What a look brings. Verdicts that say that nothing can be said are none."""
        news: list[Change] = []
        seen: list[_Known] = []
        for verdict in verdicts:
            if verdict.klass == INCONCLUSIVE:
                continue
            is_over = verdict.last_step < newest_step - OVER_STEPS
            known = next((each for each in self._known if _is_same(each.latest, verdict)), None)
            if known is None:
                known = _Known(reported=verdict, latest=verdict, is_over=is_over)
                self._known.append(known)
                news.append(Change(state=ENDED if is_over else BEGAN, verdict=verdict))
            else:
                news += _compared(known, verdict, is_over=is_over)
            seen.append(known)
        for known in [each for each in self._known if not any(each is other for other in seen)]:
            known.looks_without += 1
            if known.looks_without >= LOOKS_WITHOUT:
                self._known.remove(known)
                if not known.is_over:
                    news.append(Change(state=ENDED, verdict=known.latest))
        return news


def _compared(known: _Known, verdict: RankVerdict, *, is_over: bool) -> list[Change]:
    known.latest, known.looks_without = verdict, 0
    if is_over and known.is_over:
        return []
    state = (
        ENDED if is_over else BEGAN if known.is_over else CHANGED if _differs(known.reported, verdict) else ""
    )
    known.is_over = is_over
    if not state:
        return []
    known.reported = verdict
    return [Change(state=state, verdict=verdict)]


def _is_same(one: RankVerdict, other: RankVerdict) -> bool:
    """Whether they are about one thing: of one class, in one place, at one time."""
    if one.klass != other.klass:
        return False
    if one.ranks or other.ranks:
        if not set(one.ranks) & set(other.ranks):
            return False
    elif (one.group, one.role) != (other.group, other.role):
        return False
    apart = max(one.first_step, other.first_step) - min(one.last_step, other.last_step)
    return apart <= OVER_STEPS


def _differs(reported: RankVerdict, verdict: RankVerdict) -> bool:
    if (set(reported.ranks), reported.cause) != (set(verdict.ranks), verdict.cause):
        return True
    if reported.factor is None or verdict.factor is None:
        return reported.factor is not verdict.factor
    ratio = verdict.factor / reported.factor
    return not 1 / FACTOR_CHANGED <= ratio <= FACTOR_CHANGED
