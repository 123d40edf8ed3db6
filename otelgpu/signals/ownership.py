"""Whose work an operation is, in the order of trust of DESIGN.md section 5, and where it waits to be told.

In: what conversations and hand-offs tell of threads, operations. Out: work that can be told at once, with its
parents; the rest waits with its request, its step, or the window of work that is nobody's.

An operation is, of what applies, the first: of the span that its process published; of the request that its thread
read (``thread``); of the request whose thread woke its thread (``wakeup``); of a step, an engine's or one of training;
of nobody.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
import numpy.typing as npt

from otelgpu.correlate.fold import Folded, unfolded
from otelgpu.correlate.handoffs import Handoffs
from otelgpu.correlate.returns import UNSETTLED
from otelgpu.correlate.steps import EngineSteps
from otelgpu.correlate.threads import AMBIGUOUS, ThreadTimeline
from otelgpu.families.base import Activity
from otelgpu.model.exchange import Claim
from otelgpu.model.handoffs import Handoff
from otelgpu.model.inputs import ProcessSeen
from otelgpu.model.operations import ContextSource, Operations
from otelgpu.model.resource import GO
from otelgpu.signals import names
from otelgpu.signals.operation_spans import Parents
from otelgpu.signals.published import SAMPLED, is_published, published_parents
from otelgpu.signals.request_session import RequestSession
from otelgpu.signals.summary import Summary
from otelgpu.signals.training_session import TrainingSession
from otelgpu.signals.windows import UnlinkedWindows

Work = tuple[Folded, Parents]
"""Operations and the spans that ``Folded.group`` indexes."""

_NO_REQUEST: Final = names.UNLINKED_REASONS.index("no_request")
_AMBIGUOUS: Final = names.UNLINKED_REASONS.index("ambiguous")
_UNANSWERED: Final = names.UNLINKED_REASONS.index("unanswered")
_UNSETTLED_ROWS: Final = 65_536
"""Operations that wait for hand-offs to be understood; of more, the oldest are told as far as is known."""
_WAITED_FOR_NS: Final = 250_000_000
"""So long do answered requests wait for operations that may be theirs; what is understood later is told late."""
_THREAD, _WAKEUP, _NONE = map(np.uint8, (ContextSource.THREAD, ContextSource.WAKEUP, ContextSource.NONE))


class Ownership:
    """One session's. ``timeline`` is what threads hold because they read it."""

    def __init__(
        self,
        timeline: ThreadTimeline,
        requests: RequestSession,
        steps: EngineSteps,
        training: TrainingSession,
        windows: UnlinkedWindows,
        summary: Summary,
    ) -> None:
        self.handoffs = Handoffs(timeline)
        self._timeline = timeline
        self.steps = steps
        self._requests, self._training = requests, training
        self._windows, self._summary = windows, summary
        self._claims: list[Claim] = []  # since the last tick
        self._unsettled: list[Operations] = []  # oldest first: for whom their threads worked is not yet known
        self._now_ns = 0
        self._final = False
        self._migrating: set[int] = set()  # processes
        self._ended: list[int] = []  # processes, in this tick
        self._leaving: list[int] = []  # in the one before it

    def see(self, seen: ProcessSeen) -> None:
        """A process is described. Of Go's no thread is trusted: its runtime moves a request from one to another."""
        if seen.resource.get("process.runtime.name") == GO:
            self._migrating.add(seen.tgid)
        else:
            self._migrating.discard(seen.tgid)

    def take(self, activity: Activity) -> None:
        """What a conversation learnt."""
        claims = activity.claims
        if self._migrating:
            claims = [claim for claim in claims if claim.tgid not in self._migrating]
        self._timeline.apply(claims)
        self._claims += claims
        self._requests.take(activity)
        self.steps.open(activity.opened)
        self.steps.name(activity.named)
        self.steps.hear(activity.messages)

    def hand_off(self, handoffs: Iterable[Handoff]) -> None:
        """What threads gave each other."""
        self.handoffs.feed(handoffs)

    def settle(self, now_ns: int, *, final: bool) -> list[Work]:
        """At a tick, before its operations: what had to wait for what this tick knows."""
        self._now_ns, self._final = now_ns, final
        self.handoffs.settle(self._claims, now_ns, final=final)
        self._claims.clear()
        unsettled, self._unsettled = self._unsettled, []
        work, unsettled = self._give_last(unsettled)
        beyond = sum(map(len, unsettled)) - _UNSETTLED_ROWS
        for rows in unsettled:
            work += self._give_handed(rows, at_once=beyond > 0)
            beyond -= len(rows)
        return work

    def _give_last(self, unsettled: list[Operations]) -> tuple[list[Work], list[Operations]]:
        """What processes that ended still had to be told, of which no more will be known; and the others' rows."""
        if not self._leaving:
            return [], unsettled
        work: list[Work] = []
        others: list[Operations] = []
        for rows in unsettled:
            last = np.isin(rows["tgid"], self._leaving)
            work += self._give_handed(rows.compress(last), at_once=True)
            others.append(rows.compress(~last))
        return work, [rows for rows in others if len(rows)]

    @property
    def answerable_ns(self) -> int:
        """Requests that were answered by then have all that is theirs: what still waits began later."""
        waiting = min((int(rows["start_ns"].min()) for rows in self._unsettled), default=self._now_ns)
        return min(max(waiting, self._now_ns - _WAITED_FOR_NS), self._now_ns)

    def owners(self, tids: npt.NDArray[np.uint32], times_ns: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """What threads held because they read it: quickest in the order of arrival."""
        return self._timeline.distrust(tids, times_ns, self._timeline.owners(tids, times_ns))

    def owners_at(
        self, tids: npt.NDArray[np.uint32], times_ns: npt.NDArray[np.uint64], final: bool
    ) -> npt.NDArray[np.int64]:
        """The requests that threads worked for, be it that they read them or were woken for them; what was not a call.

        AMBIGUOUS: several; UNSETTLED, unless ``final``: the next tick will tell.
        """
        owners = self._timeline.trusted(tids, times_ns, self._timeline.owners(tids, times_ns))
        alone = np.flatnonzero(owners == 0)
        if len(alone):
            owners[alone] = self.handoffs.owners(
                tids[alone], times_ns[alone], self._now_ns, final=final or self._final
            )
        return owners

    def give(self, rows: Operations, owners: npt.NDArray[np.int64]) -> list[Work]:
        """Operations with what :meth:`owners` said of them. Their ``context_source`` is set here."""
        known = (owners != 0) | is_published(rows)
        if known.all():
            return self._give(rows, owners, _THREAD)
        work = self._give_handed(rows if not known.any() else rows.compress(~known))
        return work + self._give(rows.compress(known), owners[known], _THREAD) if known.any() else work

    def _give_handed(self, rows: Operations, *, at_once: bool = False) -> list[Work]:
        """Operations of threads that read no request: what another gave them to do is that one's request's."""
        tids, starts = np.ascontiguousarray(rows["tid"]), np.ascontiguousarray(rows["start_ns"])
        owners = self.handoffs.owners(tids, starts, self._now_ns, final=self._final or at_once)
        unsettled = owners == UNSETTLED
        if unsettled.any():
            self._unsettled.append(rows.compress(unsettled))
            rows, owners = rows.compress(~unsettled), owners[~unsettled]
        return self._give(rows, owners, _WAKEUP)

    def _give(self, rows: Operations, owners: npt.NDArray[np.int64], source: np.uint8) -> list[Work]:
        if not len(rows):
            return []
        linked, published = owners > 0, is_published(rows)
        rows["context_source"] = np.where(published, rows["context_source"], np.where(linked, source, _NONE))
        work: list[Work] = []
        late = self._requests.add(*only(linked, rows, owners))
        if late is not None:
            work.append(late)
        alone, nobodys = ~linked & published, ~(linked | published)
        if alone.any():
            work.append(_under_published(rows.compress(alone)))
        self._summary.add_linked(rows["context_source"][linked | published])
        if nobodys.any():
            self._give_up_to_steps(*only(nobodys, rows, owners))
        return work

    def _give_up_to_steps(self, rows: Operations, owners: npt.NDArray[np.int64]) -> None:
        taken = self.steps.take(rows)
        if not taken.all():
            rest = np.flatnonzero(~taken)
            taken[rest] = self._training.take(rows.take(rest) if len(rest) < len(rows) else rows)
        self._summary.add_steps(int(np.count_nonzero(taken)))
        if not taken.all():
            self.abandon(*only(~taken, rows, owners))

    def abandon_steps(self, rows: Operations) -> None:
        """Work that might have been of a step, and is of none that is told."""
        self._summary.add_steps(-len(rows))
        tids, starts = np.ascontiguousarray(rows["tid"]), np.ascontiguousarray(rows["start_ns"])
        self.abandon(rows, self.owners(tids, starts))

    def abandon(self, rows: Operations, owners: npt.NDArray[np.int64]) -> None:
        """Work of no request and no step: of a window of its process."""
        if len(rows):
            self._summary.add_unlinked(owners)
            self._windows.add(rows, np.where(owners == AMBIGUOUS, _AMBIGUOUS, _NO_REQUEST))

    def abandon_unanswered(self, rows: Operations) -> None:
        """Work of requests that will not be answered any more."""
        if len(rows):
            rows["context_source"] = _NONE
            self._windows.add(rows, np.full(len(rows), _UNANSWERED))

    def forget_before(self, time_ns: int) -> None:
        """At the end of a tick: drop what can no longer be asked about."""
        for tgid in self._leaving:
            self._timeline.forget_process(tgid)
            self.handoffs.forget_process(tgid)
        self._leaving, self._ended = self._ended, []
        self._timeline.forget_before(time_ns)
        self.handoffs.forget_before(time_ns)

    def forget_process(self, tgid: int) -> None:
        """A process ended. What its threads held is asked about until its steps are told, a tick later."""
        self._ended.append(tgid)
        self._migrating.discard(tgid)
        self._requests.forget_process(tgid)
        self.steps.forget_process(tgid)
        self._training.forget_process(tgid)


def _under_published(rows: Operations) -> Work:
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
