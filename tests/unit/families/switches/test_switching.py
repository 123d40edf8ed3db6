"""Annotations of pods as decisions: what begins, what is refused and why, and that all of it ends."""

from __future__ import annotations

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.families.switches import names, switching
from otelgpu.families.switches.switching import SETTLE_S, Limits, Switching, wish_of
from otelgpu.model.settings import Detail
from otelgpu.model.switches import PodSwitch
from tests.rig.examples import examples

NOW = 10_000.0


def asked(value: str, uid: str = "a", written: int = 0) -> PodSwitch:
    return PodSwitch(uid=uid, namespace="serving", pod=f"pod-{uid}", value=value, written_unix_s=written)


def outcome(value: str, *, usual: Detail = "ops", written: int = 0) -> tuple[str, str]:
    (change,) = Switching(Limits(), usual).read([asked(value, written=written)], NOW)
    return change.state, change.reason


def test_the_example_of_the_module_holds() -> None:
    assert doctest.testmod(switching).failed == 0


@pytest.mark.parametrize(
    ("value", "seconds"), [("all 5m", 300), ("ops 30s", 30), ("all 1s", 1), ("all 90s again-2", 90)]
)
def test_a_wish_is_a_detail_and_a_time(value: str, seconds: float) -> None:
    assert wish_of(value) == (value[:3], seconds)


@pytest.mark.parametrize(
    "value",
    [
        *(
            "",
            "all",
            "5m",
            "all 0s",
            "all 5h",
            "all 5",
            "all  5m",
            " all 5m",
            "all 5m ",
            "all 5m\n",
            "phases 5m",
        ),
        *("ALL 5m", "all -5m", "all 1e3s", "all ٥m", "all 100000s", "all 5m a b", "all 5m \x1b[1m"),
    ],
)
def test_what_is_no_wish_is_refused(value: str) -> None:
    assert outcome(value) == (names.REFUSED, names.MALFORMED)


@pytest.mark.parametrize(
    ("value", "usual", "written", "state", "reason"),
    [
        ("all 10m", "ops", 0, names.BEGAN, ""),
        ("all 11m", "ops", 0, names.REFUSED, names.TOO_LONG),
        ("ops 5m", "phases", 0, names.BEGAN, ""),
        ("ops 5m", "ops", 0, names.REFUSED, names.NOT_MORE),
        ("all 5m", "all", 0, names.REFUSED, names.NOT_MORE),
        ("all 5m", "ops", int(NOW) - 300, names.REFUSED, names.PAST),
        ("all 5m", "ops", int(NOW) - 299, names.BEGAN, ""),
        ("all 5m", "ops", int(NOW) + 99, names.BEGAN, ""),
    ],
)
def test_limits_hold(value: str, usual: Detail, written: int, state: str, reason: str) -> None:
    assert outcome(value, usual=usual, written=written) == (state, reason)


def test_it_ends_by_its_time_though_the_annotation_stays_and_does_not_begin_again() -> None:
    switches = Switching(Limits(), "ops")
    assert [each.state for each in switches.read([asked("all 5m")], NOW)] == [names.BEGAN]
    assert switches.raised(NOW) == {"a": "all"}
    assert switches.read([asked("all 5m")], NOW + 299) == []
    (over,) = switches.read([asked("all 5m")], NOW + 300)
    assert (over.state, over.reason, switches.active) == (names.ENDED, names.OVER, frozenset())
    assert switches.read([asked("all 5m")], NOW + 3000) == []
    (again,) = switches.read([asked("all 5m again")], NOW + 3001)
    assert again.state == names.BEGAN


def test_one_that_was_written_before_the_agent_began_has_what_is_left_of_its_time() -> None:
    switches = Switching(Limits(), "ops")
    switches.read([asked("all 5m", written=int(NOW) - 200)], NOW)
    assert switches.turn(NOW + 99) == []
    assert [each.reason for each in switches.turn(NOW + 100)] == [names.OVER]


@pytest.mark.parametrize("left", [[], [asked("ops 5m")], [asked("nonsense")]])
def test_it_ends_where_its_annotation_is_gone_or_another(left: list[PodSwitch]) -> None:
    switches = Switching(Limits(pause_s=0), "ops")
    switches.read([asked("all 5m")], NOW)
    first = switches.read(left, NOW + 1)[0]
    assert (first.state, first.reason) == (names.ENDED, names.WITHDRAWN)


def test_no_more_pods_than_allowed_have_more_detail_at_once() -> None:
    switches = Switching(Limits(at_once=2), "ops")
    changes = switches.read([asked("all 5m", uid) for uid in "abc"], NOW)
    assert [(each.state, each.reason) for each in changes] == [
        (names.BEGAN, ""),
        (names.BEGAN, ""),
        (names.REFUSED, names.TOO_MANY),
    ]
    assert switches.raised(NOW).keys() == {"a", "b"}


def test_a_pod_has_more_detail_once_in_a_pause() -> None:
    switches = Switching(Limits(pause_s=60), "ops")
    switches.read([asked("all 5s")], NOW)
    switches.turn(NOW + 5)
    (refused,) = switches.read([asked("all 6s")], NOW + 59)
    assert (refused.state, refused.reason) == (names.REFUSED, names.TOO_SOON)
    (began,) = switches.read([asked("all 7s")], NOW + 60)
    assert began.state == names.BEGAN


def test_taking_the_annotation_away_and_back_is_no_way_around_the_pause() -> None:
    switches = Switching(Limits(pause_s=60), "ops")
    switches.read([asked("all 5s")], NOW)
    switches.read([], NOW + 1)
    (refused,) = switches.read([asked("all 5s")], NOW + 2)
    assert refused.reason == names.TOO_SOON


def test_what_all_have_by_now_is_no_more() -> None:
    switches = Switching(Limits(), "phases")
    switches.read([asked("ops 5m")], NOW)
    assert switches.raised(NOW) == {"a": "ops"}
    switches.usual = "all"
    assert switches.raised(NOW) == {}


def test_what_was_done_before_its_end_is_still_reported_so() -> None:
    switches = Switching(Limits(), "ops")
    switches.read([asked("all 5m")], NOW)
    switches.read([], NOW + 1)
    assert switches.raised(NOW + 1 + SETTLE_S - 0.1) == {"a": "all"}
    assert switches.raised(NOW + 1 + SETTLE_S) == {}


def test_the_agents_end_ends_all() -> None:
    switches = Switching(Limits(), "ops")
    switches.read([asked("all 5m")], NOW)
    assert [each.reason for each in switches.close(NOW)] == [names.AGENT_ENDED]
    assert switches.active == frozenset()


@given(
    st.lists(
        st.tuples(
            st.lists(
                st.tuples(
                    st.sampled_from("abcd"),
                    st.one_of(
                        st.sampled_from(["all 5m", "all 9m x", "ops 1s", "all 1s"]), st.text(max_size=65)
                    ),
                    st.integers(0, 20_000),
                ),
                max_size=4,
                unique_by=lambda each: each[0],
            ),
            st.floats(0, 700),
        ),
        max_size=12,
    )
)
@examples(200)
def test_whatever_is_written_limits_hold_and_each_that_begins_ends_once(
    rounds: list[tuple[list[tuple[str, str, int]], float]],
) -> None:
    switches, now, open_since = Switching(Limits(), "ops"), NOW, dict[str, float]()
    for seen, later in rounds:
        now += later
        for each in switches.read([asked(value, uid, written) for uid, value, written in seen], now):
            if each.state == names.BEGAN:
                assert each.switch.uid not in open_since
                open_since[each.switch.uid] = now
            elif each.state == names.ENDED:
                del open_since[each.switch.uid]
        assert switches.active == open_since.keys()
        assert len(open_since) <= 2
        assert all(now - begun < 600 for begun in open_since.values())
    assert {each.switch.uid for each in switches.close(now)} == open_since.keys()
