"""Sharing is exact whatever the weights are."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from otelgpu.families.gpu.energy.sharing import (
    NOBODY,
    Charge,
    Method,
    ProcessPart,
    Share,
    Used,
    charges,
    covered_ns,
    split,
)

wholes = st.integers(0, 2**63 - 1)
weights = st.lists(st.one_of(st.integers(0, 10**12), st.floats(0, 1e12)), max_size=6)
shares = st.lists(
    st.builds(Share, st.integers(0, 5), st.floats(0, 1e12), st.sampled_from(Method)), max_size=5
)
processes = st.lists(st.builds(ProcessPart, weight=st.integers(0, 100), shares=shares), max_size=4)


@given(wholes, weights)
def test_parts_sum_up_to_the_whole_and_none_is_negative(whole: int, given_weights: list[float]) -> None:
    found = split(whole, given_weights)
    assert len(found) == len(given_weights)
    assert all(each >= 0 for each in found)
    if given_weights:
        assert sum(found) == whole


@given(st.builds(Used, wholes, wholes), processes)
def test_everything_is_charged_to_somebody_or_to_nobody(used: Used, given_parts: list[ProcessPart]) -> None:
    found = charges(used, given_parts)
    assert (sum(each.nanojoules for each in found), sum(each.time_ns for each in found)) == used
    assert all(min(each.nanojoules, each.time_ns) >= 0 for each in found)


def test_shares_are_by_weight_within_a_process_and_among_processes() -> None:
    first = ProcessPart(weight=3, shares=[Share(1, 2.0, Method.STEPS), Share(2, 1.0, Method.CONCURRENCY)])
    second = ProcessPart(weight=1, shares=[Share(3, 7.0, Method.CALLS)])
    assert charges(Used(400, 40), [first, second]) == [
        Charge(1, 200, 20, Method.STEPS),
        Charge(2, 100, 10, Method.CONCURRENCY),
        Charge(3, 100, 10, Method.CALLS),
    ]


def test_a_process_without_requests_is_charged_to_nobody() -> None:
    idle = ProcessPart(weight=1, shares=[Share(1, 0.0, Method.CALLS)])
    assert charges(Used(7, 5), [idle]) == charges(Used(7, 5), [])
    assert charges(Used(7, 5), []) == [Charge(NOBODY, 7, 5, Method.CONCURRENCY)]


def test_time_is_covered_once() -> None:
    assert covered_ns([]) == 0
    assert covered_ns([(0, 10), (5, 20), (30, 40), (31, 32)]) == 30
