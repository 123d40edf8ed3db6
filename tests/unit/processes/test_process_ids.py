"""Process ids of which any number are remembered: exactly those, in a bit for each."""

from __future__ import annotations

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from otelgpu.model.process_numbers import ID_BITS
from otelgpu.processes.process_ids import ProcessIds

IDS = st.integers(0, (1 << ID_BITS) - 1)


@given(added=st.sets(IDS), others=st.sets(IDS))
def test_those_are_in_it_that_were_added(added: set[int], others: set[int]) -> None:
    ids = ProcessIds()
    for each in added:
        ids.add(each)
    assert all(each in ids for each in added)
    assert not any(each in ids for each in others - added)


def test_numbers_that_no_process_has_are_not_in_it() -> None:
    ids = ProcessIds()
    for each in (-1, 1 << ID_BITS, 1 << 32):
        ids.add(each)
        assert each not in ids


def test_as_many_again_take_no_more_memory() -> None:
    ids = ProcessIds()
    tracemalloc.start()
    try:
        for each in range(100_000):
            ids.add(each)
        assert tracemalloc.get_traced_memory()[1] < 16 << 10
    finally:
        tracemalloc.stop()
