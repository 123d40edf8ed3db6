"""Tier ``wakeup``, from its end: a worker worked for the thread that waited for its result. Pure.

In: events of threads in order of time (:mod:`otelgpu.model.handoffs`), the assignments of the threads that read
requests. Out: segments of workers' time, each of the request that the result at its end was for.

A thread that wants something done makes an object for the result, which has a lock (CPython's ``Future`` and
``Event`` do), hands the work over, makes a semaphore of its own and waits at that. Who wakes it there has the result.
The worker's time since its last result, and since the object was made, was for that: also where it waited meanwhile,
for a lock or for this very work.

Not a result: a lock, which is no semaphore of the waiter's making; a ``Semaphore``, a pool of connections or a stream
of tokens, for which a thread waits without having made an object for it.

What is ambiguous, and therefore not :attr:`Segments.sure`:

* Somebody else's result may have come inside the segment, unreported since nobody waited for it yet: another thread had
  made an object by the segment's end, and :data:`SETTLED_NS` later does not wait for it.
* A thread with a request has waited so without an object, in the same process and within :data:`SHARES_NS`: had a
  result come before it was waited for, the next such wait would be taken for that.
* The worker gave results to several within :data:`BATCH_NS`: then it serves them together, from then on always.

Example: thread 7 of request 1 makes an object at t=10, and waits from t=12; worker 8, whose last result was at t=5,
wakes it at t=30: worker 8 at t=10..29 → 1. Worker 8 itself may wait so for worker 9: that one's segment is of
whoever worker 8's is. A worker's first result only says that it is one. Invariant: what is said of a time depends
on events up to :data:`HELD_NS` and :data:`SETTLED_NS` after it, and not on how these were cut into batches.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, deque
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field

from otelgpu.engine.attribution.threads import AMBIGUOUS, UNSETTLED, ThreadTimeline
from otelgpu.model.codes import distinct
from otelgpu.model.handoffs import Handoff, HandoffEvent
from otelgpu.model.losses import Reasons

REASONS: Final = Reasons(
    "correlate",
    {
        "returns_ambiguous": "a worker's result by which it is not known for whom it worked: another's may "
        "have come meanwhile",
        "returns_batched": "a worker's result among several that it gave at once: it serves requests together, and "
        "none alone",
    },
)
"""What one count of (``correlate``, reason) means."""

SETTLED_NS: Final = 20_000_000
"""Workers that were woken have taken their jobs by then: four turns of CPython's interpreter lock."""

HELD_NS: Final = 5_000_000_000
"""Work that began longer before its result is nobody's."""

BATCH_NS: Final = 100_000
"""Results that follow one another sooner are of one piece of work."""

SHARES_NS: Final = 600_000_000_000
"""So long after a thread waited for something that is no result, its process's results say nothing of that."""

_OBJECTS: Final = 256
"""Of a thread, that nobody waited for."""


class _Wait(Struct):
    began: int
    made: int  # the first object whose result it may be for
    exchange: int  # 0: of whoever the waiting worker works for


class _Segment(Struct):
    start: int
    end: int
    exchange: int  # UNSETTLED while that of another worker's segment is
    sure: bool = False


class _Return(Struct):
    worker: int
    receiver: int
    made: int
    segment: _Segment


class _Worker(Struct):
    tgid: int
    since: int  # its first result
    returned: int = 0  # its last
    receiver: int = 0  # of that
    batch: tuple[int, int] | None = None  # the first two results that were one
    unjudged: deque[int] = field(default_factory=deque)  # times of results
    judged: int = 0  # of the last that is
    segments: list[_Segment] = field(default_factory=list)  # in order of time


class _Made(Struct):
    """A thread's objects that nobody waited for, oldest first: when each was made, and for which request."""

    times: list[int] = field(default_factory=list)
    exchanges: list[int] = field(default_factory=list)

    def drop(self, place: int) -> None:
        del self.times[place], self.exchanges[place]

    def of(self, exchange: int) -> tuple[int, int] | None:
        """Places of the first and the last of a request; None: there is none."""
        if exchange not in self.exchanges:
            return None
        return self.exchanges.index(exchange), len(self.exchanges) - 1 - self.exchanges[::-1].index(exchange)

    def since(self, time_ns: int) -> tuple[int, int] | None:
        """The same of those made from then on."""
        first = bisect_left(self.times, time_ns)
        return (first, len(self.times) - 1) if first < len(self.times) else None


class _Process(Struct):
    made: dict[int, _Made] = field(default_factory=dict)  # by thread
    blind_ns: int = 0  # some that were made by then are not kept
    shares_until_ns: int = 0  # what threads wait for may be no result


class Segments(Struct, frozen=True):
    """Of n (thread, time): whose result ended the segment, and whether all of the segment was for that.

    ``exchange``: 0 for none, UNSETTLED for not yet known, AMBIGUOUS for several at once.
    """

    exchange: npt.NDArray[np.int64]
    sure: npt.NDArray[np.bool_]


class Returns:
    """Those of one session. ``assigned``: the exchanges of threads that read the requests themselves."""

    def __init__(self, assigned: ThreadTimeline, counters: Counter[str]) -> None:
        self._assigned, self._counters = assigned, counters
        self._processes: dict[int, _Process] = {}
        self._waits: dict[int, _Wait] = {}
        self._workers: dict[int, _Worker] = {}
        self._unjudged: deque[_Return] = deque()
        self._children: list[_Return] = []  # for workers of whom it is not yet known for whom they worked
        self._judged_ns = 0

    def note(self, event: Handoff) -> bool:
        """The next event in order of time; whether it ends a wait for what its thread had given away."""
        self.judge(event.time_ns)
        if event.event is HandoffEvent.MADE:
            self._make(event)
        elif event.event is HandoffEvent.AWAITS:
            self._await(event)
        elif event.event is not HandoffEvent.SIGNALLED:
            wait = self._waits.pop(event.tid, None)
            if wait is not None and wait.began == event.idle_ns:
                if event.event is HandoffEvent.WOKEN:
                    self._return(event, wait)
                return True
        return False

    def _make(self, event: Handoff) -> None:
        process = self._processes.setdefault(event.tgid, _Process())
        made = process.made.setdefault(event.tid, _Made())
        made.times.append(event.time_ns)
        made.exchanges.append(self._assigned.owner(event.tid, event.time_ns))
        if len(made.times) > _OBJECTS:
            self._keep_due(event.tid, made, event.time_ns)
        if len(made.times) > _OBJECTS:
            made.drop(0)
            process.blind_ns = event.time_ns

    def _keep_due(self, tid: int, made: _Made, now_ns: int) -> None:
        """Drop objects that segments which are not judged yet can have nothing to do with."""
        at_ns = now_ns - HELD_NS - 2 * SETTLED_NS
        young = bisect_left(made.times, at_ns - SETTLED_NS)
        exchange = self._assigned.owner(tid, at_ns) if young else 0
        for place in reversed(range(young)):
            if not exchange or made.exchanges[place] != exchange:
                made.drop(place)

    def _await(self, event: Handoff) -> None:
        tid = event.tid
        process = self._processes.get(event.tgid)
        self._waits.pop(tid, None)
        if process is None or (made := process.made.get(tid)) is None or not made.times:
            return
        made.drop(-1)  # what it waits at
        exchange = max(self._assigned.owner(tid, event.time_ns), 0)
        worker = self._workers.get(tid)
        since = worker.returned if worker is not None else event.time_ns
        objects = made.of(exchange) if exchange else made.since(since)
        if objects is not None:
            first, last = objects
            self._waits[tid] = _Wait(event.time_ns, made.times[first], exchange)
            made.drop(last)  # of several it may be any: the longest due stays
        elif exchange:
            process.shares_until_ns = event.time_ns + SHARES_NS

    def _return(self, event: Handoff, wait: _Wait) -> None:
        tid, time_ns = event.waker, event.time_ns
        if self._assigned.owner(tid, time_ns):
            return
        worker = self._workers.get(tid)
        if worker is None:
            worker = self._workers[tid] = _Worker(event.tgid, time_ns)
        else:
            if time_ns - worker.returned < BATCH_NS and worker.receiver != event.tid:
                worker.batch = worker.batch or (worker.returned, time_ns)
            start = max(worker.returned, wait.made, time_ns - HELD_NS)
            segment = _Segment(start, time_ns, wait.exchange or UNSETTLED)
            self._unjudged.append(_Return(tid, event.tid, wait.made, segment))
        worker.returned, worker.receiver = time_ns, event.tid
        worker.unjudged.append(time_ns)

    def judge(self, until_ns: int) -> None:
        """Every event before ``until_ns`` was noted."""
        while self._unjudged and self._unjudged[0].segment.end + SETTLED_NS <= until_ns:
            found = self._unjudged.popleft()
            worker = self._workers.get(found.worker)
            if worker is not None:
                self._judge(found, worker)
        self._judged_ns = max(self._judged_ns, until_ns - SETTLED_NS)
        if self._children:
            self._children = [child for child in self._children if not self._is_adopted(child)]

    def _judge(self, found: _Return, worker: _Worker) -> None:
        segment = found.segment
        if worker.batch is not None and segment.end >= worker.batch[0]:
            segment.exchange = AMBIGUOUS
            self._counters["returns_batched"] += 1
        elif self._is_exposed(found, worker.tgid):
            self._counters["returns_ambiguous"] += 1
        else:
            segment.sure = True
        worker.segments.append(segment)
        if segment.exchange == UNSETTLED:
            self._children.append(found)

    def _is_exposed(self, found: _Return, tgid: int) -> bool:
        """Whether somebody else's result may have come inside a segment, unreported."""
        segment = found.segment
        process = self._processes.get(tgid)
        if process is None:
            return False
        return segment.start <= max(process.blind_ns, process.shares_until_ns) or any(
            self._has_due(tid, made, segment)
            for tid, made in process.made.items()
            if made.times and tid != found.worker
        )

    def _has_due(self, tid: int, made: _Made, segment: _Segment) -> bool:
        """Whether work for one of these, not of the segment's request, may have been under way inside the segment.

        That is until the object's request is answered, and for :data:`SETTLED_NS` at least.
        """
        last = bisect_right(made.times, segment.end)
        young = bisect_left(made.times, segment.start - SETTLED_NS, hi=last)
        if made.exchanges[young:last].count(segment.exchange) != last - young:
            return True
        if not young:
            return False
        exchange = self._assigned.owner(tid, segment.start)
        return exchange not in (0, segment.exchange) and exchange in made.exchanges[:young]

    def _is_adopted(self, found: _Return) -> bool:
        """A worker's worker: once it is known for whom that one worked, so is this."""
        segment, worker = found.segment, self._workers.get(found.receiver)
        if worker is not None and found.made >= self._settled_until(worker):
            return False
        segments = worker.segments if worker is not None else []
        place = bisect_right(segments, found.made, key=lambda each: each.start) - 1
        if place < 0 or segments[place].end < segment.end or not segments[place].sure:
            segment.exchange = 0
        elif segments[place].exchange == UNSETTLED:
            return False
        else:
            segment.exchange = segments[place].exchange
        return True

    def _settled_until(self, worker: _Worker) -> int:
        while worker.unjudged and worker.unjudged[0] <= self._judged_ns:
            worker.judged = worker.unjudged.popleft()
        return max(worker.judged, self._judged_ns - HELD_NS, worker.since)

    def look_up(self, tids: npt.NDArray[np.uint32], times_ns: npt.NDArray[np.uint64]) -> Segments:
        """What is known of each (thread, time)."""
        exchange, sure = np.zeros(len(tids), dtype=np.int64), np.zeros(len(tids), dtype=np.bool_)
        asked, codes = distinct(tids)
        for code, tid in enumerate(asked.tolist()):
            worker = self._workers.get(tid)
            if worker is None:
                continue
            mine = np.flatnonzero(codes == code)
            times = times_ns[mine]
            if worker.segments:
                starts = np.array([each.start for each in worker.segments], dtype=np.uint64)
                ends = np.array([each.end for each in worker.segments], dtype=np.uint64)
                place = np.searchsorted(starts, times, side="right") - 1
                inside = (place >= 0) & (times < ends[place])
                exchanges = np.array([each.exchange for each in worker.segments], dtype=np.int64)
                all_sure = np.array([each.sure for each in worker.segments], dtype=np.bool_)
                exchange[mine] = np.where(inside, exchanges[place], 0)
                sure[mine] = inside & all_sure[place]
            exchange[mine[times >= np.uint64(self._settled_until(worker))]] = UNSETTLED
            if worker.batch is not None:
                exchange[mine[times >= np.uint64(worker.batch[1])]] = AMBIGUOUS
        return Segments(exchange, sure)

    def forget_before(self, time_ns: int) -> None:
        """Drop what can no longer be asked about."""
        for tid, worker in list(self._workers.items()):
            del worker.segments[: bisect_left(worker.segments, time_ns, key=lambda each: each.end)]
            if worker.returned < time_ns:
                del self._workers[tid]
        for tid in [tid for tid, wait in self._waits.items() if wait.began < time_ns]:
            del self._waits[tid]
        for process in self._processes.values():
            for tid, made in process.made.items():
                self._keep_due(tid, made, self._judged_ns)
            process.made = {tid: made for tid, made in process.made.items() if made.times}

    def forget_process(self, tgid: int) -> None:
        """A process ended."""
        for tid in [tid for tid, worker in self._workers.items() if worker.tgid == tgid]:
            del self._workers[tid]
            self._waits.pop(tid, None)
        for tid in self._processes.pop(tgid, _Process()).made:
            self._waits.pop(tid, None)
