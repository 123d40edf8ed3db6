"""Sharing is exact whatever the weights are."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.families.gpu.energy.sharing import (
    METHODS,
    NO_SHARES,
    NOBODY,
    Charges,
    Method,
    ProcessPart,
    Shares,
    Spans,
    Used,
    charges,
    covered_ns,
    split,
)

wholes = st.integers(0, 2**63 - 1)
weights = st.lists(st.one_of(st.integers(0, 10**12), st.floats(0, 1e12)), max_size=6)
rows = st.lists(st.tuples(st.integers(0, 5), st.floats(0, 1e12), st.sampled_from(Method)), max_size=5)


def shares_of(*given_rows: tuple[int, float, Method]) -> Shares:
    return sum((Shares.of([(key, weight)], method) for key, weight, method in given_rows), NO_SHARES)


def charged(found: Charges) -> list[tuple[int, int, int, Method]]:
    keys, nanojoules, times_ns, methods = (column.tolist() for column in found)
    return list(zip(keys, nanojoules, times_ns, [METHODS[each] for each in methods], strict=True))


shares = rows.map(lambda given_rows: shares_of(*given_rows))
processes = st.lists(st.builds(ProcessPart, weight=st.integers(0, 100), shares=shares), max_size=4)


@given(wholes, weights)
def test_parts_sum_up_to_the_whole_and_none_is_negative(whole: int, given_weights: list[float]) -> None:
    found = split(whole, np.array(given_weights, dtype=np.float64)).tolist()
    assert len(found) == len(given_weights)
    assert all(each >= 0 for each in found)
    if given_weights:
        assert sum(found) == whole


@given(st.builds(Used, wholes, wholes), processes)
def test_everything_is_charged_to_somebody_or_to_nobody(used: Used, given_parts: list[ProcessPart]) -> None:
    found = charges(used, given_parts)
    assert (sum(found.nanojoules.tolist()), sum(found.times_ns.tolist())) == used
    assert found.nanojoules.min() >= 0 and found.times_ns.min() >= 0


def test_shares_are_by_weight_within_a_process_and_among_processes() -> None:
    first = ProcessPart(weight=3, shares=shares_of((1, 2.0, Method.STEPS), (2, 1.0, Method.CONCURRENCY)))
    second = ProcessPart(weight=1, shares=shares_of((3, 7.0, Method.CALLS)))
    assert charged(charges(Used(400, 40), [first, second])) == [
        (1, 200, 20, Method.STEPS),
        (2, 100, 10, Method.CONCURRENCY),
        (3, 100, 10, Method.CALLS),
    ]


def test_a_process_without_requests_is_charged_to_nobody() -> None:
    idle = ProcessPart(weight=1, shares=shares_of((1, 0.0, Method.CALLS)))
    nobody = [(NOBODY, 7, 5, Method.CONCURRENCY)]
    assert charged(charges(Used(7, 5), [idle])) == charged(charges(Used(7, 5), [])) == nobody


spans = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), max_size=8)


@given(spans, spans)
def test_time_is_covered_once(first: list[tuple[int, int]], second: list[tuple[int, int]]) -> None:
    def of(given_spans: list[tuple[int, int]]) -> Spans:
        starts = np.array([start for start, _ in given_spans], dtype=np.int64)
        return Spans(starts, starts + np.array([length for _, length in given_spans], dtype=np.int64))

    covered = {at for start, length in (*first, *second) for at in range(start, start + length)}
    assert covered_ns(of(first), of(second)) == len(covered)
    assert covered_ns() == 0
