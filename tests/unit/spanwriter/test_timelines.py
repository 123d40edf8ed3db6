"""The library finds what numpy does of threads: whatever they held, whenever they are asked about."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.engine.attribution.threads import ThreadTimeline
from otelgpu.model.exchange import ThreadAssignment
from otelgpu.spanwriter.library import library
from otelgpu.spanwriter.timelines import states_at
from tests.rig.examples import examples
from tests.unit.model.builders import assignment

LATEST = (1 << 64) - 1
TIMES = st.one_of(st.integers(0, 40), st.integers(LATEST - 5, LATEST), st.integers(0, LATEST))
TIDS = st.one_of(st.integers(0, 3), st.integers(0, (1 << 32) - 1))
HISTORIES = st.lists(st.builds(assignment, TIMES, st.integers(1, 3), begins=st.booleans(), tid=TIDS))
QUESTIONS = st.lists(st.tuples(TIDS, TIMES), min_size=2)


@pytest.fixture(autouse=True, scope="module")
def built() -> None:
    assert library() is not None, "make bpf builds it"


@examples(100)
@given(HISTORIES, QUESTIONS)
def test_the_library_joins_as_numpy_does(
    assignments: list[ThreadAssignment], questions: list[tuple[int, int]]
) -> None:
    made = ThreadTimeline()
    made.apply([assignment(0, 1, tid=9), *assignments])
    tids = np.array([tid for tid, _ in questions], dtype=np.uint32)
    times = np.array([time_ns for _, time_ns in questions], dtype=np.uint64)
    expected = made._owners_by_numpy(tids, times, int(times.min()), int(times.max()))
    assert made.owners(tids, times).tolist() == expected.tolist()
    one_by_one = [made.owners(tids[[row]], times[[row]])[0] for row in range(len(tids))]
    assert one_by_one == expected.tolist()


@examples(50)
@given(st.lists(st.integers(0, 50), min_size=1), st.lists(st.integers(0, 60), min_size=1))
def test_whatever_states_there_are_one_of_them_is_found(begins: list[int], times: list[int]) -> None:
    """In order, the last one that began; else any, but none that is not there."""
    found = states_at(
        np.zeros(len(times), np.uint32), np.array(times, np.uint64), lambda tid: (begins, range(len(begins)))
    )
    assert set(found.tolist()) <= set(range(len(begins)))
    if begins == sorted(begins):
        last = [max((n for n, begin in enumerate(begins) if begin <= time), default=0) for time in times]
        assert found.tolist() == last


@pytest.mark.parametrize("count", [1, 2, 3, 1000, 40_000])
def test_threads_are_numbered_as_they_are_met(count: int) -> None:
    tids = np.random.default_rng(count).permutation(count).astype(np.uint32) * np.uint32(64)
    asked: list[int] = []

    def states_of(tid: int) -> tuple[list[int], list[int]]:
        asked.append(tid)
        return [0], [tid]

    both = np.concatenate([tids, tids[::-1]])
    assert states_at(both, np.zeros(len(both), np.uint64), states_of).tolist() == both.tolist()
    assert asked == tids.tolist()
