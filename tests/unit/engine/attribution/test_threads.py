"""Which request a thread worked for: the as-of join against a naive model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from otelgpu.engine.attribution import threads as joining
from otelgpu.engine.attribution.threads import AMBIGUOUS, ThreadTimeline
from otelgpu.model.exchange import ThreadAssignment
from tests.unit.model.builders import assignment


def timeline(*assignments: ThreadAssignment) -> ThreadTimeline:
    made = ThreadTimeline()
    made.apply(assignments)
    return made


def asked(made: ThreadTimeline, questions: Iterable[tuple[int, int]]) -> list[int]:
    tids, times = zip(*questions, strict=True)
    return made.owners(np.array(tids, np.uint32), np.array(times, np.uint64)).tolist()


def naive(assignments: list[ThreadAssignment], tid: int, time_ns: int) -> int:
    """Play the assignments of the thread up to the time, one by one; a clock that runs back stands still."""
    held: list[int] = []
    now = 0
    for c in assignments:
        if c.tid != tid:
            continue
        now = max(now, c.time_ns)
        if now > time_ns:
            break
        if c.begins and c.exchange not in held:
            held.append(c.exchange)
        elif not c.begins and c.exchange in held:
            held.remove(c.exchange)
    return 0 if not held else held[0] if len(held) == 1 else AMBIGUOUS


@pytest.fixture(autouse=True, scope="module", params=["library", "numpy"])
def joined_by(request: pytest.FixtureRequest) -> Iterator[None]:
    found = joining.library() if request.param == "library" else None
    with patch.object(joining, "library", lambda: found):
        yield


def test_the_example_of_the_docstring() -> None:
    made = timeline(assignment(10, 1, tid=7), assignment(30, 1, tid=7, begins=False))
    assert asked(made, [(7, 5), (7, 10), (7, 29), (7, 30)]) == [0, 1, 1, 0]


def test_a_thread_that_was_never_assigned_works_for_nobody() -> None:
    assert asked(timeline(assignment(10, 1, tid=7)), [(8, 20)]) == [0]


def test_nothing_asked_and_nothing_known() -> None:
    none = np.zeros(0, np.uint32), np.zeros(0, np.uint64)
    assert timeline(assignment(10, 1)).owners(*none).tolist() == []
    assert asked(ThreadTimeline(), [(1, 1)]) == [0]


def test_a_thread_with_two_requests_is_ambiguous_until_one_is_let_go() -> None:
    made = timeline(
        assignment(10, 1), assignment(20, 2), assignment(30, 1, begins=False), assignment(40, 2, begins=False)
    )
    assert asked(made, [(101, t) for t in (15, 20, 29, 30, 40)]) == [1, AMBIGUOUS, AMBIGUOUS, 2, 0]


def test_an_assignment_that_begins_or_ends_twice_changes_nothing() -> None:
    made = timeline(
        assignment(10, 1), assignment(11, 1), assignment(20, 1, begins=False), assignment(21, 1, begins=False)
    )
    assert asked(made, [(101, 15), (101, 25)]) == [1, 0]


def test_a_time_that_runs_back_counts_as_the_last_one() -> None:
    made = timeline(assignment(10, 1), assignment(5, 1, begins=False), assignment(7, 2))
    assert asked(made, [(101, 6), (101, 10)]) == [0, 2]


def test_the_same_request_on_two_threads_belongs_to_both() -> None:
    made = timeline(assignment(10, 1, tid=1), assignment(12, 1, tid=2))
    assert asked(made, [(1, 15), (2, 15)]) == [1, 1]


def test_a_process_that_ended_is_forgotten_and_others_are_not() -> None:
    made = timeline(assignment(10, 1, tid=1, tgid=100), assignment(10, 2, tid=2, tgid=200))
    made.forget_process(100)
    assert asked(made, [(1, 15), (2, 15)]) == [0, 2]


def test_a_thread_id_that_is_given_out_again_starts_afresh() -> None:
    made = timeline(assignment(10, 1, tid=1, tgid=100))
    made.forget_process(100)
    made.apply([assignment(20, 5, tid=1, tgid=300)])
    assert asked(made, [(1, 19), (1, 20)]) == [0, 5]


def test_what_is_still_held_survives_any_forgetting() -> None:
    made = timeline(assignment(10, 1))
    made.forget_before(1000)
    assert asked(made, [(101, 2000)]) == [1]


def test_idle_threads_cost_no_memory() -> None:
    made = timeline(
        *(c for t in range(50) for c in (assignment(10, 1, tid=t), assignment(20, 1, tid=t, begins=False)))
    )
    made.forget_before(21)
    assert made._threads == {}


def test_a_busy_threads_past_costs_no_memory() -> None:
    made = timeline(
        *(
            c
            for t in range(0, 1000, 2)
            for c in (assignment(t, t + 1), assignment(t + 1, t + 1, begins=False))
        )
    )
    made.forget_before(990)
    assert len(made._threads[101].times) < 16


# -- event loops: of what is read without waiting, any thread of the process may do the work ------------------


def loop(time_ns: int, key: int, **how: Any) -> ThreadAssignment:
    return assignment(time_ns, key, loop=True, **how)


def test_a_loops_request_is_its_threads_while_it_is_the_only_one_of_the_process() -> None:
    made = timeline(loop(10, 1), loop(30, 1, begins=False), loop(40, 2, tid=102))
    assert asked(made, [(101, 20), (101, 35), (102, 45)]) == [1, 0, 2]


def test_once_another_thread_has_read_one_no_thread_says_whose_work_it_does() -> None:
    """As with C++ executors, whose tasks go from thread to thread."""
    made = timeline(
        loop(10, 1, tid=101), loop(20, 2, tid=102), loop(30, 2, tid=102, begins=False), loop(50, 3, tid=103)
    )
    assert asked(made, [(101, 15), (101, 25), (102, 25), (101, 40), (103, 55)]) == [1, *[AMBIGUOUS] * 4]


def test_when_none_is_left_the_next_one_is_known_again() -> None:
    made = timeline(
        *(loop(10, 1, tid=101), loop(20, 2, tid=102)),
        *(loop(30, 2, tid=102, begins=False), loop(40, 1, tid=101, begins=False)),
        loop(50, 3, tid=102),
    )
    assert asked(made, [(101, 45), (102, 55)]) == [0, 3]


def test_after_a_request_that_was_not_answered_whole_none_is_known() -> None:
    """Its client has left; the work for it may go on beside the next one."""
    made = timeline(loop(10, 1), loop(20, 1, begins=False, cut=True), loop(30, 2))
    assert asked(made, [(101, 15), (101, 25), (101, 35)]) == [1, 0, AMBIGUOUS]
    assert list(made.current()) == []


def test_of_a_thread_that_waits_for_what_it_reads_a_cut_request_says_nothing() -> None:
    made = timeline(assignment(10, 1), assignment(20, 1, begins=False, cut=True), assignment(30, 2))
    assert asked(made, [(101, 35)]) == [2]


def test_loops_of_other_processes_do_not_matter() -> None:
    made = timeline(loop(10, 1, tid=101, tgid=100), loop(20, 2, tid=201, tgid=200))
    assert asked(made, [(101, 30), (201, 30)]) == [1, 2]
    assert sorted(made.current()) == [(100, 101, 1), (200, 201, 2)]


def test_what_loops_hold_is_taken_back() -> None:
    made = timeline(loop(10, 1, tid=101), assignment(10, 2, tid=102))
    made.forget_loops(100)
    assert asked(made, [(101, 20), (102, 20)]) == [0, 2]


def test_a_loop_that_works_for_nobody_it_holds_serves_and_wakes_for_none() -> None:
    made = timeline(loop(10, 1), loop(20, 1, begins=False), loop(30, 2))
    tids, times = np.array([101], np.uint32), np.array([25], np.uint64)
    made.distrust(tids, times, made.owners(tids, times))
    assert (made.owner(101, 15), made.owner(101, 35)) == (1, AMBIGUOUS)
    assert list(made.current()) == []


threads = st.integers(1, 3)
histories = st.lists(
    st.builds(assignment, st.integers(0, 60), st.integers(1, 4), begins=st.booleans(), tid=threads),
    max_size=40,
)
questions = st.lists(st.tuples(threads, st.integers(0, 70)), min_size=1, max_size=40)


@given(histories, questions)
def test_the_join_is_what_replaying_the_assignments_gives(
    assignments: list[ThreadAssignment], asked_for: list[tuple[int, int]]
) -> None:
    assert asked(timeline(*assignments), asked_for) == [
        naive(assignments, *question) for question in asked_for
    ]


@given(histories.map(lambda assignments: sorted(assignments, key=lambda c: c.time_ns)), questions, st.data())
def test_batches_of_assignments_and_questions_do_not_matter(
    assignments: list[ThreadAssignment], asked_for: list[tuple[int, int]], data: st.DataObject
) -> None:
    """A question may come as soon as every assignment up to its time was applied; later ones change nothing."""
    whole = asked(timeline(*assignments), asked_for)
    made, answers = ThreadTimeline(), dict[int, int]()
    waiting = dict(enumerate(asked_for))
    left = list(assignments)
    while waiting:
        step = data.draw(st.integers(1, 5))
        made.apply(left[:step])
        left = left[step:]
        until = left[0].time_ns if left else 1000
        ready = [i for i, (_, time_ns) in waiting.items() if time_ns < until]
        for i in ready[: data.draw(st.integers(0, 10))] if left else ready:
            (answers[i],) = asked(made, [waiting.pop(i)])
    assert [answers[i] for i in range(len(asked_for))] == whole


@given(
    histories.map(lambda assignments: sorted(assignments, key=lambda c: c.time_ns)),
    st.integers(0, 70),
    questions,
)
def test_forgetting_the_past_does_not_change_the_present(
    assignments: list[ThreadAssignment], horizon: int, asked_for: list[tuple[int, int]]
) -> None:
    made = timeline(*assignments)
    recent = [(tid, max(time_ns, horizon)) for tid, time_ns in asked_for]
    before = asked(made, recent)
    made.forget_before(horizon)
    assert asked(made, recent) == before


# -- event loops ------------------------------------------------------------------------------------


def trusted(timeline: ThreadTimeline, *times: int, tid: int = 101) -> list[int]:
    tids, when = np.full(len(times), tid, np.uint32), np.array(times, np.uint64)
    return timeline.distrust(tids, when, timeline.owners(tids, when)).tolist()


def test_a_loop_that_works_while_it_holds_nothing_is_trusted_no_more() -> None:
    timeline = ThreadTimeline()
    timeline.apply(
        [
            assignment(10, 1),
            assignment(20, 2),
            assignment(30, 1, begins=False),
            assignment(40, 2, begins=False),
        ]
    )
    timeline.apply([assignment(60, 3), assignment(70, 3, begins=False), assignment(90, 4)])
    assert trusted(timeline, 15, 25, 35, 65) == [1, AMBIGUOUS, 2, 3]
    assert trusted(timeline, 80, 95) == [0, AMBIGUOUS]  # a task that runs on after its answer
    assert trusted(timeline, 65) == [3]  # which was before
    assert trusted(timeline, 95, tid=102) == [0]


def test_a_thread_that_serves_one_after_the_other_may_clean_up_after_its_answer() -> None:
    timeline = ThreadTimeline()
    timeline.apply([assignment(10, 1), assignment(20, 1, begins=False), assignment(40, 2)])
    assert trusted(timeline, 15, 30, 45) == [1, 0, 2]


def test_what_a_loop_did_before_its_first_requests_is_no_reason_for_distrust() -> None:
    timeline = ThreadTimeline()
    timeline.apply([assignment(10, 1), assignment(20, 2), assignment(30, 2, begins=False)])
    assert trusted(timeline, 5, 35) == [0, 1]


def test_what_was_under_way_when_another_was_cut_is_nobodys_from_then_on() -> None:
    """What the client of the other did not wait for may go on, in any thread of the process."""
    made = timeline(loop(10, 2, tid=102), loop(20, 1, tid=101, begins=False, cut=True), loop(30, 2, tid=101))
    assert asked(made, [(102, 15), (102, 25), (102, 35), (101, 35)]) == [2, AMBIGUOUS, AMBIGUOUS, AMBIGUOUS]


def test_a_loops_number_given_out_again_is_no_loop() -> None:
    timeline = ThreadTimeline()
    timeline.apply(
        [
            assignment(10, 1),
            assignment(20, 2),
            assignment(30, 1, begins=False),
            assignment(40, 2, begins=False),
        ]
    )
    assert trusted(timeline, 50) == [0]
    timeline.forget_process(100)
    timeline.apply([assignment(60, 3)])
    assert trusted(timeline, 65) == [3]


def test_who_reads_without_waiting_is_a_loop_with_its_first_request() -> None:
    timeline = ThreadTimeline()
    timeline.apply(
        [replace(assignment(10, 1), loop=True), assignment(20, 1, begins=False), assignment(40, 2)]
    )
    assert trusted(timeline, 15, 30, 45) == [1, 0, AMBIGUOUS]


@given(
    st.lists(st.tuples(st.integers(1, 4), threads, st.booleans(), st.booleans()), max_size=30),
    questions,
)
def test_a_loops_thread_never_names_one_of_several_requests(
    steps: list[tuple[int, int, bool, bool]], at: list[tuple[int, int]]
) -> None:
    """Whatever begins and ends: who is named has been alone in the process since it began, and none was cut before."""
    history = [
        loop(2 * place, key, tid=tid, begins=begins, cut=cut and not begins)
        for place, (key, tid, begins, cut) in enumerate(steps)
    ]
    made = timeline(*history)
    for (_, time_ns), owner in zip(at, asked(made, at), strict=True):
        past = [each for each in history if each.time_ns <= time_ns]
        if owner > 0:
            began = max(place for place, each in enumerate(past) if each.begins and each.exchange == owner)
            others = {each.exchange for each in past[began:] if each.begins} - {owner}
            assert not others
            assert not any(each.cut for each in past[:began])
