"""When less is recorded, and when all of it again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from otelgpu.kernel.overload import DetailLevel

SECOND = 1_000_000_000
START = 50 * SECOND


def levels(*states: tuple[float, float, int]) -> list[int]:
    """Decisions for (seconds, fullness, lost), one after the other."""
    detail = DetailLevel(least=2)
    return [detail.decide(START + int(at * SECOND), fullness, lost) for at, fullness, lost in states]


def test_a_ring_with_room_is_given_everything() -> None:
    assert levels((0, 0.0, 0), (1, 0.7, 0), (9, 0.2, 0)) == [0, 0, 0]


def test_a_loss_or_a_nearly_full_ring_lowers_the_detail_at_once() -> None:
    assert levels((0, 0.8, 0), (0.1, 0.1, 3), (0.2, 1.0, 9)) == [1, 2, 2]


def test_it_comes_back_step_by_step_after_a_calm() -> None:
    states = [(0, 0.9, 0), (0.1, 0.9, 0), (5.0, 0.1, 0), (5.2, 0.1, 0), (10.0, 0.1, 0), (10.3, 0.1, 0)]
    assert levels(*states) == [1, 2, 2, 1, 1, 0]


def test_a_ring_that_is_half_full_is_no_calm() -> None:
    assert levels((0, 0.9, 0), (4, 0.5, 0), (6, 0.1, 0), (9.1, 0.1, 0)) == [1, 1, 1, 0]


def test_each_relapse_doubles_the_calm_that_is_asked_for() -> None:
    states = [(0, 0.9, 0), (5.1, 0.0, 0), (6, 0.9, 0), (11.1, 0.0, 0), (16.1, 0.0, 0)]
    assert levels(*states) == [1, 0, 1, 1, 0]


def test_after_a_long_time_without_relapse_the_calm_is_short_again() -> None:
    relapsed = [(0, 0.9, 0), (5.1, 0.0, 0), (6, 0.9, 0), (16.1, 0.0, 0)]
    later = [(400, 0.0, 0), (401, 0.9, 0), (406.1, 0.0, 0)]
    assert levels(*relapsed, *later)[-2:] == [1, 0]


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0, 1), st.integers(0, 3)), max_size=50))
def test_it_moves_one_level_at_a_time_within_bounds_and_ends_at_all(
    steps: list[tuple[float, float, int]],
) -> None:
    at, states = 0.0, []
    for gap, fullness, lost in steps:
        at += gap
        states.append((at, fullness, lost))
    calm = [(at + 100 * n, 0.0, 0) for n in range(1, 4)]
    found = levels(*states, *calm)
    assert all(0 <= level <= 2 for level in found)
    assert all(abs(a - b) <= 1 for a, b in zip([0, *found], found, strict=False))
    assert found[-1] == 0
