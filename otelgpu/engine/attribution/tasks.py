"""Tier ``task``: which request a task (a goroutine, an asyncio task) worked for at a time. Pure.

In: what is learnt of the tasks that serve requests (:class:`~otelgpu.model.tasks.TaskService`), and columns of
(process, task, time). Out: for each row the exchange's key, or why there is none.

How. The task that writes a response's first bytes serves the request: reading says nothing, for an event loop's
callbacks read, and Go's next request is read in part by another goroutine. So it is known in retrospect: what a task
did between the end of the request's head and its own last write of the response is that request's. A row waits while a
request is open that had begun by then. One that no request's interval holds when all of those are over is of none: the
task answered nothing (what a handler started beside itself), or had answered (a background task).

A task's number may be another's once it has ended. An interval lies within the life of the task that wrote the
response, but for what comes between the head's end and the start of a task that was made for it; where the intervals of
two requests hold one moment of a task, it is neither's: :data:`AMBIGUOUS`.

A task that serves a connection may still be at work for one request when the callbacks of its loop read the next one.
Where such a task has called between two requests, none of its process is trusted with any but the first one from then
on (:class:`_Process`), unless it read the head itself (Go), or tasks are made for requests: one that has served two
connections at a time is no connection's.

Example, task 7 serves requests 1 and 2 of a connection: told are (1, t=10..30) and (2, t=50..60). A call of task 7 at
t=20 is of 1, at t=40 of none as soon as no request is open that had begun by 40, at t=55 of 2. A call of task 8, which
a handler made, at t=20 waits for 1 and all others of that time, and is then of none.

Invariant: an answer depends on what requests did that had begun by then, and on nothing later.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field

from otelgpu.engine.attribution.threads import AMBIGUOUS, NO_TASK, UNSETTLED
from otelgpu.model.codes import distinct
from otelgpu.model.tasks import TaskService

_AROUND: Final = 8
"""Intervals of a task that are looked at before the last one that had begun: more never overlap."""
_CALLS: Final = 64
_OPEN: Final = 65_536
"""Open requests that are waited for; of more the oldest are not."""
_FOREVER_NS: Final = (1 << 64) - 1


class _Task(Struct):
    """The requests that a task has served, in the order of their beginnings. Ends are inclusive.

    ``follows``: it may still have been at work for the one before. ``called``: when it called for none that was
    known then, the last :data:`_CALLS` times.
    """

    begins: array[int] = field(default_factory=lambda: array("Q"))
    ends: array[int] = field(default_factory=lambda: array("Q"))
    exchanges: array[int] = field(default_factory=lambda: array("q"))
    follows: array[int] = field(default_factory=lambda: array("B"))
    called: list[int] = field(default_factory=list)

    def add(self, service: TaskService, exchange: int, *, follows: bool) -> None:
        at = bisect_right(self.begins, service.begin_ns)
        self.begins.insert(at, service.begin_ns)
        self.ends.insert(at, service.end_ns)
        self.exchanges.insert(at, exchange)
        self.follows.insert(at, follows)

    def owners(self, times_ns: npt.NDArray[np.uint64], *, trusted: bool) -> npt.NDArray[np.int64]:
        """At each time the request, AMBIGUOUS, or 0."""
        first = max(bisect_left(self.begins, int(times_ns.min())) - _AROUND, 0)
        last = bisect_right(self.begins, int(times_ns.max()))
        begins, ends = np.array(self.begins[first:last]), np.array(self.ends[first:last])
        if not len(begins):
            return np.zeros(len(times_ns), dtype=np.int64)
        at = np.searchsorted(
            begins, times_ns, side="right"
        )  # how many had begun: the last of these, or none, holds
        until = np.concatenate([[np.uint64(0)], np.maximum.accumulate(ends)])  # ... the first n of them
        overlapped = until[np.maximum(at, 1) - 1] >= times_ns
        holds = np.concatenate([[np.uint64(0)], ends])[at] >= times_ns
        outside = (at > 0) & ~overlapped & ~holds
        if outside.any():
            self.called = sorted({*self.called, *times_ns[outside][-_CALLS:].tolist()})[-_CALLS:]
            for following in () if trusted else np.unique(at[outside] + first).tolist():
                if following < len(self.begins) and self.follows[following]:
                    self.exchanges[following] = AMBIGUOUS
        requests = np.concatenate([[0], np.array(self.exchanges[first:last])])[at]
        return np.where(overlapped, AMBIGUOUS, np.where(holds, requests, 0))

    def forget_before(self, time_ns: int) -> None:
        cut = bisect_left(self.begins, time_ns)
        while cut and self.ends[cut - 1] >= time_ns:
            cut -= 1
        del self.begins[:cut], self.ends[:cut], self.exchanges[:cut], self.follows[:cut]


class _Process(Struct):
    """``served``: task → the connection that it answered on last, and when. ``left``: connection → when for another."""

    open: dict[int, int] = field(default_factory=dict)  # exchange → when it began
    tasks: dict[int, _Task] = field(default_factory=dict)
    served: dict[int, tuple[int, int]] = field(default_factory=dict)
    left: dict[int, int] = field(default_factory=dict)
    is_per_request: bool = False  # tasks are made for requests
    works_after: bool = False  # a connection's task has called between two requests

    def serve(self, service: TaskService) -> None:
        """A request is over that a task has answered."""
        connection, before_ns = self.served.get(service.task, (service.connection, 0))
        self.served[service.task] = service.connection, service.end_ns
        if connection != service.connection:
            self.left[connection] = service.begin_ns
        if self.left.get(service.connection, service.begin_ns) < service.begin_ns:
            self.is_per_request = True  # the connection lives on without the task that has left it
        follows = bool(before_ns) and connection == service.connection and not service.is_read_by_task
        task = self.tasks.setdefault(service.task, _Task())
        self.works_after = self.works_after or (
            follows and any(before_ns < each < service.begin_ns for each in task.called)
        )
        trusted = not follows or not self.works_after or self.is_per_request
        task.add(service, service.exchange if trusted else AMBIGUOUS, follows=follows)

    @property
    def oldest_ns(self) -> int:
        """When the request began that has been open for longest; of none, never."""
        return min(self.open.values(), default=_FOREVER_NS)


class TaskTimeline:
    """The requests that tasks have served, for as long as questions about them can come."""

    def __init__(self) -> None:
        self._processes: dict[int, _Process] = {}
        self.not_awaited = 0  # open requests beyond those that are waited for

    def __bool__(self) -> bool:
        """Whether anything was ever told."""
        return bool(self._processes)

    def take(self, services: Iterable[TaskService]) -> None:
        """What was learnt, in the order in which it was."""
        for service in services:
            process = self._processes.get(service.tgid)
            if process is None:
                process = self._processes[service.tgid] = _Process()
            if not service.is_over:
                process.open[service.exchange] = service.begin_ns
                if len(process.open) > _OPEN:
                    del process.open[next(iter(process.open))]
                    self.not_awaited += 1
                continue
            process.open.pop(service.exchange, None)
            if service.task and service.end_ns >= service.begin_ns:
                process.serve(service)

    def owners(
        self,
        tgids: npt.NDArray[np.uint32],
        tasks: npt.NDArray[np.uint64],
        times_ns: npt.NDArray[np.uint64],
        *,
        final: bool,
    ) -> npt.NDArray[np.int64]:
        """The request at each (process, task, time); AMBIGUOUS, NO_TASK, or UNSETTLED, unless ``final``."""
        owners = np.full(len(times_ns), NO_TASK, dtype=np.int64)
        processes, process_codes = distinct(tgids)
        for code, tgid in enumerate(processes.tolist()):
            process = self._processes.get(tgid)
            if process is None:
                continue
            mine = np.flatnonzero(process_codes == code)
            when, found = times_ns[mine], np.zeros(len(mine), dtype=np.int64)
            numbers, codes = distinct(tasks[mine])
            order = np.argsort(codes, kind="stable")
            bounds = np.searchsorted(codes[order], np.arange(len(numbers) + 1))
            for number, begin, end in zip(numbers.tolist(), bounds[:-1], bounds[1:], strict=True):
                task = process.tasks.get(number)
                if task is not None:
                    rows = order[begin:end]
                    found[rows] = task.owners(when[rows], trusted=process.is_per_request)
            if not final:
                found[(found == 0) & (when >= process.oldest_ns)] = UNSETTLED
            found[found == 0] = NO_TASK
            owners[mine] = found
        return owners

    def have_answered(
        self,
        tgids: npt.NDArray[np.uint32],
        tasks: npt.NDArray[np.uint64],
        exchanges: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.bool_]:
        """Whether each task of a process has answered a request, as far as is known by now: shape (n,)."""
        asked = list(zip(tgids.tolist(), tasks.tolist(), exchanges.tolist(), strict=True))
        known = {each: self._has_answered(*each) for each in set(asked)}
        return np.array([known[each] for each in asked], dtype=np.bool_)

    def _has_answered(self, tgid: int, number: int, exchange: int) -> bool:
        process = self._processes.get(tgid)
        task = process.tasks.get(number) if process is not None else None
        return task is not None and exchange in task.exchanges

    def owner(self, tgid: int, task: int, time_ns: int, *, final: bool = False) -> int:
        """The same of one."""
        owners = self.owners(
            np.array([tgid], np.uint32),
            np.array([task], np.uint64),
            np.array([time_ns], np.uint64),
            final=final,
        )
        return int(owners[0])

    def forget_before(self, time_ns: int) -> None:
        """Drop what can no longer be asked about, and stop to wait for requests that began before."""
        for process in self._processes.values():
            for exchange in [key for key, begin_ns in process.open.items() if begin_ns < time_ns]:
                del process.open[exchange]
            process.left = {key: left_ns for key, left_ns in process.left.items() if left_ns >= time_ns}
            for number, (_, end_ns) in list(process.served.items()):
                if end_ns < time_ns:
                    del process.served[number]
            for number, task in list(process.tasks.items()):
                task.forget_before(time_ns)
                if not task.begins:
                    del process.tasks[number]

    def forget_process(self, tgid: int) -> None:
        """A process ended."""
        self._processes.pop(tgid, None)
