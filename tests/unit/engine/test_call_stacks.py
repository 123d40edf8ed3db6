"""Calls and their stacks: the same thread and the same nanosecond, whichever comes first."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.engine import call_stacks
from otelgpu.engine.call_stacks import CALL_NS, KEEP_NS, WAIT_NS, CallStacks, WaitingCalls
from otelgpu.model.operations import Operations, operations
from otelgpu.model.samples import SampleKind, Samples, samples

Call = tuple[int, int]  # tid, start


def taken(*stacks: tuple[Call, int]) -> Samples:
    rows = samples(len(stacks))
    for row, ((tid, time_ns), stack) in enumerate(stacks):
        rows[row]["tid"], rows[row]["time_ns"], rows[row]["stack"] = tid, time_ns, stack
        rows[row]["kind"] = SampleKind.CALL
    return rows


def called(*calls: Call) -> Operations:
    rows = operations(len(calls))
    for row, (tid, start_ns) in enumerate(calls):
        rows[row]["tid"], rows[row]["start_ns"] = tid, start_ns
    return rows


def test_a_call_has_the_stack_of_its_thread_at_its_start() -> None:
    stacks = CallStacks()
    stacks.add(taken(((9, 100), 77), ((8, 100), 78), ((9, 101), 79)), 0)
    found, numbers = stacks.find(called((8, 100), (9, 101), (9, 100), (9, 99), (7, 100)))
    assert found.tolist() == [True, True, True, False, False]
    assert numbers.tolist() == [78, 79, 77, 0, 0]


def test_a_stack_that_could_not_be_taken_is_not_one_that_did_not_come() -> None:
    stacks = CallStacks()
    stacks.add(taken(((9, 100), 0)), 0)
    found, numbers = stacks.find(called((9, 100)))
    assert (found.tolist(), numbers.tolist()) == ([True], [0])


def test_a_call_waits_for_a_sample_that_comes_later() -> None:
    stacks = CallStacks()
    waiting = WaitingCalls(stacks)
    waiting.add(called((9, 100), (9, 200)))
    rows, _ = waiting.take(300)
    assert not len(rows)
    stacks.add(taken(((9, 200), 5)), 400)
    rows, numbers = waiting.take(400)
    assert (rows["start_ns"].tolist(), numbers.tolist()) == ([200], [5])
    rows, numbers = waiting.take(300 + WAIT_NS)
    assert (rows["start_ns"].tolist(), numbers.tolist()) == ([100], [0])
    assert stacks.counters["calls_without_stack"] == 1


def test_at_the_end_nothing_waits() -> None:
    stacks = CallStacks()
    waiting = WaitingCalls(stacks)
    waiting.add(called((9, 100)))
    stacks.add(taken(((9, 200), 5)), 400)
    rows, numbers = waiting.take(400, final=True)
    stacks.expire(400, final=True)
    assert (len(rows), numbers.tolist(), len(stacks)) == (1, [0], 0)
    assert stacks.counters == {"calls_without_stack": 1, "stacks_without_call": 1, "stacks_beyond_memory": 0}


def test_samples_are_kept_for_what_a_device_reports_late_and_longer_for_calls_that_last() -> None:
    stacks = CallStacks()
    stacks.add(taken(((9, 100), 5), ((9, 200), 6)), 1000)
    stacks.find(called((9, 100)))
    stacks.expire(1000 + KEEP_NS - 1)
    assert stacks.stacks_of(called((9, 100))).tolist() == [5]
    stacks.expire(1000 + KEEP_NS)
    assert stacks.stacks_of(called((9, 100), (9, 200))).tolist() == [0, 6]
    assert stacks.counters["stacks_without_call"] == 0
    stacks.expire(1000 + CALL_NS)
    assert not len(stacks)


def test_a_call_that_never_comes_is_counted_once() -> None:
    stacks = CallStacks()
    stacks.add(taken(((9, 100), 5)), 1000)
    for later in range(3):
        stacks.expire(1000 + CALL_NS + later)
    assert stacks.counters["stacks_without_call"] == 1


def test_memory_is_bounded_and_the_oldest_unused_samples_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_stacks, "ROWS", 4)
    stacks = CallStacks()
    stacks.add(taken(*(((9, time), time) for time in range(1, 5))), 0)
    stacks.find(called((9, 1)))
    stacks.add(taken(((9, 5), 5), ((9, 6), 6), ((9, 7), 7)), 0)
    assert stacks.stacks_of(called(*((9, time) for time in range(1, 8)))).tolist() == [0, 0, 0, 4, 5, 6, 7]
    assert stacks.counters["stacks_beyond_memory"] == 2, "the first had been used"
    waiting = WaitingCalls(stacks)
    waiting.add(called(*((1, time) for time in range(9))))
    rows, _ = waiting.take(0)
    assert (len(rows), stacks.counters["calls_without_stack"]) == (5, 5)


@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(1, 5)), unique=True, max_size=15),
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 6)), max_size=15),
    st.integers(0, 14),
)
def test_the_join_is_that_of_a_dictionary(known: list[Call], asked: list[Call], cut: int) -> None:
    truth = {call: number for number, call in enumerate(known, 1)}
    stacks = CallStacks()
    reported = [*truth.items()]
    stacks.add(taken(*reported[:cut]), 0)
    stacks.find(called(*asked))
    stacks.add(taken(*reported[cut:]), 0)
    found, numbers = stacks.find(called(*asked))
    assert found.tolist() == [call in truth for call in asked]
    assert numbers.tolist() == [truth.get(call, 0) for call in asked]
    assert numbers.dtype == np.uint64
