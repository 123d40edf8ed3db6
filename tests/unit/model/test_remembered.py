"""What is remembered of things that ended, of which each owner has its part."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from otelgpu.model.shares import Remembered

CAPACITY = 6


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 30)), max_size=80))
def test_who_has_most_loses_its_oldest(added: list[tuple[int, int]]) -> None:
    """Beside a model that looks at everything each time."""
    made: Remembered[int] = Remembered(CAPACITY)
    owned: dict[int, list[int]] = {}
    for owner, key in added:
        known = {each for keys in owned.values() for each in keys}
        held = {each: len(keys) for each, keys in owned.items()}
        forgotten = made.add(owner, key)
        if key in known:
            assert forgotten is None
            continue
        owned.setdefault(owner, []).append(key)
        if len(known) < CAPACITY:
            assert forgotten is None
        else:
            (loser,) = (each for each, keys in owned.items() if forgotten in keys)
            assert held[loser] == max(held.values())
            assert loser == owner or held.get(owner, 0) < held[loser]
            assert owned[loser].pop(0) == forgotten
        now = {each for keys in owned.values() for each in keys}
        assert {each for each in range(31) if each in made} == now
        assert len(now) <= CAPACITY


def test_one_who_adds_without_end_leaves_others_theirs() -> None:
    made: Remembered[int] = Remembered(CAPACITY)
    made.add(1, -1)
    made.add(2, -2)
    for key in range(1000):
        made.add(3, key)
    assert -1 in made and -2 in made
    assert [key for key in range(1000) if key in made] == [996, 997, 998, 999]
