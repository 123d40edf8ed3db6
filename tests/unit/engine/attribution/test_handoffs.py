"""Tier wakeup: a worker's request, and everything that makes it nobody's."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from otelgpu.engine.attribution.handoffs import SETTLED_NS, Handoffs
from otelgpu.engine.attribution.threads import UNSETTLED, ThreadTimeline
from otelgpu.model.exchange import ThreadAssignment
from otelgpu.model.handoffs import Handoff, HandoffEvent
from tests.unit.model.builders import assignment

MS = 1_000_000
LATER = 10_000 * MS


class Threads:
    """Threads of process 100 that hold requests, and workers that are woken."""

    def __init__(self) -> None:
        self.timeline = ThreadTimeline()
        self.made = Handoffs(self.timeline)
        self.assignments: list[ThreadAssignment] = []

    def hold(self, at: int, key: int, tid: int, *, begins: bool = True) -> None:
        self.assignments.append(assignment(at * MS, key, tid=tid, begins=begins))

    def wake(self, at: int, worker: int, waker: int, *, idle: int = 0) -> None:
        self._event(at, worker, HandoffEvent.WOKEN, waker=waker, idle_ns=idle * MS)

    def signal(self, at: int, worker: int) -> None:
        self._event(at, worker, HandoffEvent.SIGNALLED)

    def time_out(self, at: int, worker: int, *, idle: int) -> None:
        self._event(at, worker, HandoffEvent.TIMED_OUT, idle_ns=idle * MS)

    def _event(self, at: int, worker: int, event: HandoffEvent, **fields: Any) -> None:
        self.made.feed([Handoff(time_ns=at * MS, tgid=100, tid=worker, event=event, **fields)])

    def tick(self, at_ns: int = LATER, *, final: bool = False) -> None:
        self.timeline.apply(self.assignments)
        self.made.settle(self.assignments, at_ns, final=final)
        self.assignments = []

    def owners(self, worker: int, *times: int, now_ns: int = LATER, final: bool = False) -> list[int]:
        tids = np.full(len(times), worker, dtype=np.uint32)
        asked = np.array(times, dtype=np.uint64) * np.uint64(MS)
        return self.made.owners(tids, asked, now_ns, final=final).tolist()


def test_a_worker_works_for_whom_it_was_woken_until_it_signals() -> None:
    threads = Threads()
    threads.hold(0, 1, 7)
    threads.wake(10, 8, 7)
    threads.signal(30, 8)
    threads.tick()
    assert threads.owners(8, 9, 10, 29, 30, 50) == [0, 1, 1, 0, 0]
    assert threads.owners(9, 15) == [0]


def test_the_next_idle_wait_ends_it() -> None:
    threads = Threads()
    threads.hold(0, 1, 7)
    threads.wake(10, 8, 7)
    threads.time_out(90, 8, idle=40)
    threads.tick()
    assert threads.owners(8, 39, 40, 95) == [1, 0, 0]


def test_the_answer_ends_it() -> None:
    threads = Threads()
    threads.hold(0, 1, 7)
    threads.wake(10, 8, 7)
    threads.hold(50, 1, 7, begins=False)
    threads.tick()
    assert threads.owners(8, 49, 50, 60) == [1, 0, 0]


def test_work_is_handed_on() -> None:
    threads = Threads()
    threads.hold(0, 1, 7)
    threads.wake(10, 8, 7)
    threads.wake(20, 9, 8)
    threads.signal(21, 8)
    threads.tick()
    assert threads.owners(9, 25) == [1]


def test_a_thread_without_a_request_hands_over_nothing() -> None:
    threads = Threads()
    threads.hold(0, 1, 7)
    threads.wake(10, 8, 6)
    threads.tick()
    assert threads.owners(8, 15) == [0]


def test_an_event_loop_with_two_requests_hands_over_nothing() -> None:
    threads = Threads()
    threads.hold(0, 1, 7)
    threads.hold(1, 2, 7)
    threads.wake(10, 8, 7)
    threads.tick()
    assert threads.owners(8, 15) == [0]


def test_two_workers_of_a_queue_may_have_taken_each_others_jobs() -> None:
    for apart, expected in ((2, [0, 0]), (50, [1, 2])):
        threads = Threads()
        threads.hold(0, 1, 7)
        threads.hold(0, 2, 6)
        threads.wake(10, 8, 7)
        threads.wake(10 + apart, 9, 6)
        threads.tick()
        assert threads.owners(8, 11) + threads.owners(9, 11 + apart) == expected
        assert threads.made.counters["handoffs_ambiguous"] == (2 if apart == 2 else 0)


def test_it_does_not_matter_that_a_tick_lies_between_two_wakings() -> None:
    threads = Threads()
    threads.hold(0, 1, 7)
    threads.hold(0, 2, 6)
    threads.wake(10, 8, 7)
    threads.tick(30 * MS)  # settles that one
    threads.wake(30, 9, 6)
    threads.tick()
    assert threads.owners(9, 31) == [0]


def test_who_waits_for_what_it_gave_away_is_no_worker() -> None:
    threads = Threads()
    threads.hold(0, 1, 7)
    threads.hold(0, 2, 6)
    threads.wake(10, 8, 7)
    threads.wake(12, 6, 9)  # request 2's thread, by whoever did its work
    threads.tick()
    assert threads.owners(8, 15) == [1]


def test_a_lock_that_a_worker_waits_for_hands_over_nothing() -> None:
    threads = Threads()
    threads.hold(0, 1, 7)
    threads.hold(0, 2, 6)
    threads.wake(10, 8, 7)
    threads.wake(100, 8, 6, idle=90)
    threads.tick()
    assert threads.owners(8, 80, 95, 110) == [1, 0, 0]
    assert threads.made.counters["handoffs_inside_work"] == 1


def test_what_is_young_waits_for_the_next_tick() -> None:
    threads = Threads()
    threads.hold(0, 1, 7)
    threads.wake(100, 8, 7)
    now_ns = 105 * MS
    threads.tick(now_ns)
    assert threads.owners(8, 50, 101, now_ns=now_ns) == [0, UNSETTLED]
    assert threads.owners(9, 101, now_ns=now_ns) == [0]  # no worker
    threads.tick(now_ns + SETTLED_NS)
    assert threads.owners(8, 101, now_ns=now_ns + SETTLED_NS) == [1]


def test_the_end_of_a_session_settles_everything() -> None:
    threads = Threads()
    threads.hold(0, 1, 7)
    threads.wake(100, 8, 7)
    threads.tick(101 * MS, final=True)
    assert threads.owners(8, 100, now_ns=101 * MS, final=True) == [1]


def test_a_process_that_ended_is_forgotten() -> None:
    threads = Threads()
    threads.hold(0, 1, 7)
    threads.wake(10, 8, 7)
    threads.tick()
    threads.made.forget_processes({100})
    assert threads.owners(8, 15) == [0]
    threads.hold(50, 1, 7, begins=False)
    threads.tick()  # nothing is left of it to end


@given(
    st.lists(st.tuples(st.integers(1, 500), st.integers(0, 3), st.integers(0, 3)), max_size=40),
    st.lists(st.integers(1, 600), max_size=4).map(sorted),
)
@example([(209, 0, 1), (229, 1, 2)], [229])  # two wake-ups as far apart as is ambiguous, a tick between them
def test_ticks_make_no_difference(events: list[tuple[int, int, int]], cuts: list[int]) -> None:
    def played(ticks: list[int]) -> list[list[int]]:
        threads = Threads()
        for key in (1, 2, 3):
            threads.hold(0, key, key)
        todo = sorted(events)
        for until in ticks:
            while todo and todo[0][0] < until:
                at, worker, waker = todo.pop(0)
                threads.wake(at, 20 + worker, waker, idle=at - 1) if waker else threads.signal(
                    at, 20 + worker
                )
            threads.tick(until * MS)
        return [threads.owners(20 + worker, *range(0, 520, 3)) for worker in range(4)]

    assert played([*cuts, 700, 900]) == played([700, 900])
