"""A verdict that is followed is said once, again when it changes, and when it is over."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from otelgpu.diagnose.ranks.following import OVER_STEPS, Following
from otelgpu.diagnose.ranks.verdicts import INCONCLUSIVE, RankVerdict

SLOW = RankVerdict(
    klass="slow_worker",
    cause="compute",
    ranks=[3],
    first_step=40,
    last_step=50,
    persistent=False,
    factor=1.5,
    confidence=1.0,
    next="look at it",
)


def until(step: int, **changed: Any) -> RankVerdict:
    return replace(SLOW, last_step=step, **changed)


def states(following: Following, step: int, *verdicts: RankVerdict) -> list[tuple[str, list[int]]]:
    return [(each.state, list(each.verdict.ranks)) for each in following.take(verdicts, step)]


def test_a_fault_begins_once_and_ends_once() -> None:
    following = Following()
    assert states(following, 30) == []
    assert states(following, 52, until(50)) == [("began", [3])]
    assert states(following, 62, until(60)) == []
    assert states(following, 72, until(63)) == []
    assert states(following, 63 + OVER_STEPS + 1, until(63)) == [("ended", [3])]
    assert states(following, 90, until(63)) == []
    assert states(following, 900) == []


def test_what_had_ended_before_the_first_look_is_said_once() -> None:
    following = Following()
    assert states(following, 90, until(50)) == [("ended", [3])]
    assert states(following, 100, until(50)) == []


def test_news_are_other_ranks_another_cause_and_a_factor_that_moved() -> None:
    following = Following()
    following.take([until(50)], 52)
    assert states(following, 62, until(60, factor=1.6)) == []
    assert states(following, 72, until(70, factor=2.0)) == [("changed", [3])]
    assert states(following, 82, until(80, factor=2.0, ranks=[3, 4])) == [("changed", [3, 4])]
    assert states(following, 92, until(90, factor=2.0, ranks=[3, 4], cause="mixed")) == [("changed", [3, 4])]


def test_a_verdict_at_the_edge_of_a_bound_does_not_flicker() -> None:
    following = Following()
    following.take([until(50)], 52)
    assert states(following, 62) == []
    assert states(following, 72, until(70)) == []
    assert states(following, 82) == []
    assert states(following, 92) == [("ended", [3])]


def test_the_same_rank_slow_again_much_later_is_another_fault() -> None:
    following = Following()
    following.take([until(50)], 52)
    following.take([until(50)], 80)
    again = replace(SLOW, first_step=100, last_step=110)
    assert states(following, 112, until(50), again) == [("began", [3])]


def test_two_faults_at_once_are_two() -> None:
    following = Following()
    other = replace(SLOW, ranks=[7], cause="input")
    assert states(following, 52, SLOW, other) == [("began", [3]), ("began", [7])]
    assert states(following, 80, until(50), replace(other, last_step=79)) == [("ended", [3])]


def test_verdicts_without_ranks_are_told_apart_by_their_groups() -> None:
    following = Following()
    one = replace(SLOW, klass="slow_communication", ranks=[], group="tp0")
    assert states(following, 52, one, replace(one, group="tp1")) == [("began", []), ("began", [])]
    assert states(following, 53, replace(one, group="tp1"), one) == []


def test_that_nothing_can_be_said_is_no_news() -> None:
    assert Following().take([replace(SLOW, klass=INCONCLUSIVE)], 52) == []
