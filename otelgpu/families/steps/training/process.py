"""One process that may train: its period, and where its steps begin and end. Pure.

In: its operations, all that had returned by a time, in any order and batching. Out: :class:`FoundStep`, and operations
that are of no step. What it finds depends on the calls alone, not on how they were cut into batches.

How. Until a period is found (:mod:`~otelgpu.families.steps.training.period`) no operation is held. Then a step's
collectives are the next L whose sum is the period's, passing over those that are not of it (one-offs, a metric's).
Where the next L are others (an evaluation, a lost record), what lies before the next that are is of no step.

**Boundary.** Steps are parted between the last collective of one and the first of the next: where the period was found
by host-to-device copies, where the call returned that came before the first copy of a batch, so that waiting for data
is at a step's begin; else where the first wait returned. Copies of less than a quarter of the largest are scalars, no
batch. Of a program that drives no device the data loader is asked in place of a copy, and a backward pass in place of a
wait (:mod:`otelgpu.model.stretches`); of one that calls its collectives itself (MPI), the return of any of these.
Where more batches are copied between two steps than were when the period was found (an evaluation that calls no
collectives), the step before ends before the first of them and the next begins before the last ones: as many as usual.

Invariant: every operation that was held comes out once, with a step or among the rest.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from otelgpu.engine.call_roles import STRETCHES, WORK, Role, Roles, StepRules, is_one_of
from otelgpu.families.steps.training.notes import (
    COLLECTIVE,
    MARK,
    NOTE,
    NoteReader,
    Notes,
    calls_itself,
    communicates,
)
from otelgpu.families.steps.training.period import (
    HISTORY,
    MARKS,
    REPEATS,
    Period,
    Searcher,
    cuts_between,
    prefix_sums,
)
from otelgpu.families.steps.training.step import Boundary
from otelgpu.model.operations import OperationKind, Operations, concatenate

NOTES_KEPT: Final = 131_072
"""7 MB: notes of the calls of a step; of one with more no parts are known, and it is not reported."""

_PATIENCE: Final = 4
"""Steps' worth of collectives that may be others before the period is given up."""

_FEW: Final = 64  # so many may be, however short the period
_RECENT: Final = 16  # steps that the confidence is of
_QUICK: Final = 64  # so many in a row are none
_NO_MORE: Final = (1 << 62) - 1
_ONLY_NOTED: Final = (OperationKind.FILE, OperationKind.STRETCH)

#: What is counted, and what one count means.
COUNTERS: Final = {
    "training_periods_lost": "loops of training whose collectives changed, or did not come for a minute",
    "training_steps_incomplete": "steps of training of which calls were not held, and which are not reported",
}


class FoundStep(Struct, frozen=True, kw_only=True):
    """A step: its operations, and the notes of all its calls and collectives."""

    start_ns: int
    end_ns: int
    number: int
    boundary: Boundary
    confidence: float
    rows: Operations
    notes: Notes


class _Closed(Struct, frozen=True):
    """A step whose end is known; ``seen_ns``: when the call returned that showed it."""

    start_ns: int
    end_ns: int
    seen_ns: int
    number: int
    boundary: Boundary
    confidence: float
    reported_from_ns: int  # steps that began before are not reported


class _Track:
    """Follows an established period: which collectives are whose step's.

    ``reported_from_ns``: steps that began before are not reported. ``steps``: of the process until now.
    """

    def __init__(self, period: Period, reported_from_ns: int, steps: int) -> None:
        self.period, self.reported_from_ns, self.steps = period, reported_from_ns, steps
        self.open_ns: int | None = None  # when the step began whose end is not known
        self._known = np.zeros(0, dtype=COLLECTIVE)  # of the period, and of no step yet
        self._last = period.first - 1  # ordinal of the last collective that is of a step
        self._last_ns = 0  # when that returned
        self._limit = _PATIENCE * period.length + _FEW
        self._matched: deque[tuple[int, int]] = deque(maxlen=_RECENT)  # of the period, and others
        self._usual = period.cuts  # between two steps
        self._recent: deque[int] = deque(maxlen=REPEATS)  # so many there were
        self._quick = 0  # the last steps that were shorter than any is

    def add(self, collectives: Notes, marks: Notes) -> tuple[list[_Closed], int | None]:
        """More collectives, and all marks that are remembered: steps that ended.

        The second is the ordinal of the collective by which the period was lost; None: it was not.
        """
        ours = np.isin(collectives["symbol"], self.period.symbols)
        self._known = np.concatenate([self._known, collectives.compress(ours)])
        closed: list[_Closed] = []
        sums = prefix_sums(np.ascontiguousarray(self._known["symbol"]))
        following = 0  # position of the first collective that is of no step
        while following < len(self._known):
            if self.open_ns is not None and self._known["ordinal"][following] <= self._last + self._limit:
                closed.append(self._close(self._known[following], marks))
                quick = closed[-1].end_ns - closed[-1].start_ns < self.period.least_ns
                self._quick = self._quick + 1 if quick else 0
                if self._quick > _QUICK:
                    return closed, int(self._known["ordinal"][following])
            at = self._match(sums, following, marks)
            if at is None:
                break
            self._begin(following, at, marks)
            following = at + self.period.length
        self._known = self._known[following:]
        lost = self._last + self._limit + 1
        return closed, lost if collectives["ordinal"][-1] >= lost else None

    def _match(self, sums: npt.NDArray[np.uint64], following: int, marks: Notes) -> int | None:
        """Where the next step's collectives begin, as far as is known.

        Only where a boundary may be, or one record that was lost would shift all steps that follow.
        """
        length = self.period.length
        if following + length > len(self._known):
            return None
        upto = following + length + self._limit  # what lies beyond is too late
        ends = sums[following + length : upto + 1]
        alike = ends - sums[following : following + len(ends)] == np.uint64(self.period.total)
        ordinals = self._known["ordinal"]
        for at in (following + np.flatnonzero(alike)).tolist():
            if ordinals[at + length - 1] > self._last + self._limit:
                return None
            before = self._last if at == following else int(ordinals[at - 1])
            if self._cuts(before + 1, int(ordinals[at]), marks):
                return at
        return None

    def _cuts(self, first: int, last: int, marks: Notes) -> list[int]:
        """The boundaries before collectives ``first`` to ``last``."""
        found = cuts_between(marks, first, last, self.period.boundary, self.period.batch_bytes)
        return [cut.time_ns for cut in found]

    def _close(self, following: Notes, marks: Notes) -> _Closed:
        """The open step ends before the collective that comes next."""
        cuts = self._cuts(self._last + 1, int(following["ordinal"]), marks)
        return self._ended(cuts[0] if cuts else self._last_ns, int(following["end_ns"]))

    def _ended(self, end_ns: int, seen_ns: int) -> _Closed:
        assert self.open_ns is not None
        ours, others = (sum(column) for column in zip(*self._matched, strict=True))
        self.steps += 1
        closed = _Closed(
            start_ns=self.open_ns,
            end_ns=max(end_ns, self.open_ns),
            seen_ns=seen_ns,
            number=self.steps,
            boundary=self.period.boundary,
            confidence=ours / (ours + others),
            reported_from_ns=self.reported_from_ns,
        )
        self.open_ns = None
        return closed

    def _begin(self, following: int, at: int, marks: Notes) -> None:
        """The L collectives from a position on are of a step."""
        ordinals, length = self._known["ordinal"], self.period.length
        before = self._last if at == following else int(ordinals[at - 1])
        cuts = self._cuts(before + 1, int(ordinals[at]), marks)
        self._recent.append(len(cuts))
        if len(self._recent) == REPEATS:  # where not all calls were seen yet when the period was found
            self._usual = max(self._usual, min(self._recent))
        usual = self._usual if self.period.boundary is Boundary.H2D_COPY else len(cuts)
        self.open_ns = cuts[-min(usual, len(cuts))]
        last = self._known[at + length - 1]
        self._matched.append((length, int(last["ordinal"]) - self._last - length))
        self._last, self._last_ns = int(last["ordinal"]), int(last["end_ns"])

    def finish(self, marks: Notes, until: int, seen_ns: int) -> list[_Closed]:
        """The loop is over: the step under way ends at the next boundary, or with its last collective.

        ``until``: the ordinal of the last collective that may be looked at.
        """
        if self.open_ns is None:
            return []
        times = self._cuts(self._last + 1, until, marks)[:1]
        times += [cut.time_ns for cut in cuts_between(marks, self._last + 1, until, Boundary.WAIT)[:1]]
        return [self._ended(min(times, default=self._last_ns), seen_ns)]


class TrainingProcess:
    """One process. ``note`` makes notes of operations; ``found`` counts periods that were ``found`` and ``widened``."""

    def __init__(
        self,
        note: Callable[[Operations, Roles], Notes],
        rules: StepRules,
        counters: Counter[str],
        found: Counter[str],
        *,
        surely: bool,
    ) -> None:
        self._note, self._rules, self._counters, self._found = note, rules, counters, found
        self._searcher = Searcher(surely=surely)
        self._reader = NoteReader()
        self._fresh: list[Notes] = []
        self._collectives = np.zeros(0, dtype=COLLECTIVE)
        self._marks = np.zeros(0, dtype=MARK)
        self._track: _Track | None = None
        self._held: list[Operations] = []
        self._kept: list[Notes] = []  # notes since the begin of the step under way
        self._since_ns = 0  # no operation that is held began before
        self._passed_ns = -1  # the last start of an operation that was not held
        self._closed_ns = -1  # the last end of a step
        self._steps = 0
        self._last_ns = 0  # of the last collective
        self._now_ns = 0
        self._drives = False  # a device: what frameworks say of threads is of no interest
        self._calls_itself = False  # its collectives: these part its steps, where it drives none
        self.rows = 0  # operations held
        self.ended = False

    @property
    def holds(self) -> bool:
        """Whether its operations are held: a period is known."""
        return self._track is not None

    def may_cover(self, time_ns: int) -> bool:
        """Whether a step whose end is not known may have been under way."""
        track = self._track
        if track is None or time_ns < self._begun_ns(track.reported_from_ns):
            return False
        return time_ns >= (self._closed_ns if track.open_ns is None else track.open_ns)

    def take(self, rows: Operations, roles: Roles, *, room: int) -> npt.NDArray[np.bool_]:
        """More operations, copied where the result is True: shape (n,)."""
        self._drives |= bool(is_one_of(roles, WORK).any())
        if self._drives:
            roles[is_one_of(roles, STRETCHES)] = Role.OTHER
        notes = self._note(rows, roles)
        self._calls_itself |= bool(calls_itself(notes).any())
        self._fresh.append(notes)
        others: npt.NDArray[np.bool_] = ~communicates(rows) & ~np.isin(rows["kind"], _ONLY_NOTED)
        held = rows.compress(others)
        if not len(held):
            return others
        starts = held["start_ns"]
        if self._track is None or len(held) > room:
            if self._track is not None:
                self._counters["operations_not_kept"] += len(held)
                self._kept = []  # of a step that will not be reported
            upto_ns = np.uint64(self._now_ns + self._rules.longest_ns)  # beyond, they are absurd
            self._passed_ns = max(self._passed_ns, int(starts.max(where=starts <= upto_ns, initial=0)))
            return np.zeros(len(rows), dtype=np.bool_)
        self._since_ns = min(self._since_ns, int(starts.min())) if self._held else int(starts.min())
        self._held.append(held)
        self.rows += len(held)
        return others

    def advance(self, now_ns: int, *, final: bool) -> tuple[list[FoundStep], list[Operations]]:
        """The steps whose ends are known by ``now_ns``, and operations that are of none."""
        final = final or self.ended
        self._now_ns = now_ns
        closed = self._read(self._due(now_ns, final=final))
        if self._track is not None and (final or self._last_ns < now_ns - self._rules.longest_ns):
            self._counters["training_periods_lost"] += not final
            closed += self._lose(None, 1 << 63)
        self._closed_ns = max([self._closed_ns, *(each.end_ns for each in closed)])
        steps, rest = self._take_out(closed)
        self.rows -= sum(len(each.rows) for each in steps) + sum(map(len, rest))
        return steps, rest

    def _due(self, now_ns: int, *, final: bool) -> Notes:
        """Notes of the calls that had returned, in that order."""
        if not self._fresh:
            return np.zeros(0, dtype=NOTE)
        notes = np.concatenate(self._fresh)
        order = np.lexsort((notes["tid"], notes["start_ns"], notes["end_ns"]))
        notes = notes.take(order)
        # Absurd times would wait for ever.
        upto = int(np.searchsorted(notes["end_ns"], np.uint64(now_ns + self._rules.longest_ns), side="right"))
        due = len(notes) if final else int(np.searchsorted(notes["end_ns"], np.uint64(now_ns), side="right"))
        self._fresh = [notes[due:upto]] if upto > due else []
        return notes[: min(due, upto)]

    def _read(self, notes: Notes) -> list[_Closed]:
        if not len(notes):
            return []
        collectives, marks = self._reader.read(notes.compress(notes["role"] != Role.FILE))
        self._marks = np.concatenate([self._marks, marks])
        self._keep(notes)
        if not len(collectives):
            self._marks = self._marks[-MARKS:]
            return []
        self._last_ns = int(collectives["end_ns"][-1])
        seen = len(self._collectives)
        self._collectives = np.concatenate([self._collectives, collectives])
        closed = self._follow(seen)
        self._collectives = self._collectives[-HISTORY:]
        self._marks = self._marks[-MARKS:]
        return closed

    def _follow(self, seen: int) -> list[_Closed]:
        """Find or follow the period in the collectives from position ``seen`` on: steps that ended."""
        closed: list[_Closed] = []
        fed = seen  # by the track
        while True:
            known = self._collectives
            if self._track is None:
                found = self._searcher.find(known, self._marks, seen)
                if found is None:
                    return closed
                seen = found[0] + 1
                fed = self._establish(*found, settle_ns=self._rules.settle_ns)
                continue
            wider = self._searcher.widen(known, self._marks, seen, self._track.period)
            upto = len(known) if wider is None else wider[0] + 1
            ended, lost = self._track.add(known[fed:upto], self._marks)
            closed += ended
            seen = fed = upto
            if lost is not None:
                self._counters["training_periods_lost"] += 1
                at = int(np.searchsorted(known["ordinal"], lost))
                closed += self._lose(lost, int(known["end_ns"][at]))
                self._collectives = known[at + 1 :]  # what was lost is not found again at once
                seen = 0
            elif wider is not None:
                self._found["widened"] += 1
                self._steps = self._track.steps - REPEATS
                fed = self._establish(*wider, settle_ns=0)
            else:
                return closed

    def _establish(self, position: int, period: Period, *, settle_ns: int) -> int:
        """Follow a period from now on. Where the collective is that its track begins with."""
        self._found["found"] += 1
        self._steps += REPEATS
        reported_from_ns = int(self._collectives["end_ns"][position]) + settle_ns
        if self._track is not None:
            reported_from_ns = max(reported_from_ns, self._track.reported_from_ns)
        self._track = _Track(period, reported_from_ns, self._steps)
        return int(np.searchsorted(self._collectives["ordinal"], period.first))

    def _keep(self, notes: Notes) -> None:
        self._kept.append(notes)
        if sum(map(len, self._kept)) > NOTES_KEPT:
            self._kept = []
            self._passed_ns = max(self._passed_ns, int(notes["start_ns"].max()))

    def _lose(self, at: int | None, seen_ns: int) -> list[_Closed]:
        """The period is over, with a collective or (None) for want of any."""
        assert self._track is not None
        closed = self._track.finish(self._marks, _NO_MORE if at is None else at, seen_ns)
        self._steps = self._track.steps
        self._track = None
        if at is None:
            self._collectives = self._collectives[:0]
        return closed

    def _take_out(self, closed: list[_Closed]) -> tuple[list[FoundStep], list[Operations]]:
        """Each step with its operations; what was before, and what waits for too long, is of none."""
        track = self._track
        oldest_ns = max(self._now_ns - self._rules.longest_ns, 0)
        if track is not None and track.open_ns is not None:
            oldest_ns = max(oldest_ns, track.open_ns)
        if not closed and track is not None and (not self._held or self._since_ns >= oldest_ns):
            return [], []
        rows = concatenate(self._held)
        rows = rows.take(np.argsort(rows["start_ns"], kind="stable"))
        starts = np.ascontiguousarray(rows["start_ns"])
        notes = np.concatenate([np.zeros(0, dtype=NOTE), *self._kept])
        steps, rest, begin = [], [], 0
        for step in closed:
            first, last = np.searchsorted(starts, np.array([step.start_ns, step.end_ns], dtype=np.uint64))
            first, last = max(int(first), begin), max(int(last), begin)
            rest.append(rows[begin:first])
            mine, begin = rows[first:last], last
            if not self._is_whole(step):
                rest.append(mine)
                continue
            late = mine["start_ns"] + mine["duration_ns"] > np.uint64(step.seen_ns)
            rest.append(mine.compress(late))
            boundary = step.boundary if self._drives else self._of_host(step.boundary)
            steps.append(_found(step, boundary, mine.compress(~late), notes))
        if track is None:
            self._held, self._kept = [], []
            rest.append(rows[begin:])
            return steps, [each for each in rest if len(each)]
        until = max(begin, int(np.searchsorted(starts, np.uint64(oldest_ns))))
        rest.append(rows[begin:until])
        upto = int(np.searchsorted(starts, np.uint64(self._now_ns + self._rules.longest_ns), side="right"))
        upto = max(upto, until)  # beyond, they are absurd
        rest.append(rows[upto:])
        self._held = [concatenate([rows[until:upto]])] if upto > until else []
        self._since_ns = int(starts[until]) if upto > until else 0
        self._kept = [notes.compress(notes["start_ns"] >= np.uint64(max(oldest_ns, self._closed_ns, 0)))]
        return steps, [each for each in rest if len(each)]

    def _of_host(self, boundary: Boundary) -> Boundary:
        of_wait = Boundary.COLLECTIVE if self._calls_itself else Boundary.BACKWARD
        return Boundary.DATA_LOADER if boundary is Boundary.H2D_COPY else of_wait

    def _begun_ns(self, reported_from_ns: int) -> int:
        """From when on steps are reported."""
        return max(self._passed_ns + 1, reported_from_ns)

    def _is_whole(self, step: _Closed) -> bool:
        """Whether it is reported: all of its operations were held."""
        if step.start_ns >= self._begun_ns(step.reported_from_ns) and step.end_ns > step.start_ns:
            return True
        if step.start_ns >= step.reported_from_ns:
            self._counters["training_steps_incomplete"] += 1
        return False


def _found(step: _Closed, boundary: Boundary, rows: Operations, notes: Notes) -> FoundStep:
    within = (notes["start_ns"] >= np.uint64(step.start_ns)) & (notes["start_ns"] < np.uint64(step.end_ns))
    within &= notes["end_ns"] <= np.uint64(step.seen_ns)
    return FoundStep(
        start_ns=step.start_ns,
        end_ns=step.end_ns,
        number=step.number,
        boundary=boundary,
        confidence=step.confidence,
        rows=rows,
        notes=notes.compress(within),
    )
