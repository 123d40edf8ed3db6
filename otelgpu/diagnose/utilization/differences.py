"""What differs between two jobs, or one job on two nodes, of one configuration. Pure.

In: the facts of two reports. Out: :class:`Difference` values. Texts differ where they are not equal, numbers where one
is more than :data:`MOST_ALIKE` above the other; shares of the time by :data:`LEAST_SHARE` besides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from otelgpu.diagnose.utilization.job_facts import GROUPS
from otelgpu.diagnose.utilization.verdicts import Fact

MOST_ALIKE: Final = 0.1
"""By which a number may be above another and be taken for the same: two runs of one job differ by less as a rule."""
LEAST_SHARE: Final = 0.02
"""By which shares of the time have to differ: a cause that takes less is not worth a word."""


class Difference(Struct, frozen=True, kw_only=True):
    """``before``, ``after``: None where a job has no such fact; ``ratio``: of numbers, after to before."""

    group: str
    name: str
    before: str | float | None
    after: str | float | None
    unit: str = ""
    ratio: float | None = None


def differences(before: Sequence[Fact], after: Sequence[Fact]) -> list[Difference]:
    """By group; in each what only one has first, then the largest ratios."""
    firsts, seconds = ({(each.group, each.name): each for each in facts} for facts in (before, after))
    found = []
    for key in dict.fromkeys((*firsts, *seconds)):
        first, second = firsts.get(key), seconds.get(key)
        if first is not None and second is not None and _are_alike(first, second):
            continue
        known = first or second
        assert known is not None
        if (first is None or second is None) and known.value is not None and _is_little(known):
            continue
        found.append(
            Difference(
                group=key[0],
                name=key[1],
                before=_shown(first),
                after=_shown(second),
                unit=known.unit,
                ratio=_ratio(first, second),
            )
        )
    groups = list(GROUPS)
    return sorted(found, key=lambda each: (_place(each.group, groups), _order(each), each.name))


def _is_little(fact: Fact) -> bool:
    return fact.unit == "1" and abs(fact.value or 0.0) < LEAST_SHARE


def _are_alike(first: Fact, second: Fact) -> bool:
    if first.value is None or second.value is None:
        return first.text == second.text and first.value == second.value
    low, high = sorted((first.value, second.value))
    if first.unit == "1" and high - low < LEAST_SHARE:
        return True
    return high - low <= MOST_ALIKE * abs(low)


def _shown(fact: Fact | None) -> str | float | None:
    if fact is None:
        return None
    return fact.text if fact.value is None else fact.value


def _ratio(first: Fact | None, second: Fact | None) -> float | None:
    if first is None or second is None or not first.value or second.value is None:
        return None
    return second.value / first.value


def _place(group: str, groups: Sequence[str]) -> int:
    return groups.index(group) if group in groups else len(groups)


def _order(difference: Difference) -> float:
    if difference.ratio is None:
        return -1.0
    return 1.0 / max(difference.ratio, 1 / difference.ratio) if difference.ratio > 0 else 0.0
