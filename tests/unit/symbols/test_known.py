"""The set of pairs that were dealt with: exact, whatever falls together in its table."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.symbols import known
from otelgpu.symbols.known import KnownPairs
from tests.rig.examples import examples

Pair = tuple[int, int]
PAIRS = st.lists(
    st.tuples(st.integers(1, 5), st.integers(0, 40) | st.integers(0, (1 << 64) - 1)), max_size=60
)


def add(pairs: KnownPairs, wanted: list[Pair], limit: int = 1000) -> tuple[list[Pair], int]:
    tgids = np.array([tgid for tgid, _ in wanted], np.uint32)
    return pairs.add_new(tgids, np.array([address for _, address in wanted], np.uint64), limit=limit)


def test_a_pair_is_new_once() -> None:
    pairs = KnownPairs()
    assert add(pairs, [(1, 10), (2, 10), (1, 10)]) == ([(1, 10), (2, 10)], 0)
    assert add(pairs, [(2, 10), (1, 10)]) == ([], 0)
    assert len(pairs) == 2


@examples(200)
@given(batches=st.lists(PAIRS, max_size=8), data=st.data())
def test_it_does_what_a_set_does(batches: list[list[Pair]], data: st.DataObject) -> None:
    pairs, model = KnownPairs(), set[Pair]()
    for batch in batches:
        assert add(pairs, batch) == ([pair for pair in dict.fromkeys(batch) if pair not in model], 0)
        model |= set(batch)
        tgid = data.draw(st.integers(1, 5))
        match data.draw(st.sampled_from(["keep", "forget", "discard", "range"])):
            case "forget":
                pairs.forget(tgid)
                model = {pair for pair in model if pair[0] != tgid}
            case "discard":
                pairs.discard(tgid, [3, 4, 5])
                model -= {(tgid, 3), (tgid, 4), (tgid, 5)}
            case "range":
                pairs.discard_range(tgid, 10, 20)
                model = {pair for pair in model if pair[0] != tgid or not 10 <= pair[1] < 20}
        assert len(pairs) == len(model)


@pytest.mark.slow
def test_pairs_that_share_a_place_are_reported_apart() -> None:
    pairs = KnownPairs()
    by_place: dict[int, list[int]] = {}
    others: list[int] = []
    while len(others) < 4:  # more than both places of any of them hold
        address = 16 * sum(map(len, by_place.values()))
        others = by_place.setdefault(pairs._places(1, address)[0], [])
        others.append(address)
    batch = [(1, number) for number in others]
    assert add(pairs, batch) == (batch, 0)
    assert add(pairs, batch) == ([], 0)


def test_the_table_grows_so_that_nearly_every_pair_has_a_place() -> None:
    pairs = KnownPairs()
    batch = [(1, 0x7F0000000000 + 16 * number) for number in range(20_000)]
    add(pairs, batch, limit=1 << 20)
    tgids = np.ones(len(batch), np.uint32)
    missed = pairs._not_in_table(tgids, np.array([address for _, address in batch], np.uint64))
    assert len(missed) < len(batch) // 50


def test_more_than_the_limit_at_once_stay_out_and_come_later() -> None:
    pairs = KnownPairs()
    batch = [(1, number) for number in range(10)]
    assert add(pairs, batch, limit=4) == (batch[:4], 6)
    assert add(pairs, batch, limit=100) == (batch[4:], 0)


def test_beyond_its_bound_it_starts_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known, "MAX_PAIRS", 5)
    pairs = KnownPairs()
    add(pairs, [(1, number) for number in range(5)])
    assert add(pairs, [(1, 9)]) == ([(1, 9)], 0)
    assert len(pairs) == 1
    assert add(pairs, [(1, 0), (1, 9)]) == ([(1, 0)], 0)
