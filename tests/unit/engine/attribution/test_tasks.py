"""Tier task: the intervals of requests against an oracle that knows whose each moment of a task was."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.engine.attribution.tasks import TaskTimeline
from otelgpu.engine.attribution.threads import AMBIGUOUS, NO_TASK, UNSETTLED
from otelgpu.model.tasks import TaskService

TGID = 42


def begun(exchange: int, begin_ns: int, tgid: int = TGID) -> TaskService:
    return TaskService(exchange=exchange, tgid=tgid, begin_ns=begin_ns)


def over(
    exchange: int,
    begin_ns: int,
    task: int,
    end_ns: int,
    tgid: int = TGID,
    *,
    connection: int = 0,
    reads: bool = False,
) -> TaskService:
    return TaskService(
        exchange=exchange,
        tgid=tgid,
        begin_ns=begin_ns,
        is_over=True,
        task=task,
        end_ns=end_ns,
        connection=connection,
        is_read_by_task=reads,
    )


def asked(timeline: TaskTimeline, task: int, *times_ns: int, final: bool = False) -> list[int]:
    count = len(times_ns)
    return timeline.owners(
        np.full(count, TGID, np.uint32),
        np.full(count, task, np.uint64),
        np.array(times_ns, np.uint64),
        final=final,
    ).tolist()


def test_a_task_works_for_the_request_that_it_answered_and_between_two_for_none() -> None:
    timeline = TaskTimeline()
    timeline.take([begun(1, 10), over(1, 10, 7, 30), begun(2, 50), over(2, 50, 7, 60, reads=True)])
    assert asked(timeline, 7, 9, 10, 30, 31, 49, 50, 60, 61) == [
        NO_TASK,
        1,
        1,
        NO_TASK,
        NO_TASK,
        2,
        2,
        NO_TASK,
    ]
    assert asked(timeline, 8, 20) == [NO_TASK]


def test_what_may_be_an_open_requests_waits_for_it() -> None:
    timeline = TaskTimeline()
    timeline.take([begun(1, 10), begun(2, 40)])
    assert asked(timeline, 7, 5, 20, 45) == [NO_TASK, UNSETTLED, UNSETTLED]
    assert asked(timeline, 7, 20, final=True) == [NO_TASK]
    timeline.take([over(1, 10, 7, 30)])
    assert asked(timeline, 7, 20, 35, 45) == [1, NO_TASK, UNSETTLED]
    assert timeline.owner(TGID, 7, 20) == 1


def test_a_moment_of_a_task_in_two_requests_is_neithers() -> None:
    timeline = TaskTimeline()
    timeline.take([over(1, 10, 7, 30), over(2, 20, 7, 60), over(3, 12, 7, 15)])
    assert asked(timeline, 7, 11, 13, 25, 40) == [1, AMBIGUOUS, AMBIGUOUS, 2]


def test_a_request_whose_task_is_not_known_is_nobodys_and_holds_up_nobody() -> None:
    timeline = TaskTimeline()
    timeline.take([begun(1, 10), over(1, 10, 0, 0)])
    assert asked(timeline, 7, 20) == [NO_TASK]


def test_tasks_of_other_processes_have_the_same_numbers() -> None:
    timeline = TaskTimeline()
    timeline.take([begun(1, 10, tgid=43), over(2, 10, 7, 30, tgid=43)])
    assert asked(timeline, 7, 20) == [NO_TASK]
    timeline.forget_process(43)
    assert timeline.owner(43, 7, 20) == NO_TASK


def test_what_cannot_be_asked_about_any_more_is_forgotten_and_not_waited_for() -> None:
    timeline = TaskTimeline()
    timeline.take([over(1, 10, 7, 30), begun(2, 40), over(3, 15, 7, 200), begun(4, 150)])
    timeline.forget_before(100)
    assert asked(timeline, 7, 160) == [3]  # what still lasts is kept
    assert asked(timeline, 8, 120, 160) == [NO_TASK, UNSETTLED]
    timeline.forget_before(300)
    assert asked(timeline, 7, 20, 160) == [NO_TASK, NO_TASK]


def test_a_connections_task_that_works_on_after_a_response_is_trusted_no_more() -> None:
    timeline = TaskTimeline()
    timeline.take([over(1, 10, 7, 30, connection=1)])
    assert asked(timeline, 7, 20, 35) == [
        1,
        NO_TASK,
    ]  # at 35 it works on, and may do so when the next is read
    timeline.take([over(2, 50, 7, 60, connection=1), over(3, 50, 8, 60, connection=2)])
    assert asked(timeline, 7, 55) == [AMBIGUOUS]
    assert asked(timeline, 8, 55) == [3]  # of another connection the first
    timeline.take([over(4, 70, 8, 80, connection=2)])
    assert asked(timeline, 8, 75) == [AMBIGUOUS]


def test_it_is_also_when_that_is_learnt_with_the_next_ones_calls() -> None:
    timeline = TaskTimeline()
    timeline.take([over(1, 10, 7, 30, connection=1), over(2, 50, 7, 60, connection=1)])
    assert asked(timeline, 7, 20, 35, 55) == [1, NO_TASK, AMBIGUOUS]


def test_one_that_reads_requests_itself_was_done_with_the_one_before() -> None:
    timeline = TaskTimeline()
    timeline.take(
        [over(1, 10, 7, 30, connection=1, reads=True), over(2, 50, 7, 60, connection=1, reads=True)]
    )
    assert asked(timeline, 7, 20, 35, 55) == [1, NO_TASK, 2]


def test_tasks_made_for_requests_do_not_outlast_them_under_their_number() -> None:
    timeline = TaskTimeline()
    timeline.take([over(1, 10, 7, 30, connection=1), over(2, 40, 7, 60, connection=2)])
    timeline.take([over(3, 70, 8, 80, connection=1), over(4, 90, 7, 99, connection=2)])
    assert asked(timeline, 7, 20, 35, 45, 65, 95) == [1, NO_TASK, 2, NO_TASK, 4]


@st.composite
def schedules(draw: st.DrawFn) -> tuple[list[TaskService], list[tuple[int, int, int]], bool]:
    """What is told of interleaved connections, and (task, time, whose it is in truth) of moments of their tasks.

    A task serves a connection's requests one after the other, or each a task of its own, whose number may be
    another's after its end. And whether some do what is, as far as is told, outside of all requests.
    """
    works_after, untold = draw(st.booleans()), False
    told: list[tuple[int, TaskService]] = []
    truth: list[tuple[int, int, int]] = []
    free = draw(st.integers(1, 5))  # numbers from which ended tasks' are taken again
    taken_until: dict[int, int] = {}
    key = 0
    for connection in range(draw(st.integers(1, 6))):
        own = draw(st.booleans())
        now = draw(st.integers(1, 50))
        for _ in range(draw(st.integers(1, 6))):
            key += 1
            begin = now + draw(st.integers(1, 20))
            length = draw(st.integers(1, 40))
            background = draw(st.integers(0, 20)) if works_after else 0
            if own:
                task = 1000 + connection
            else:
                idle = [number for number in range(1, free + 1) if taken_until.get(number, 0) < begin]
                task = draw(st.sampled_from(idle)) if idle else 500 + key
                taken_until[task] = begin + length + background
            known = draw(st.integers(0, 9)) > 0
            untold = untold or not known
            end = begin + length
            told.append((begin, begun(key, begin)))
            told.append((end, over(key, begin, task if known else 0, end, connection=connection, reads=own)))
            for _ in range(draw(st.integers(0, 3))):
                truth.append((task, draw(st.integers(begin, end)), key if known else NO_TASK))
            if background and (not own or draw(st.booleans())):
                truth.append((task, end + draw(st.integers(1, background)), NO_TASK))
            now = end + (background if own else draw(st.integers(0, background)))
    return [service for _, service in sorted(told, key=lambda each: each[0])], truth, works_after or untold


@given(schedules(), st.data())
def test_none_is_ever_anothers_and_all_that_is_known_is_found(
    schedule: tuple[list[TaskService], list[tuple[int, int, int]], bool], data: st.DataObject
) -> None:
    told, truth, outside = schedule
    timeline = TaskTimeline()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(told)), max_size=3)))
    before = 0
    settled: dict[tuple[int, int], int] = {}
    for cut in [*cuts, len(told)]:
        timeline.take(told[before:cut])
        before = cut
        for task, time_ns, _ in truth:
            found = timeline.owner(TGID, task, time_ns)
            if found > 0:
                assert settled.setdefault((task, time_ns), found) == found
    for task, time_ns, whose in truth:
        found = timeline.owner(TGID, task, time_ns)
        assert found == whose or (outside and found == AMBIGUOUS), (task, time_ns, found, whose)


@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(1, 60), st.integers(0, 30)), max_size=12),
    st.lists(st.tuples(st.integers(1, 3), st.integers(1, 99)), min_size=1, max_size=20),
)
def test_of_whatever_intervals_one_alone_links(
    intervals: list[tuple[int, int, int]], moments: list[tuple[int, int]]
) -> None:
    timeline = TaskTimeline()
    timeline.take(over(key, b, task, b + length) for key, (task, b, length) in enumerate(intervals, 1))
    tasks, times = np.array(moments, np.uint64).T
    found = timeline.owners(np.full(len(moments), TGID, np.uint32), tasks, times, final=False)
    for owner, (task, time_ns) in zip(found.tolist(), moments, strict=True):
        held = [k for k, (t, b, n) in enumerate(intervals, 1) if t == task and b <= time_ns <= b + n]
        if owner > 0:
            assert held == [owner]
        elif owner == NO_TASK:
            assert not held
        else:
            assert owner == AMBIGUOUS and held
