"""Processes whose threads are no evidence of whose work they do, by the runtime that serves their requests. Pure.

In: what is known of processes; the assignments of threads that read requests. Out: those assignments that are evidence,
and which work nobody can be found for because a runtime multiplexes its requests.

A request that is read without waiting in a process with such a runtime is nobody's work by its thread, and with some
(:data:`ALL_THREADS`) any request. In one that is
known to have threads alone (CPython without an event loop), a thread that reads without waiting has set a timeout, and
serves one request at a time all the same. What is not known of either is judged by what it does: see
:mod:`otelgpu.engine.attribution.threads`.

Example: process 7 runs Node.js. Thread 7 reads request 1 at t=10 and answers it at t=30: work at t=20 is of a process
with a request under way, and so unattributed as ``multiplexed``; at t=40 it is of no request.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from otelgpu.engine.attribution.threads import ThreadTimeline
from otelgpu.model.exchange import ThreadAssignment
from otelgpu.model.inputs import ProcessSeen, RuntimesSeen
from otelgpu.model.resource import GO
from otelgpu.model.runtimes import CPYTHON, GRPCIO, multiplexing
from otelgpu.model.tasks import TaskService

ALL_THREADS: Final = frozenset({GO, "node", "tokio"})
"""Runtimes whose programs serve requests with nothing else."""


class MultiplexedProcesses:
    """Those of one session. ``threads``: what threads hold, from which is taken back what is no evidence."""

    def __init__(self, threads: ThreadTimeline) -> None:
        self._threads = threads
        self._runtimes: dict[int, tuple[str, ...]] = {}  # of those that multiplex
        self._threaded: set[int] = set()  # processes that are known not to
        self._under_way = ThreadTimeline()  # of processes in place of threads
        self.is_used = False
        """Whether any process reads without waiting, or is Go's: without one, no other question has an answer."""

    def see(self, seen: ProcessSeen) -> None:
        """A process is described, which says whether the Go toolchain built it."""
        if seen.resource.get("process.runtime.name") == GO:
            self.is_used = True
            self._runtimes[seen.tgid] = (GO,)
        elif not seen.same_program and self._runtimes.get(seen.tgid) == (GO,):
            del self._runtimes[seen.tgid]  # it has exec'd

    def learn(self, seen: RuntimesSeen) -> None:
        """What a process serves requests with, also those that were read shortly before."""
        self._runtimes.pop(seen.tgid, None)
        if found := multiplexing(seen.runtimes):
            self._runtimes[seen.tgid] = found
            self._threads.forget_loops(seen.tgid)
        elif CPYTHON in seen.runtimes:
            self._threaded.add(seen.tgid)

    def evidence(self, assignments: Iterable[ThreadAssignment]) -> Sequence[ThreadAssignment]:
        """Those by which a thread's work is the request's."""
        kept: list[ThreadAssignment] = []
        for each in assignments:
            if each.loop and each.tgid in self._threaded:
                kept.append(replace(each, loop=False))
                continue
            runtimes = self._runtimes.get(each.tgid)
            may_be_anybodys = each.loop or (runtimes is not None and not ALL_THREADS.isdisjoint(runtimes))
            if may_be_anybodys:
                self.is_used = True
                self._under_way.apply((replace(each, tid=each.tgid, loop=False),))
            if runtimes is None or not may_be_anybodys:
                kept.append(each)
        return kept

    def known_services(self, services: Iterable[TaskService]) -> list[TaskService]:
        """Those of tasks, the task unknown where who writes a stream's frames need not serve it."""
        return [
            replace(each, task=0) if each.is_framed and GRPCIO in self.runtimes_of(each.tgid) else each
            for each in services
        ]

    def runtimes_of(self, tgid: int) -> tuple[str, ...]:
        """Of a process whose threads are no evidence; () of others."""
        return self._runtimes.get(tgid, ())

    def is_under_way(self, tgid: int, time_ns: int) -> bool:
        """Whether a process multiplexed requests at a time, of which some were under way."""
        return tgid in self._runtimes and self._under_way.owner(tgid, time_ns) != 0

    def are_under_way(
        self, tgids: npt.NDArray[np.uint32], times_ns: npt.NDArray[np.uint64]
    ) -> npt.NDArray[np.bool_]:
        """:meth:`is_under_way` of each: shape (n,)."""
        multiplexed: npt.NDArray[np.bool_] = np.isin(tgids, np.fromiter(self._runtimes, dtype=np.uint32))
        under_way: npt.NDArray[np.bool_] = self._under_way.owners(tgids, times_ns) != 0
        return multiplexed & under_way

    def forget_before(self, time_ns: int) -> None:
        """Drop what can no longer be asked about."""
        self._under_way.forget_before(time_ns)

    def forget_process(self, tgid: int) -> None:
        """A process ended."""
        self._under_way.forget_process(tgid)
        self._runtimes.pop(tgid, None)
        self._threaded.discard(tgid)
