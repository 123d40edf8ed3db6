"""A turn of waiting: usual, or a rest that a record ends at the time at which it would have been collected anyway."""

from __future__ import annotations

from otelgpu.sources.turn import Turn


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Rings:
    """``empty``: whether there is nothing to collect."""

    def __init__(self, *, empty: bool = True) -> None:
        self.empty, self.awaited = empty, False

    def rest(self) -> bool:
        self.awaited = self.empty
        return self.empty

    def resume(self) -> None:
        self.awaited = False


def begun(rings: Rings, clock: Clock, *, longest_s: float = 1.0) -> Turn:
    return Turn(rings, 0.2, longest_s, clock=clock)


def test_a_turn_that_may_not_rest_is_over_at_its_time() -> None:
    rings, clock = Rings(), Clock()
    turn = begun(rings, clock, longest_s=0.0)
    clock.now += 0.25
    assert turn.left_s() == 0.0
    assert not rings.awaited


def test_with_nothing_there_it_waits_to_be_woken_and_for_no_other_time_than_its_longest() -> None:
    rings, clock = Rings(), Clock()
    with begun(rings, clock) as turn:
        assert 0.99 < turn.left_s() < 1.01
        assert rings.awaited
        clock.now += 1.01
        assert turn.left_s() == 0.0
    assert not rings.awaited


def test_a_record_that_is_there_is_collected_at_the_usual_time() -> None:
    clock = Clock()
    turn = begun(Rings(empty=False), clock)
    assert 0.19 < turn.left_s() < 0.21
    clock.now += 0.21
    assert turn.left_s() == 0.0


def test_a_record_that_comes_in_a_rest_is_collected_when_it_would_have_been() -> None:
    rings, clock = Rings(), Clock()
    turn = begun(rings, clock)
    turn.left_s()
    clock.now = 100.47
    turn.disturb()
    assert 0.12 < turn.left_s() < 0.14  # at 100.6, the third time after the beginning
    assert not rings.awaited
    clock.now = 100.6
    assert turn.left_s() == 0.0


def test_a_process_event_before_the_rest_keeps_it_from_beginning() -> None:
    rings, clock = Rings(), Clock()
    turn = begun(rings, clock)
    turn.disturb()
    assert 0.19 < turn.left_s() < 0.21
    clock.now += 0.21
    assert turn.left_s() == 0.0
    assert not rings.awaited
