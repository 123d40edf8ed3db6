"""Tier ``wakeup``: who a worker works for, by who woke it from idle and by who waited for its result. Pure.

In: hand-offs between threads (:mod:`otelgpu.model.handoffs`), the assignments of the threads that read requests. Out:
the request of a worker at a time, or that it cannot be known yet.

What ends a worker's work for a request: its next idle wait, a signal to another thread (a future's result, an event
loop's pipe), and the request's answer; not its wait for what it has itself given away. A worker that takes its next
job from a queue without waiting reports nobody, but it has reported somebody of the last one's end.

What is ambiguous, and therefore nobody's: two workers of a process woken for different requests within
:data:`SETTLED_NS`, for either may have taken either's job (which queue they wait at, the kernel cannot report: in
CPython each waits for a lock of its own); a worker woken for a request while the one before, of
which it never signalled the end, is still open, for it may have waited for a lock. An event loop that holds
several requests hands over none of them.

Example, thread 7 holds request 1 from t=0 and wakes worker 8 at t=10, which signals at t=30: worker 8 at t=9 → 0, at
t=10..29 → 1, at t=30 → 0. Had thread 6, for request 2, woken worker 9 at t=12, both would be
unattributed, unless threads 7 and 6 wait for the results, which :mod:`otelgpu.engine.attribution.returns` reports of.
Where that says otherwise than the wake-up, the work is nobody's.

Invariant: an answer depends on events up to :data:`SETTLED_NS` after the time asked for (of a worker that has given a
result before: up to :data:`~otelgpu.engine.attribution.returns.HELD_NS` and that after it), and on nothing later;
until then it is :data:`UNSETTLED`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Set
from typing import Final

import numpy as np
import numpy.typing as npt

from otelgpu.engine.attribution.returns import SETTLED_NS, Returns
from otelgpu.engine.attribution.threads import UNSETTLED, ThreadTimeline
from otelgpu.model.exchange import ThreadAssignment
from otelgpu.model.handoffs import Handoff, HandoffEvent
from otelgpu.model.losses import Reasons

REASONS: Final = Reasons(
    "correlate",
    {
        "handoffs_ambiguous": "a thread that was woken for a request within 20 ms of another one for "
        "another: its calls "
        "are not linked",
        "handoffs_inside_work": "a thread that was woken for a request before it was seen to end another: "
        "its calls are "
        "not linked",
        "handoffs_not_kept": "wake-ups beyond the 100,000 that may wait to be understood; their threads' calls are not "
        "linked",
    },
)
"""What one count of (``correlate``, reason) means."""

_KEPT: Final = 100_000
"""Events that wait to be settled; more are of a flood, and of nobody."""


class Handoffs:
    """Those of one session. ``assigned``: the exchanges of threads that read the requests themselves."""

    def __init__(self, assigned: ThreadTimeline) -> None:
        self._assigned = assigned
        self._given = ThreadTimeline()
        self._pending: list[Handoff] = []  # in order of time, as are the next two
        self._settled: list[Handoff] = []  # not so long ago that nothing could be mistaken for them
        self._ends: deque[ThreadAssignment] = deque()  # of requests, not yet seen to
        self._working: dict[int, int] = {}  # worker → exchange
        self._workers: dict[int, dict[int, int]] = {}  # exchange → worker → process
        self._known: dict[int, tuple[int, int]] = {}  # every worker seen → process, time of its last event
        self._counters: Counter[str] = Counter()
        self._returns = Returns(assigned, self._counters)

    @property
    def counters(self) -> Mapping[str, int]:
        """Hand-offs that are nobody's, by reason, since the start."""
        return self._counters

    def feed(self, handoffs: Iterable[Handoff]) -> None:
        """More events, in any order."""
        self._pending += handoffs
        if len(self._pending) > _KEPT:
            self._counters["handoffs_not_kept"] += len(self._pending) - _KEPT
            del self._pending[_KEPT:]

    def settle(self, assignments: Iterable[ThreadAssignment], now_ns: int, *, final: bool = False) -> None:
        """At a tick: ``assignments`` are the new ones; every event before the tick was fed."""
        until = now_ns if final else now_ns - SETTLED_NS - 1  # of this very nanosecond more may come
        ends = sorted(
            (assignment for assignment in assignments if not assignment.begins),
            key=lambda assignment: assignment.time_ns,
        )
        self._ends += ends
        self._pending.sort(key=lambda handoff: handoff.time_ns)
        woken = self._woken_by_process([*self._settled, *self._pending])
        count = bisect_right(self._pending, until, key=lambda handoff: handoff.time_ns)
        for handoff in self._pending:
            self._known[handoff.tid] = handoff.tgid, handoff.time_ns
        for handoff in self._pending[:count]:
            self._answer(handoff.time_ns)
            waited = self._returns.note(handoff)
            if waited or handoff.event in (HandoffEvent.MADE, HandoffEvent.AWAITS):
                continue
            if handoff.event is HandoffEvent.SIGNALLED:
                self._end(handoff.tid, handoff.tgid, handoff.time_ns)
                continue
            before = self._end(handoff.tid, handoff.tgid, handoff.idle_ns)
            if handoff.event is HandoffEvent.WOKEN:
                self._wake(handoff, before, woken.get(handoff.tgid, []))
        self._answer(until)
        self._returns.judge(until + SETTLED_NS if final else until)
        self._settled += self._pending[:count]
        oldest = bisect_left(self._settled, until - SETTLED_NS, key=lambda handoff: handoff.time_ns)
        del self._settled[:oldest], self._pending[:count]

    def _wake(self, handoff: Handoff, before: int, woken: list[Handoff]) -> None:
        exchange = self._owner(handoff)
        if exchange <= 0:
            return
        if before not in (0, exchange):
            self._counters["handoffs_inside_work"] += 1
            return
        first = bisect_left(woken, handoff.time_ns - SETTLED_NS, key=lambda each: each.time_ns)
        last = bisect_right(woken, handoff.time_ns + SETTLED_NS, key=lambda each: each.time_ns)
        others = (o for o in woken[first:last] if handoff.tid not in (o.tid, o.waker))
        if any(self._owner(other) != exchange for other in others):
            self._counters["handoffs_ambiguous"] += 1
            return
        self._working[handoff.tid] = exchange
        self._workers.setdefault(exchange, {})[handoff.tid] = handoff.tgid
        self._assign(handoff.tid, handoff.tgid, handoff.time_ns, exchange, begins=True)

    def _woken_by_process(self, handoffs: Iterable[Handoff]) -> dict[int, list[Handoff]]:
        """Wake-ups in order of time, without those of threads that only wait for what they gave away."""
        found: dict[int, list[Handoff]] = {}
        for handoff in handoffs:
            if handoff.event is HandoffEvent.WOKEN and not self._assigned.owner(handoff.tid, handoff.time_ns):
                found.setdefault(handoff.tgid, []).append(handoff)
        return found

    def _owner(self, handoff: Handoff) -> int:
        """The request that the waker worked for."""
        owner = self._assigned.owner(handoff.waker, handoff.time_ns)
        return owner or self._given.owner(handoff.waker, handoff.time_ns)

    def _end(self, tid: int, tgid: int, time_ns: int) -> int:
        """A worker's work ends; for whom it was, 0 for nobody that has not been answered."""
        exchange = self._working.pop(tid, 0)
        if exchange:
            self._workers[exchange].pop(tid, None)
            if not self._workers[exchange]:
                del self._workers[exchange]
            self._assign(tid, tgid, time_ns, exchange, begins=False)
        return exchange

    def _answer(self, until_ns: int) -> None:
        """Threads let go of requests: so do those that they gave work to."""
        while self._ends and self._ends[0].time_ns <= until_ns:
            assignment = self._ends.popleft()
            for tid, tgid in list(self._workers.get(assignment.exchange, {}).items()):
                self._end(tid, tgid, assignment.time_ns)

    def _assign(self, tid: int, tgid: int, time_ns: int, exchange: int, *, begins: bool) -> None:
        self._given.apply(
            [ThreadAssignment(time_ns=time_ns, tgid=tgid, tid=tid, exchange=exchange, begins=begins)]
        )

    def owners(
        self, tids: npt.NDArray[np.uint32], times_ns: npt.NDArray[np.uint64], now_ns: int, *, final: bool
    ) -> npt.NDArray[np.int64]:
        """The request at each (tid, time), 0 for none, :data:`UNSETTLED` where the next tick will report."""
        if not self._known or not len(tids):
            return np.zeros(len(tids), dtype=np.int64)
        owners = self._given.owners(tids, times_ns)
        ended = self._returns.look_up(tids, times_ns)
        unsettled = ended.exchange == UNSETTLED
        agreed = unsettled | (ended.exchange == 0) | (ended.exchange == owners)
        owners = np.where(owners > 0, np.where(agreed, owners, 0), np.where(ended.sure, ended.exchange, 0))
        if final:
            owners[owners == UNSETTLED] = 0
            return owners
        owners[unsettled] = UNSETTLED
        young = np.flatnonzero(times_ns >= np.uint64(max(now_ns - SETTLED_NS, 0)))
        workers = np.array([tid in self._known for tid in tids[young].tolist()], dtype=np.bool_)
        owners[young[workers]] = UNSETTLED
        return owners

    def forget_before(self, time_ns: int) -> None:
        """Drop what can no longer be asked about."""
        self._given.forget_before(time_ns)
        self._returns.forget_before(time_ns)
        for tid in [tid for tid, (_, last_ns) in self._known.items() if last_ns < time_ns]:
            del self._known[tid]

    def forget_processes(self, tgids: Set[int]) -> None:
        """They ended."""
        for tgid in tgids:
            self._given.forget_process(tgid)
            self._returns.forget_process(tgid)
        for tid in [tid for tid, (owner, _) in self._known.items() if owner in tgids]:
            del self._known[tid]
            exchange = self._working.pop(tid, 0)
            if exchange and tid in self._workers.get(exchange, {}):
                del self._workers[exchange][tid]
                if not self._workers[exchange]:
                    del self._workers[exchange]
