"""Tier wakeup from its end: for whose result a worker worked, and everything that makes it nobody's."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.engine.attribution.handoffs import Handoffs
from otelgpu.engine.attribution.returns import HELD_NS, SETTLED_NS
from otelgpu.engine.attribution.threads import UNSETTLED, ThreadTimeline
from otelgpu.model.exchange import ThreadAssignment
from otelgpu.model.handoffs import Handoff, HandoffEvent
from tests.unit.model.builders import assignment

MS = 1_000_000
LATER = 20_000 * MS


class Pool:
    """Threads 1, 2, 3 hold the request of their number; workers 8 and 9 have given a result before. Times in ms."""

    def __init__(self) -> None:
        self.timeline = ThreadTimeline()
        self.made = Handoffs(self.timeline)
        self.assignments: list[ThreadAssignment] = []
        self.waiting: dict[int, float] = {}
        for tid in (1, 2, 3):
            self.hold(100, tid)
        self.hold(0, 4)
        for worker in (8, 9):
            self.ask(worker, 4)
            self.give(worker + 0.5, worker, 4)
        self.hold(50, 4, begins=False)

    def hold(self, at: float, tid: int, key: int = 0, *, begins: bool = True) -> None:
        self.assignments.append(assignment(int(at * MS), key or tid, tid=tid, begins=begins))

    def event(self, at: float, tid: int, event: HandoffEvent, **fields: Any) -> None:
        self.made.feed([Handoff(time_ns=int(at * MS), tgid=100, tid=tid, event=event, **fields)])

    def make(self, at: float, tid: int) -> None:
        self.event(at, tid, HandoffEvent.MADE)

    def wait(self, at: float, tid: int) -> None:
        """For a result, or for a semaphore: at a lock of its own."""
        self.make(at - 0.01, tid)
        self.event(at, tid, HandoffEvent.AWAITS)
        self.waiting[tid] = at

    def ask(self, at: float, tid: int) -> None:
        """Hand over and wait for the result."""
        self.make(at, tid)
        self.wait(at + 0.1, tid)

    def give(self, at: float, worker: int, tid: int) -> None:
        self.wake(at, tid, worker, since=self.waiting[tid])

    def wake(self, at: float, tid: int, by: int, *, since: float) -> None:
        self.event(at, tid, HandoffEvent.WOKEN, waker=by, idle_ns=int(since * MS))

    def tick(self, at_ns: int = LATER) -> None:
        self.timeline.apply(sorted(self.assignments, key=lambda each: each.time_ns))
        self.made.settle(self.assignments, at_ns)
        self.assignments = []

    def owners(self, worker: int, *times: float, now_ns: int = LATER, final: bool = False) -> list[int]:
        asked = np.array([int(at * MS) for at in times], dtype=np.uint64)
        tids = np.full(len(times), worker, dtype=np.uint32)
        return self.made.owners(tids, asked, now_ns, final=final).tolist()


def test_jobs_taken_back_to_back_are_each_of_whom_their_results_are_for() -> None:
    pool = Pool()
    pool.wake(105, 8, 7, since=60)  # by a thread without a request: no wake-up reports anything
    pool.ask(101, 1)
    pool.ask(102, 2)
    pool.give(120, 8, 1)
    pool.give(140, 8, 2)
    pool.tick()
    assert pool.owners(8, 100, 105, 119, 120, 139, 140) == [0, 1, 1, 2, 2, 0]


def test_a_job_does_not_begin_before_it_is_submitted() -> None:
    pool = Pool()
    pool.wake(105, 8, 7, since=60)
    pool.ask(110, 1)
    pool.give(120, 8, 1)
    pool.tick()
    assert pool.owners(8, 109, 111) == [0, 1]


def test_workers_that_swap_their_jobs() -> None:
    pool = Pool()
    pool.ask(110, 1)
    pool.ask(110.5, 2)
    pool.wake(110.05, 8, 1, since=60)
    pool.wake(110.55, 9, 2, since=60)
    pool.give(130, 8, 2)
    pool.give(131, 9, 1)
    pool.tick()
    assert pool.owners(8, 120) + pool.owners(9, 120) == [2, 1]


def test_what_the_wake_up_and_the_result_report_differently_is_nobodys() -> None:
    pool = Pool()
    pool.wake(110, 8, 1, since=60)
    pool.ask(150, 2)
    pool.give(170, 8, 2)
    pool.tick()
    assert pool.owners(8, 120, 160) == [1, 0]


def test_a_lock_is_no_result() -> None:
    pool = Pool()
    pool.wake(105, 8, 7, since=60)
    pool.ask(106, 2)
    pool.wake(120, 1, 8, since=110)  # a lock that had long been there
    pool.give(140, 8, 2)
    pool.tick()
    assert pool.owners(8, 107, 119, 121) == [2, 2, 2]


def test_a_semaphore_is_no_result() -> None:
    pool = Pool()
    pool.wake(105, 8, 7, since=60)
    pool.wait(110, 1)
    pool.give(120, 8, 1)  # thread 1 had asked for nothing
    pool.tick()
    assert pool.owners(8, 115) == [0]


def test_a_result_that_nobody_waited_for_may_be_inside() -> None:
    pool = Pool()
    pool.wake(105, 8, 7, since=60)
    pool.make(106, 2)  # its job may have been done, by worker 8, before it waited
    pool.ask(107, 1)
    pool.give(120, 8, 1)
    pool.hold(150, 2, begins=False)
    pool.ask(160, 3)
    pool.give(170, 8, 3)  # no harm any more
    pool.tick()
    assert pool.owners(8, 110, 165) == [0, 3]
    assert pool.made.counters["returns_ambiguous"] == 1


def test_results_in_a_burst_are_of_one_piece_of_work() -> None:
    pool = Pool()
    pool.wake(105, 8, 7, since=60)
    for tid in (1, 2):
        pool.ask(106, tid)
    pool.give(120, 8, 1)
    pool.give(120.05, 8, 2)
    pool.ask(130, 3)
    pool.give(150, 8, 3)
    pool.tick()
    assert pool.owners(8, 110, 140) == [0, 0]
    assert pool.made.counters["returns_batched"] == 3


def test_a_workers_worker() -> None:
    pool = Pool()
    pool.wake(105, 8, 7, since=60)
    pool.wake(105, 9, 7, since=60)
    pool.ask(104, 1)
    pool.ask(110, 8)
    pool.give(120, 9, 8)
    pool.tick(200 * MS)
    assert pool.owners(9, 115, now_ns=200 * MS) == [UNSETTLED]
    pool.give(210, 8, 1)
    pool.tick()
    assert pool.owners(9, 109, 115) == [0, 1]
    assert pool.owners(8, 106, 115, 130) == [1, 1, 1]  # it waited for what it gave away


def test_work_waits_for_its_result_and_not_for_ever() -> None:
    pool = Pool()
    pool.wake(105, 8, 7, since=60)
    pool.ask(106, 1)
    pool.tick(300 * MS)
    assert pool.owners(8, 110, now_ns=300 * MS) == [UNSETTLED]
    assert pool.owners(8, 110, now_ns=300 * MS, final=True) == [0]
    now_ns = 110 * MS + HELD_NS + 2 * SETTLED_NS + 2
    pool.tick(now_ns)
    assert pool.owners(8, 110, now_ns=now_ns) == [0]
    pool.give(8000, 8, 1)
    pool.tick()
    assert pool.owners(8, 110, 7999) == [0, 1]


def test_who_shares_something_is_not_reported_from_who_asks_for_something() -> None:
    pool = Pool()
    pool.wait(103, 3)  # had it asked for something before, this would look like the wait for that
    pool.ask(106, 1)
    pool.give(120, 8, 1)
    pool.tick()
    assert pool.owners(8, 110) == [0]
    assert pool.made.counters["returns_ambiguous"] == 1


def test_objects_of_the_request_and_of_the_worker_do_no_harm() -> None:
    pool = Pool()
    pool.make(104, 1)
    pool.make(110, 8)
    pool.ask(105, 1)
    pool.give(120, 8, 1)
    pool.tick()
    assert pool.owners(8, 106, 115) == [1, 1]


def test_what_a_worker_asked_for_before_its_job_is_not_for_that() -> None:
    pool = Pool()
    pool.ask(103, 1)
    pool.give(106, 8, 1)
    pool.ask(110, 8)
    pool.ask(112, 2)
    pool.give(120, 9, 8)
    pool.give(130, 8, 2)
    pool.tick()
    assert pool.owners(9, 115) == [0]
    assert pool.owners(8, 105, 125) == [1, 2]


def test_who_has_a_request_is_no_worker() -> None:
    pool = Pool()
    for at in (110, 120):
        pool.ask(at, 1)
        pool.give(at + 5, 2, 1)
    pool.tick()
    assert pool.owners(2, 122) == [0]


def test_a_wait_that_ended_unreported_is_no_result() -> None:
    pool = Pool()
    pool.ask(106, 1)
    pool.wake(160, 1, 8, since=150)
    pool.tick()
    assert pool.owners(8, 110, 155) == [0, 0]


def test_more_objects_than_are_kept_make_everything_ambiguous() -> None:
    pool = Pool()
    pool.make(105, 2)
    pool.ask(106, 1)
    pool.give(110, 8, 1)
    for number in range(300):
        pool.make(112 + number / 100, 2)
    pool.tick()
    assert pool.owners(8, 108) == [0]


def test_a_process_that_ended_is_forgotten() -> None:
    pool = Pool()
    pool.ask(110, 1)
    pool.give(120, 8, 1)
    pool.tick()
    assert pool.owners(8, 115) == [1]
    pool.made.forget_processes({100})
    assert pool.owners(8, 115) == [0]


def test_what_is_old_is_dropped() -> None:
    pool = Pool()
    pool.ask(110, 1)
    pool.give(120, 8, 1)
    pool.tick()
    pool.made.forget_before(LATER)
    assert pool.owners(8, 115) == [0]


EVENTS = st.lists(
    st.tuples(
        st.integers(0, 300),
        st.sampled_from(["ask", "make", "give", "wake", "idle", "let go"]),
        st.sampled_from([1, 2, 3, 8]),
        st.sampled_from([8, 9]),
    ),
    max_size=40,
    unique_by=lambda each: each[0],
)


@given(EVENTS, st.lists(st.integers(100, 500), max_size=5))
def test_ticks_make_no_difference(events: list[tuple[int, str, int, int]], cuts: list[int]) -> None:
    def played(ticks: list[int]) -> dict[tuple[int, int], int]:
        pool = Pool()
        todo = sorted(events)
        known: dict[tuple[int, int], int] = {}
        for until in [*ticks, 20_000]:
            while todo and 110 + todo[0][0] < until:
                at, what, tid, worker = todo.pop(0)
                at += 110
                if what == "ask":
                    pool.ask(at, tid)
                elif what == "make":
                    pool.make(at, tid)
                elif what == "give" and tid in pool.waiting and tid != worker:
                    pool.give(at, worker, tid)
                elif what == "wake" and tid != worker:
                    pool.wake(at, worker, tid, since=at - 0.5)
                elif what == "idle":
                    pool.wake(at, worker, 7, since=at - 0.5)
                elif what == "let go":
                    pool.hold(at, tid, begins=False)
            pool.tick(until * MS)
            times = range(100, min(until, 450), 3)
            for worker in (8, 9):
                for time, owner in zip(times, pool.owners(worker, *times, now_ns=until * MS), strict=True):
                    if owner != UNSETTLED:
                        known.setdefault((worker, time), owner)  # as it is reported: once
        return known

    assert played(sorted(cuts)) == played([])
