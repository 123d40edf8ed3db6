"""Where the steps of the threads of one process end, and which operations are of each. Pure.

In: operations of a process, all that had returned by a time, in any order. Out: :class:`Found` steps. It must not
know of requests or messages.

How. A thread's step ends where its results are waited for, once it has launched something:

* a wait for a stream, for the device, or a copy to the host that waits: the step ends there;
* a wait for an event: the step is what was queued *before the event was recorded*, by the thread that recorded it,
  whoever waits. So steps are distinguished also where the next one is queued before the results of this one are
  waited for (asynchronous scheduling).

On a thread that copies results to the host, a wait must cover such a copy (same stream, or device), save one for an
event before which none was queued: a step without results, such as a part of a prompt, is waited for by its event.
Few calls are looked at one by one (:data:`~otelgpu.engine.call_roles.MARKS`); the others are counted and cut in
columns.

Example: ``launch 1, read 1, record A, launch 2, read 2, record B, wait A, launch 3 …``: the wait ends step 1,
which is the first three calls and the wait; ``wait B`` will end step 2, which began before.
What a thread queues while it captures a graph is work of no step, and what it does before the first work of its
first step is of none: programs start up.
Invariant: every operation comes out once, with a step or among the ``rest``.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field

from otelgpu.engine.call_roles import (
    MARKS,
    WAITS,
    WORK,
    Role,
    Roles,
    StepCalls,
    StepRules,
    is_one_of,
    pass_over_captured,
)
from otelgpu.families.steps.evidence import evidence_of
from otelgpu.families.steps.step import Step
from otelgpu.model.codes import all_of, distinct, order_of
from otelgpu.model.operations import Operations, concatenate

EVENTS: Final = 1024
"""Events of a process of which records are remembered; with more, the longest unused is forgotten."""

THREADS: Final = 1024
"""Threads of a process whose steps are numbered on when they have been idle."""

_RECORDS: Final = 4  # of one event: a wait on another thread may come after the next record
_READS: Final = 256  # copies to the host of a thread since its last step
_DEFAULT_STREAMS: Final = (0, 1, 2)  # cudaStreamLegacy, cudaStreamPerThread and NULL: one to us


class _Record(NamedTuple):
    start_ns: int
    tid: int
    launched: int  # by the thread, in all, before
    stream: int


class _Thread(Struct):
    """A thread's calls since the end of its last step."""

    tid: int
    chunks: list[Operations] = field(default_factory=list)  # in order of time
    launched: int = 0
    cut_launched: int = 0  # of ``launched``, those of finished steps
    cut_ns: int = -1  # the last call of the last step
    reads_results: bool = False
    reads: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=_READS))  # (start, stream)
    began_ns: int = 0  # of a step whose first operations were let go; 0: none were
    ended_ns: int = 0  # of the last step
    steps: int = 0

    def in_order(self) -> tuple[Operations, npt.NDArray[np.uint64]]:
        """All rows by start, and those."""
        rows = concatenate(self.chunks)
        starts = np.ascontiguousarray(rows["start_ns"])
        if not all_of(starts[1:] >= starts[:-1]):
            order = np.argsort(starts, kind="stable")
            rows, starts = rows.take(order), starts[order]
        return rows, starts

    def keep(self, rows: Operations) -> None:
        """In place of all it had."""
        self.chunks = [rows] if len(rows) else []

    def read_by(self, time_ns: int, stream: int | None) -> bool:
        """Whether a copy to the host was queued since the last step; None: on any stream."""
        return any(start <= time_ns and stream in (None, on) for start, on in self.reads)


class _Cut(Struct):
    """A step that has ended: what its thread did until ``upto_ns``, and the wait, on whatever thread."""

    thread: _Thread
    upto_ns: int
    end_ns: int
    wait: tuple[int, int]  # tid, start


class Found(Struct, frozen=True):
    """A step and its operations."""

    step: Step
    rows: Operations


class ProcessSteps:
    """The steps of one process. What it holds is bounded by whoever feeds it: see :attr:`rows`."""

    def __init__(self, tgid: int, calls: StepCalls, rules: StepRules) -> None:
        self._tgid = tgid
        self._calls = calls
        self._rules = rules
        self._fresh: list[Operations] = []
        self._threads: dict[int, _Thread] = {}
        self._events: OrderedDict[int, deque[_Record]] = OrderedDict()
        self._capturing: set[int] = set()  # threads
        self._early: list[Operations] = []  # of threads, before their first steps
        self._any = False
        self.rows = 0  # operations held
        self.stray_ns = 0  # the last wait before the first step: one that was not seen may have ended there

    def add(self, rows: Operations) -> None:
        """More operations. The array is kept, not copied."""
        self._fresh.append(rows)
        self.rows += len(rows)

    def advance(self, now_ns: int, *, final: bool = False) -> tuple[list[Found], list[Operations]]:
        """The steps that ended by ``now_ns``, in order of their ends, and operations that are of none.

        All operations that had returned by then have been added. ``final``: nothing is held back.
        """
        rest = self._from_the_future(now_ns + self._rules.longest_ns)
        found = self._apply(now_ns, final=final)
        rest += self._early + self._let_go(now_ns - self._rules.longest_ns, final=final)
        self._early = []
        self.rows -= sum(len(each.rows) for each in found) + sum(map(len, rest))
        return found, rest

    def _apply(self, now_ns: int, *, final: bool) -> list[Found]:
        if not self._fresh:
            return []
        rows = concatenate(self._fresh)
        ends = _ends(rows)
        order = np.argsort(ends, kind="stable")
        if not final:
            order = order[: int(np.searchsorted(ends[order], np.uint64(max(now_ns, 0)), side="right"))]
        later = np.ones(len(rows), dtype=np.bool_)
        later[order] = False
        self._fresh = [rows.compress(later)] if later.any() else []
        rows = rows.take(order)
        if not len(rows):
            return []
        roles = self._calls.roles(rows)
        pass_over_captured(rows, roles, self._capturing)
        launched = self._keep(rows, roles)
        cuts = self._cuts(rows, roles, launched)
        return self._take_out(cuts)

    def _from_the_future(self, after_ns: int) -> list[Operations]:
        """Operations with absurd times, which would wait for ever."""
        rest = []
        for i, rows in enumerate(self._fresh):
            absurd = _ends(rows) > np.uint64(max(after_ns, 0))
            if absurd.any():
                rest.append(rows.compress(absurd))
                self._fresh[i] = rows.compress(~absurd)
        return rest

    def _keep(self, rows: Operations, roles: Roles) -> npt.NDArray[np.int64]:
        """Put each thread's rows behind those it has; how many launches the thread had made before each."""
        launched = np.zeros(len(rows), dtype=np.int64)
        tids, codes = distinct(np.ascontiguousarray(rows["tid"]))
        launches = roles == Role.LAUNCH
        by_start = np.argsort(rows["start_ns"], kind="stable")
        by_thread = by_start[order_of(codes[by_start], len(tids))]
        ends = np.cumsum(np.bincount(codes, minlength=len(tids)))
        for tid, mine in zip(tids.tolist(), np.split(by_thread, ends[:-1]), strict=True):
            thread = self._threads.setdefault(tid, _Thread(tid))
            counted = np.cumsum(launches[mine])
            launched[mine] = thread.launched + counted
            thread.launched += int(counted[-1])
            thread.chunks.append(rows.take(mine))
        return launched

    def _cuts(self, rows: Operations, roles: Roles, launched: npt.NDArray[np.int64]) -> list[_Cut]:
        """Go through the calls that may end a step, in the order in which they returned."""
        marks = np.flatnonzero(is_one_of(roles, MARKS))
        chosen = rows.take(marks)
        cuts = []
        for start, end, tid, role, handle, stream, before in zip(
            chosen["start_ns"].tolist(),
            _ends(chosen).tolist(),
            chosen["tid"].tolist(),
            roles[marks].tolist(),
            chosen["handle"].tolist(),
            chosen["stream"].tolist(),
            launched[marks].tolist(),
            strict=True,
        ):
            thread = self._threads[tid]
            mark = _Record(start, tid, before, _stream(stream))
            if role == Role.RECORD:
                self._record(handle, mark)
            elif role in (Role.D2H_COPY, Role.D2H_COPY_QUEUED):
                thread.reads.append((start, mark.stream))
                thread.reads_results |= self._rules.reads_results and before > thread.cut_launched
            if role not in WAITS:
                continue
            cut = self._ended(role, mark, handle)
            if cut is None:
                self.stray_ns = self.stray_ns if self._any else end
            else:
                self._any = True
                owner, upto_ns, count = cut
                owner.cut_ns, owner.cut_launched = upto_ns, count
                owner.reads = deque((read for read in owner.reads if read[0] > upto_ns), maxlen=_READS)
                cuts.append(_Cut(owner, upto_ns, end, (tid, start)))
        return cuts

    def _record(self, event: int, mark: _Record) -> None:
        records = self._events.setdefault(event, deque(maxlen=_RECORDS))
        records.append(mark)
        self._events.move_to_end(event)
        if len(self._events) > EVENTS:
            self._events.popitem(last=False)

    def _ended(self, role: int, wait: _Record, handle: int) -> tuple[_Thread, int, int] | None:
        """The thread whose step a wait ends, the step's last call, and the launches until then; None: it ends none."""
        upto, stream = wait, None
        if role == Role.WAIT_EVENT:
            found = [each for each in self._events.get(handle, ()) if each.start_ns < wait.start_ns]
            if not found:
                return None
            upto = max(found)
            stream = upto.stream
        elif role == Role.WAIT_STREAM:
            stream = _stream(handle)
        elif role == Role.D2H_COPY:
            stream = wait.stream
        thread = self._threads.get(upto.tid)
        if thread is None or upto.start_ns <= thread.cut_ns or upto.launched <= thread.cut_launched:
            return None
        covers = thread.read_by(upto.start_ns, stream)
        resultless = role == Role.WAIT_EVENT and not thread.read_by(upto.start_ns, None)
        if thread.reads_results and not (covers or resultless):
            return None
        return thread, upto.start_ns, upto.launched

    def _take_out(self, cuts: Sequence[_Cut]) -> list[Found]:
        """The operations of the steps that have ended, taken from their threads."""
        if not cuts:
            return []
        parts: list[list[Operations]] = [[] for _ in cuts]
        position = {cut.wait: i for i, cut in enumerate(cuts)}
        of_thread: dict[int, list[int]] = {}
        for i, cut in enumerate(cuts):
            of_thread.setdefault(cut.thread.tid, []).append(i)
        touched = dict.fromkeys([*of_thread, *(tid for tid, _ in position)])
        for tid in touched:
            thread = self._threads[tid]
            rows, starts = thread.in_order()
            mine = of_thread.get(tid, [])
            bounds = np.array([cuts[i].upto_ns for i in mine], dtype=np.uint64)
            # The last place is of what is of no step yet.
            owner = np.array([*mine, len(cuts)], dtype=np.intp)[np.searchsorted(bounds, starts, side="left")]
            for (waiter, start), i in position.items():
                if waiter == tid:
                    found = np.searchsorted(starts, np.uint64(start), side="left")
                    until = np.searchsorted(starts, np.uint64(start), side="right")
                    owner[found:until] = i
            ordered = rows.take(order_of(owner, len(cuts) + 1))
            bounds_of = np.cumsum(np.bincount(owner, minlength=len(cuts) + 1)).tolist()
            for i, (begin, end) in enumerate(pairwise([0, *bounds_of])):
                if i == len(cuts):
                    thread.keep(concatenate([ordered[begin:end]]))
                elif end > begin:
                    parts[i].append(ordered[begin:end])
        return [self._found(cut, concatenate(rows)) for cut, rows in zip(cuts, parts, strict=True)]

    def _found(self, cut: _Cut, rows: Operations) -> Found:
        thread = cut.thread
        roles = self._calls.roles(rows)
        pass_over_captured(rows, roles, set())
        begun = np.flatnonzero(is_one_of(roles, WORK) & (rows["tid"] == thread.tid))
        starts = rows["start_ns"][begun] if len(begun) else rows["start_ns"]
        start_ns = thread.began_ns or int(starts.min(initial=cut.upto_ns))
        if not thread.steps:  # a program starts up before its first step
            early = rows["start_ns"] < start_ns
            self._early.append(rows.compress(early))
            rows, roles = rows.compress(~early), roles[~early]
        thread.began_ns = 0
        thread.steps += 1
        gap_ns = max(start_ns - thread.ended_ns, 0) if thread.ended_ns else 0
        thread.ended_ns = cut.end_ns
        step = Step(
            tgid=self._tgid,
            tid=thread.tid,
            number=thread.steps,
            start_ns=start_ns,
            end_ns=cut.end_ns,
            gap_ns=gap_ns,
            rows=len(rows),
            evidence=evidence_of(rows, roles, thread.tid),
        )
        return Found(step, rows)

    def _let_go(self, before_ns: int, *, final: bool) -> list[Operations]:
        """Operations that waited too long for an end of their step."""
        rest: list[Operations] = []
        for tid, thread in list(self._threads.items()):
            if not thread.chunks:
                if thread.ended_ns < before_ns and (not thread.steps or len(self._threads) > THREADS):
                    del self._threads[tid]
                continue
            if not final and int(thread.chunks[0]["start_ns"][0]) >= before_ns:
                continue
            rows, starts = thread.in_order()
            old = len(rows) if final else int(np.searchsorted(starts, np.uint64(max(before_ns, 0))))
            if old and not thread.began_ns and thread.launched > thread.cut_launched:
                thread.began_ns = int(starts[0])
            rest.append(rows[:old])
            thread.keep(concatenate([rows[old:]]))
        return rest


def _ends(rows: Operations) -> npt.NDArray[np.uint64]:
    """When each call returned; absurd durations that wrap count as none."""
    starts = rows["start_ns"]
    ends: npt.NDArray[np.uint64] = np.maximum(starts + rows["duration_ns"], starts)
    return ends


def _stream(handle: int) -> int:
    return 0 if handle in _DEFAULT_STREAMS else handle
