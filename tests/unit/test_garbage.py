"""While a program starts only new objects are looked through for garbage."""

from __future__ import annotations

import gc

import pytest

from otelgpu.kernel.garbage import only_new_looked_through


def collections_of_old() -> int:
    return sum(each["collections"] for each in gc.get_stats()[1:])


def test_old_objects_are_not_looked_through_and_never_those_of_the_start() -> None:
    usual, frozen, before = gc.get_threshold(), gc.get_freeze_count(), collections_of_old()
    try:
        with only_new_looked_through():
            kept = [[number] for number in range(300_000)]
            with only_new_looked_through():
                kept += [[number] for number in range(300_000)]
            assert gc.get_threshold() != usual
        assert collections_of_old() == before
        assert gc.get_threshold() == usual
        assert gc.get_freeze_count() >= frozen + len(kept)
    finally:
        gc.unfreeze()


def test_it_is_as_before_after_an_error() -> None:
    usual = gc.get_threshold()
    with pytest.raises(ValueError, match="x"), only_new_looked_through():
        raise ValueError("x")
    gc.unfreeze()
    assert gc.get_threshold() == usual


def test_garbage_of_a_start_is_found() -> None:
    with only_new_looked_through():
        before = gc.get_stats()[0]["collected"]
        for _ in range(300_000):
            cycle: list[object] = []
            cycle.append(cycle)
        assert gc.get_stats()[0]["collected"] > before + 150_000
    gc.unfreeze()
