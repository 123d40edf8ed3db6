"""Whose work an operation is, in the order of trust of DESIGN.md section 5, and where it waits to be reported.

In: what conversations and hand-offs report of threads, operations. Out: work that can be reported at once, with its
parents; the rest waits with its request, its step, or the window of work that is nobody's.

An operation is, of what applies, the first: of the span that its process published; of the request that its task
answered (``task``), and where its thread runs tasks of no other; of the request that its thread read (``thread``); of
the request whose thread woke its thread (``wakeup``); of a step, an engine's or one of training; of nobody. Where a
runtime multiplexes requests, threads say nothing (:mod:`otelgpu.engine.attribution.multiplexing`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from otelgpu.engine import names
from otelgpu.engine.attribution.multiplexing import MultiplexedProcesses
from otelgpu.engine.attribution.threads import AMBIGUOUS, NO_TASK, UNSETTLED, ThreadTimeline
from otelgpu.engine.attribution.unattributed import UnattributedWindows
from otelgpu.engine.folding import Folded, Parents, unfolded
from otelgpu.engine.operation_spans import SAMPLED, published_parents
from otelgpu.engine.summary import Summary
from otelgpu.model.context_sources import IS_PUBLISHED, ContextSource
from otelgpu.model.exchange import ThreadAssignment
from otelgpu.model.handoffs import Handoff
from otelgpu.model.operations import OperationKind, Operations
from otelgpu.model.tasks import TaskService

if TYPE_CHECKING:
    from otelgpu.engine.attribution.handoffs import Handoffs
    from otelgpu.engine.attribution.tasks import TaskTimeline

HISTORY_NS: Final = 120_000_000_000
"""How far back an operation may have begun and still find the request its thread held then."""

ReportWork = Callable[[Folded, Parents], None]
"""Takes operations and the spans that ``Folded.group`` indexes."""

HoldForRequests = Callable[[Operations, npt.NDArray[np.int64]], None]
"""Takes operations and the keys of the requests that they are of, all > 0."""

HoldForSteps = Callable[[Operations], npt.NDArray[np.bool_]]
"""Given operations of no request: shape (n,), True where one may be of a step, and was copied."""

_NO_REQUEST: Final = names.UNATTRIBUTED_REASONS.index("no_request")
_AMBIGUOUS: Final = names.UNATTRIBUTED_REASONS.index("ambiguous")
_UNANSWERED: Final = names.UNATTRIBUTED_REASONS.index("unanswered")
_MULTIPLEXED: Final = names.UNATTRIBUTED_REASONS.index("multiplexed")
_OTHER_TASK: Final = names.UNATTRIBUTED_REASONS.index("other_task")
_UNSETTLED_ROWS: Final = 65_536
"""Operations that wait for hand-offs to be understood; of more, the oldest are reported as far as is known."""
_WAITED_FOR_NS: Final = 250_000_000
"""So long do answered requests wait for operations that may be theirs; what is understood later is reported late."""
_THREAD, _WAKEUP, _NONE = map(np.uint8, (ContextSource.THREAD, ContextSource.WAKEUP, ContextSource.NONE))
_TASK: Final = np.uint8(ContextSource.TASK)


class Attribution:
    """One session's. ``timeline`` is what threads hold because they read it."""

    def __init__(
        self,
        timeline: ThreadTimeline,
        windows: UnattributedWindows,
        summary: Summary,
        report_work: ReportWork,
    ) -> None:
        self.timeline = timeline
        self.multiplexed = MultiplexedProcesses(timeline)
        self._handoffs: Handoffs | None = None  # from the first one on
        self.hold_for_requests: HoldForRequests | None = None
        self.hold_for_steps: dict[HoldForSteps, Sequence[OperationKind]] = {}
        """Who is asked, the first one first, where there are operations of some kinds; (): of any."""
        self._windows, self._summary, self._report = windows, summary, report_work
        self._assignments: list[ThreadAssignment] = []  # since the last tick
        self._unsettled: list[Operations] = []  # oldest first: for whom their threads worked is not yet known
        self._tasks: TaskTimeline | None = None  # from the first one on
        self._of_tasks: list[Operations] = []  # oldest first: their tasks may yet answer a request
        self._now_ns = 0
        self._final = False
        self._ended: list[int] = []  # processes, in this tick
        self._leaving: list[int] = []  # in the one before it

    def take(self, assignments: Sequence[ThreadAssignment]) -> None:
        """Which threads work for which requests, in order of time per thread."""
        if self.multiplexed.is_used or any(assignment.loop for assignment in assignments):
            assignments = self.multiplexed.evidence(assignments)
        self.timeline.apply(assignments)
        self._assignments += assignments

    def take_tasks(self, services: Sequence[TaskService]) -> None:
        """What was learnt of the tasks that serve requests."""
        if not services:
            return
        if self._tasks is None:
            from otelgpu.engine.attribution.tasks import TaskTimeline

            self._tasks = TaskTimeline()
        self._tasks.take(self.multiplexed.known_services(services))

    def hand_off(self, handoffs: Iterable[Handoff]) -> None:
        """What threads gave each other."""
        if self._handoffs is None:
            from otelgpu.engine.attribution.handoffs import Handoffs

            self._handoffs = Handoffs(self.timeline)
        self._handoffs.feed(handoffs)

    @property
    def counters(self) -> Mapping[str, int]:
        """Hand-offs that are nobody's, by reason, since the start."""
        return self._handoffs.counters if self._handoffs is not None else {}

    @property
    def is_waiting(self) -> bool:
        """Whether the next tick settles something."""
        return bool(self._assignments or self._unsettled or self._of_tasks or self._leaving or self._ended)

    def settle(self, now_ns: int, *, final: bool) -> None:
        """At a tick, before its operations: what had to wait for what this tick knows."""
        self._now_ns, self._final = now_ns, final
        if self._handoffs is not None:
            self._handoffs.settle(self._assignments, now_ns, final=final)
        self._assignments.clear()
        self._settle_tasks()
        unsettled, self._unsettled = self._unsettled, []
        unsettled = self._give_last(unsettled)
        beyond = sum(map(len, unsettled)) - _UNSETTLED_ROWS
        for rows in unsettled:
            self._give_handed(rows, at_once=beyond > 0)
            beyond -= len(rows)

    def _give_last(self, unsettled: list[Operations]) -> list[Operations]:
        """Reports what processes that ended left behind, of which no more will be known; the others' rows."""
        if not self._leaving:
            return unsettled
        others: list[Operations] = []
        for rows in unsettled:
            last = np.isin(rows["tgid"], self._leaving)
            self._give_handed(rows.compress(last), at_once=True)
            others.append(rows.compress(~last))
        return [rows for rows in others if len(rows)]

    @property
    def answerable_ns(self) -> int:
        """Requests that were answered by then have all that is theirs: what still waits began later."""
        waiting = min((int(rows["start_ns"].min()) for rows in self._unsettled), default=self._now_ns)
        return min(max(waiting, self._now_ns - _WAITED_FOR_NS), self._now_ns)

    def owners(self, tids: npt.NDArray[np.uint32], times_ns: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """What threads held because they read it: quickest in the order of arrival."""
        return self.timeline.distrust(tids, times_ns, self.timeline.owners(tids, times_ns))

    def owners_at(
        self, tids: npt.NDArray[np.uint32], times_ns: npt.NDArray[np.uint64], final: bool
    ) -> npt.NDArray[np.int64]:
        """The requests that threads worked for, be it that they read them or were woken for them; what was not a call.

        AMBIGUOUS: several; UNSETTLED, unless ``final``: the next tick will report.
        """
        owners = self.timeline.trusted(tids, times_ns, self.timeline.owners(tids, times_ns))
        alone = np.flatnonzero(owners == 0)
        if len(alone):
            owners[alone] = self._handed(tids[alone], times_ns[alone], final=final or self._final)
        return owners

    def give(self, rows: Operations, owners: npt.NDArray[np.int64], *, plain: bool = False) -> None:
        """Operations with what :meth:`owners` said of them. Their ``context_source`` is set here.

        ``plain``: all are known to be of a request, and to have no context of their own.
        """
        if plain and self.hold_for_requests is not None:
            if len(rows):
                rows["context_source"] = _THREAD
                self.hold_for_requests(rows, owners)
                self._summary.linked_by[ContextSource.THREAD] += len(rows)
            return
        of_tasks = rows["context_source"] == _TASK
        if of_tasks.any():
            self._give_tasks(rows.compress(of_tasks))
            rows, owners = rows.compress(~of_tasks), owners[~of_tasks]
        known = (owners != 0) | IS_PUBLISHED[rows["context_source"]]
        if known.all():
            self._give(rows, owners, _THREAD)
            return
        self._give_handed(rows if not known.any() else rows.compress(~known))
        if known.any():
            self._give(rows.compress(known), owners[known], _THREAD)

    def _give_tasks(self, rows: Operations, *, final: bool = False) -> None:
        """Operations whose threads ran tasks: the request that each answered; what may be known later waits."""
        tgids, starts = np.ascontiguousarray(rows["tgid"]), np.ascontiguousarray(rows["start_ns"])
        tids = np.ascontiguousarray(rows["tid"])
        owners = self._answered_by(tgids, rows["span_id"], starts, final)
        by_thread = self._held_by_thread(tgids, tids, rows["span_id"], starts, owners)
        if by_thread.any():
            self._give(rows.compress(by_thread), self.timeline.owners(tids, starts)[by_thread], _THREAD)
            rows, owners = rows.compress(~by_thread), owners[~by_thread]
        unsettled = owners == UNSETTLED
        if unsettled.any():
            self._of_tasks.append(rows.compress(unsettled))
            rows, owners = rows.compress(~unsettled), owners[~unsettled]
        self._give(rows, owners, _TASK)

    def owners_by_task(
        self,
        tgids: npt.NDArray[np.uint32],
        tids: npt.NDArray[np.uint32],
        span_ids: npt.NDArray[np.uint8],
        times_ns: npt.NDArray[np.uint64],
        final: bool,
    ) -> npt.NDArray[np.int64]:
        """The requests that tasks answered, else that their threads wait to answer, or why none.

        Records name tasks in ``span_id``.
        """
        owners = self._answered_by(tgids, span_ids, times_ns, final)
        by_thread = self._held_by_thread(tgids, tids, span_ids, times_ns, owners)
        return (
            np.where(by_thread, self.timeline.owners(tids, times_ns), owners) if by_thread.any() else owners
        )

    def _held_by_thread(
        self,
        tgids: npt.NDArray[np.uint32],
        tids: npt.NDArray[np.uint32],
        span_ids: npt.NDArray[np.uint8],
        times_ns: npt.NDArray[np.uint64],
        owners: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.bool_]:
        """Where no task answered, but the thread had read a request, waiting for it, and runs no other: shape (n,).

        CPython gives a thread a context when it first asks for one, which may be after it has read its first request.
        Where that request has been answered by this very task, no other need be waited for.
        """
        found: npt.NDArray[np.bool_] = np.zeros(len(owners), dtype=np.bool_)
        rows = np.flatnonzero((owners == NO_TASK) | (owners == UNSETTLED))
        if not len(rows):
            return found
        held = self.timeline.owners_of_waiting(tids[rows], times_ns[rows])
        rows, held = rows[held > 0], held[held > 0]
        found[rows] = owners[rows] == NO_TASK
        waits = ~found[rows]
        if waits.any() and self._tasks is not None:
            rows, held = rows[waits], held[waits]
            found[rows] = self._tasks.have_answered(tgids[rows], _tasks_of(span_ids[rows]), held)
        return found

    def _answered_by(
        self,
        tgids: npt.NDArray[np.uint32],
        span_ids: npt.NDArray[np.uint8],
        times_ns: npt.NDArray[np.uint64],
        final: bool,
    ) -> npt.NDArray[np.int64]:
        """The requests that tasks answered, or why none (:class:`TaskTimeline`)."""
        if self._tasks is None:
            return np.full(len(tgids), NO_TASK, dtype=np.int64)
        return self._tasks.owners(tgids, _tasks_of(span_ids), times_ns, final=final or self._final)

    def owner_by_task(self, tgid: int, tid: int, task: int, times_ns: Sequence[int]) -> int:
        """The same of one task, on a thread: the request that it worked for at all of these times."""
        times = np.array(times_ns, np.uint64)
        tgids, tids = np.full(len(times), tgid, np.uint32), np.full(len(times), tid, np.uint32)
        span_ids = np.full(len(times), task, np.uint64).view(np.uint8).reshape(-1, 8)
        owners = set(self.owners_by_task(tgids, tids, span_ids, times, self._final).tolist())
        if len(owners) == 1:
            return int(owners.pop())
        return UNSETTLED if UNSETTLED in owners else NO_TASK

    def _settle_tasks(self) -> None:
        """What waited for requests that have ended by now; of too much the oldest is nobody's."""
        waiting, self._of_tasks = self._of_tasks, []
        beyond = sum(map(len, waiting)) - _UNSETTLED_ROWS
        for rows in waiting:
            leaving = np.isin(rows["tgid"], self._leaving) if self._leaving else None
            if beyond > 0 or leaving is None or not leaving.any():
                self._give_tasks(rows, final=beyond > 0)
            else:
                self._give_tasks(rows.compress(leaving), final=True)
                self._give_tasks(rows.compress(~leaving))
            beyond -= len(rows)

    def _give_handed(self, rows: Operations, *, at_once: bool = False) -> None:
        """Operations of threads that read no request: what another gave them to do is that one's request's."""
        tids, starts = np.ascontiguousarray(rows["tid"]), np.ascontiguousarray(rows["start_ns"])
        owners = self._handed(tids, starts, final=self._final or at_once)
        unsettled = owners == UNSETTLED
        if unsettled.any():
            self._unsettled.append(rows.compress(unsettled))
            rows, owners = rows.compress(~unsettled), owners[~unsettled]
        self._give(rows, owners, _WAKEUP)

    def _handed(
        self, tids: npt.NDArray[np.uint32], times_ns: npt.NDArray[np.uint64], *, final: bool
    ) -> npt.NDArray[np.int64]:
        """The requests of which threads were given work; UNSETTLED: the next tick will report."""
        if self._handoffs is None:
            return np.zeros(len(tids), dtype=np.int64)
        return self._handoffs.owners(tids, times_ns, self._now_ns, final=final)

    def _give(self, rows: Operations, owners: npt.NDArray[np.int64], source: np.uint8) -> None:
        if not len(rows):
            return
        linked, published = owners > 0, IS_PUBLISHED[rows["context_source"]]
        rows["context_source"] = np.where(published, rows["context_source"], np.where(linked, source, _NONE))
        if self.hold_for_requests is not None and linked.any():
            self.hold_for_requests(*only(linked, rows, owners))
        alone, nobodys = ~linked & published, ~(linked | published)
        if alone.any():
            self._report(*_under_published(rows.compress(alone)))
        self._summary.add_linked(rows["context_source"][linked | published])
        if nobodys.any():
            self._give_up_to_steps(*only(nobodys, rows, owners))

    def _give_up_to_steps(self, rows: Operations, owners: npt.NDArray[np.int64]) -> None:
        taken = np.zeros(len(rows), dtype=np.bool_)
        for hold, kinds in self.hold_for_steps.items():
            if not taken.all() and (not kinds or np.isin(rows["kind"], kinds).any()):
                rest = np.flatnonzero(~taken)
                taken[rest] = hold(rows.take(rest) if len(rest) < len(rows) else rows)
        self._summary.add_steps(int(np.count_nonzero(taken)))
        if not taken.all():
            self.abandon(*only(~taken, rows, owners))

    def abandon_steps(self, rows: Operations) -> None:
        """Work that might have been of a step, and is of none that is reported."""
        self._summary.add_steps(-len(rows))
        tids, starts = np.ascontiguousarray(rows["tid"]), np.ascontiguousarray(rows["start_ns"])
        self.abandon(rows, self.owners(tids, starts))

    def abandon(self, rows: Operations, owners: npt.NDArray[np.int64]) -> None:
        """Work of no request and no step: of a window of its process."""
        if not len(rows):
            return
        tgids, starts = np.ascontiguousarray(rows["tgid"]), np.ascontiguousarray(rows["start_ns"])
        reasons = self.reasons(tgids, starts, owners)
        multiplexed = tgids[reasons == _MULTIPLEXED]
        self._summary.add_unattributed(owners[reasons != _MULTIPLEXED])
        for tgid, count in zip(*np.unique(multiplexed, return_counts=True), strict=True):
            self._summary.add_multiplexed(self.multiplexed.runtimes_of(int(tgid)), int(count))
        self._windows.add(rows, reasons)

    def reasons(
        self,
        tgids: npt.NDArray[np.uint32],
        times_ns: npt.NDArray[np.uint64],
        owners: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.int64]:
        """Why work is of no request, as positions in ``names.UNATTRIBUTED_REASONS``: shape (n,)."""
        reasons = np.where(owners == NO_TASK, _OTHER_TASK, _NO_REQUEST)
        reasons = np.where(owners == AMBIGUOUS, _AMBIGUOUS, reasons)
        if not self.multiplexed.is_used:
            return reasons
        by_thread = (owners != NO_TASK) & self.multiplexed.are_under_way(tgids, times_ns)
        return np.where(by_thread, _MULTIPLEXED, reasons)

    def abandon_unanswered(self, rows: Operations) -> None:
        """Work of requests that will not be answered any more."""
        if len(rows):
            rows["context_source"] = _NONE
            self._windows.add(rows, np.full(len(rows), _UNANSWERED))

    def forget_before(self, time_ns: int) -> None:
        """At the end of a tick: drop what can no longer be asked about."""
        if self._tasks is not None:
            self._tasks.forget_before(time_ns)
        for tgid in self._leaving:
            self.timeline.forget_process(tgid)
            if self._tasks is not None:
                self._tasks.forget_process(tgid)
            self.multiplexed.forget_process(tgid)
        if self._handoffs is not None and self._leaving:
            self._handoffs.forget_processes(set(self._leaving))
        self._leaving, self._ended = self._ended, []
        if self.multiplexed.is_used:
            self.multiplexed.forget_before(time_ns)
        self.timeline.forget_before(time_ns)
        if self._handoffs is not None:
            self._handoffs.forget_before(time_ns)

    def forget_process(self, tgid: int) -> None:
        """A process ended. What its threads held is asked about until its steps are reported, a tick later."""
        self._ended.append(tgid)


def _tasks_of(span_ids: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint64]:
    """The numbers of tasks that records have in place of a span's id: shape (n, 8) to (n,)."""
    return np.ascontiguousarray(span_ids).view(np.uint64).reshape(-1)


def _under_published(rows: Operations) -> tuple[Folded, Parents]:
    """Operations of no request that is known, under the spans that their processes published."""
    parents, group = published_parents(rows)
    sampled = (parents.flags[group] & SAMPLED).astype(np.bool_)
    return unfolded(rows.compress(sampled), group[sampled]), parents


def only(
    chosen: npt.NDArray[np.bool_], rows: Operations, column: npt.NDArray[np.int64]
) -> tuple[Operations, npt.NDArray[np.int64]]:
    """The chosen rows, and what a column has of them; copied only when they are not all."""
    if chosen.all():
        return rows, column
    return rows.compress(chosen), column[chosen]
