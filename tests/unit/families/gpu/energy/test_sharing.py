"""Sharing is exact whatever the weights are, and goes by the best that is known."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from otelgpu.families.gpu.energy.sharing import (
    NOBODY,
    Charge,
    Method,
    ProcessPart,
    StepPart,
    Used,
    charges,
    covered_ns,
    split,
)

amounts = st.builds(Used, st.integers(0, 10**15), st.integers(0, 10**12))
weights = st.lists(st.integers(0, 10**12), max_size=6)
shares = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 10**9)), max_size=4)
steps = st.lists(st.builds(StepPart, st.integers(0, 10**9), shares.map(tuple), shares.map(tuple)), max_size=3)
processes = st.lists(
    st.builds(
        ProcessPart,
        weight=st.integers(0, 100),
        steps=steps,
        device_time=shares,
        calls=shares,
        under_way=shares,
    ),
    max_size=4,
)


def whole(found: list[Used]) -> Used:
    return Used(sum(each.nanojoules for each in found), sum(each.time_ns for each in found))


@given(amounts, weights)
def test_parts_sum_up_to_the_whole_and_none_is_negative(used: Used, given_weights: list[int]) -> None:
    found = split(used, given_weights)
    assert len(found) == len(given_weights)
    assert all(min(each) >= 0 for each in found)
    if given_weights:
        assert whole(found) == used


@given(amounts, processes)
def test_everything_is_charged_to_somebody_or_to_nobody(used: Used, given_parts: list[ProcessPart]) -> None:
    found = charges(used, given_parts)
    assert whole([each.used for each in found]) == used
    assert all(min(each.used) >= 0 for each in found)


def test_steps_go_before_calls_and_calls_before_who_was_under_way() -> None:
    used = Used(1_000, 100)
    step = StepPart(10, ((1, 30), (2, 10)), ())
    part = ProcessPart(
        weight=1, steps=[step], device_time=[(3, 1)], calls=[(4, 1)], under_way=[(5, 1), (6, 1)]
    )
    assert charges(used, [part]) == [
        Charge(1, Used(750, 75), Method.STEPS),
        Charge(2, Used(250, 25), Method.STEPS),
    ]
    part = replace(part, steps=())
    assert charges(used, [part]) == [Charge(3, used, Method.DEVICE_TIME)]
    part = replace(part, device_time=())
    assert charges(used, [part]) == [Charge(4, used, Method.CALLS)]
    part = replace(part, calls=())
    assert [each.key for each in charges(used, [part])] == [5, 6]
    part = replace(part, under_way=())
    assert [(each.key, each.used) for each in charges(used, [part])] == [(NOBODY, used)]


def test_a_step_whose_members_are_not_known_goes_to_who_was_under_way_in_it() -> None:
    known, unknown = StepPart(10, ((1, 1),), ()), StepPart(30, (), ((1, 10), (2, 10)))
    found = charges(Used(400, 40), [ProcessPart(weight=1, steps=[known, unknown])])
    assert [(each.key, each.used.nanojoules, each.method) for each in found] == [
        (1, 100, Method.STEPS),
        (1, 150, Method.CONCURRENCY),
        (2, 150, Method.CONCURRENCY),
    ]


def test_time_is_covered_once() -> None:
    assert covered_ns([]) == 0
    assert covered_ns([(0, 10), (5, 20), (30, 40), (31, 32)]) == 30
