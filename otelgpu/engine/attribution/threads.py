"""Tier ``thread``: which request a thread was working for at a time.

In: assignments (a thread began or ended its work for an exchange) and columns of (thread, time). Out: for each row
the exchange's key, 0 for none, or :data:`AMBIGUOUS` when the thread held several at once (an event loop):
such work is left unattributed rather than given to the wrong request.

Worked example, thread 7: assignments (t=10, exchange 1, begins), (t=30, exchange 1, ends) answer
t=5 → 0, t=10 → 1, t=29 → 1, t=30 → 0.

An event loop is a thread that has held several requests at once, or that reads without waiting. One that calls
while it holds none does work of its own, or of a request that it has answered (a background task), and does so also
while it holds just one: from then on it is not trusted (:meth:`ThreadTimeline.distrust`).

Of requests that are read without waiting, any thread of the process may do the work of any. Such a one is its thread's
only while it is the only one of its process, and no other has been since it began. After one that ended without its
whole response none is: what its client did not wait for may go on. (Runtimes that are known to multiplex are not asked
at all: :mod:`otelgpu.engine.attribution.multiplexing`.)

Invariant: an answer for time t depends only on assignments with time ≤ t, so it does not matter how assignments
and questions were batched, as long as every assignment up to t has been applied before t is asked about.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field

from otelgpu.model.codes import Codes, all_of, distinct, order_of, values_of
from otelgpu.model.exchange import ThreadAssignment
from otelgpu.spanwriter.library import library
from otelgpu.spanwriter.timelines import states_at

AMBIGUOUS: Final = -1
"""The request of a thread that held several at once."""
UNSETTLED: Final = -2
"""That of one of which the next tick will report for whom it worked."""
NO_TASK: Final = -3
"""That of one that ran a task which served none then."""
_NEVER_NS: Final = (1 << 64) - 1


class _Thread(Struct):
    tgid: int
    held: dict[int, None] = field(default_factory=dict)
    # Arrays, for of a flood of requests there are some hundred thousand: 8 bytes each, not 40.
    times: array[int] = field(default_factory=lambda: array("Q"))  # ascending
    states: array[int] = field(default_factory=lambda: array("q"))  # what holds from times[i] on

    def note(self, time_ns: int, state: int) -> None:
        """From a time on, which counts as the last one if it runs back."""
        self.times.append(max(time_ns, self.times[-1]) if self.times else time_ns)
        self.states.append(state)


class _Loop(Struct):
    tgid: int
    since_ns: int
    loose_ns: int = _NEVER_NS  # since when it is known to work for others than it holds


class _LoopProcess(Struct):
    """Requests that a process reads without waiting."""

    held: set[tuple[int, int]] = field(default_factory=set)  # (thread, exchange) of those under way
    was_cut: bool = False  # one ended without its whole response
    is_doubtful: bool = False  # several have been under way since one was alone


def _as_of(
    begins: npt.NDArray[np.uint64], states: list[int], when: npt.NDArray[np.uint64], order: Codes
) -> npt.NDArray[np.int64]:
    """The last state that began by each time; none is before the first. ``order`` may sort the times.

    Few searches in many sorted times cost less than many in few states.
    """
    ordered = when[order]
    if not all_of(ordered[1:] >= ordered[:-1]):
        order = np.argsort(when)
        ordered = when[order]
    firsts = np.searchsorted(ordered, begins, side="left")
    found = np.empty(len(when), dtype=np.int64)
    found[order] = np.repeat(np.array(states, dtype=np.int64), np.diff(firsts, append=len(when)))
    return found


class ThreadTimeline:
    """The assignments of all threads, for as long as questions about them can come."""

    def __init__(self) -> None:
        self._threads: dict[int, _Thread] = {}
        self._loops: dict[int, _Loop] = {}
        self._processes: dict[int, _LoopProcess] = {}

    def apply(self, assignments: Iterable[ThreadAssignment]) -> None:
        """Add assignments; per thread they come in order of time."""
        for assignment in assignments:
            if assignment.loop:
                self._loops.setdefault(assignment.tid, _Loop(assignment.tgid, assignment.time_ns))
            thread = self._threads.get(assignment.tid)
            if thread is None:
                thread = self._threads[assignment.tid] = _Thread(assignment.tgid)
            if assignment.begins:
                thread.held[assignment.exchange] = None
            else:
                thread.held.pop(assignment.exchange, None)
            is_doubtful = assignment.loop and self._is_doubtful(assignment)
            if not thread.held:
                state = 0
            elif len(thread.held) == 1 and not is_doubtful:
                state = next(iter(thread.held))
            else:
                state = AMBIGUOUS
                self._loops.setdefault(assignment.tid, _Loop(assignment.tgid, assignment.time_ns))
            thread.note(assignment.time_ns, state)

    def _is_doubtful(self, assignment: ThreadAssignment) -> bool:
        """Whether, with a request that a loop begins or ends, whatever its process works for cannot be told."""
        process = self._processes.setdefault(assignment.tgid, _LoopProcess())
        if assignment.begins:
            process.held.add((assignment.tid, assignment.exchange))
            if not process.is_doubtful and len({exchange for _, exchange in process.held}) > 1:
                process.is_doubtful = True
                self._doubt_others(process, assignment)
        else:
            process.held.discard((assignment.tid, assignment.exchange))
            process.is_doubtful &= bool(process.held)
            if assignment.cut and not process.was_cut:
                process.was_cut = True
                self._doubt_others(process, assignment)
        return process.is_doubtful or process.was_cut

    def _doubt_others(self, process: _LoopProcess, assignment: ThreadAssignment) -> None:
        """What other threads of the process have under way is from now on no more theirs than anybody's."""
        for tid in {tid for tid, _ in process.held} - {assignment.tid}:
            if (other := self._threads.get(tid)) is not None:
                other.note(assignment.time_ns, AMBIGUOUS)

    def owners(self, tids: npt.NDArray[np.uint32], times_ns: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """The state at each (tid, time): shape (n,) int64."""
        if not self._threads or not len(tids):
            return np.zeros(len(tids), dtype=np.int64)
        if len(tids) == 1:
            return np.array([self._state(int(tids[0]), int(times_ns[0]))], dtype=np.int64)
        since, until = int(times_ns.min()), int(times_ns.max())
        if library() is None:
            return self._owners_by_numpy(tids, times_ns, since, until)
        return states_at(tids, times_ns, lambda tid: self._states_of(tid, since, until))

    def _owners_by_numpy(
        self, tids: npt.NDArray[np.uint32], times_ns: npt.NDArray[np.uint64], since: int, until: int
    ) -> npt.NDArray[np.int64]:
        """The same without the library, and what it is compared with."""
        owners = np.empty(len(tids), dtype=np.int64)
        asked, codes = distinct(tids)
        span = until - since + 1
        if span * (len(asked) + 1) >= 1 << 64:  # absurd times: one thread after the other
            for code, tid in enumerate(asked.tolist()):
                mine = np.flatnonzero(codes == code)
                begins, states = self._states_of(tid, since, until)
                owners[mine] = _as_of(
                    np.array(begins, np.uint64), states, times_ns[mine], np.arange(len(mine))
                )
            return owners
        # One search for all: the threads' spans of time lie one behind the other.
        all_begins: list[int] = []
        all_states: list[int] = []
        for code, tid in enumerate(asked.tolist()):
            begins, states = self._states_of(tid, since, until)
            all_begins += [max(begin - since, 0) + code * span for begin in begins]
            all_states += states
        when = (times_ns - np.uint64(since)) + codes.astype(np.uint64) * np.uint64(span)
        # A thread's calls nearly always come in the order of their times.
        order = order_of(codes, len(asked))
        return _as_of(np.array(all_begins, dtype=np.uint64), all_states, when, order)

    def distrust(
        self,
        tids: npt.NDArray[np.uint32],
        times_ns: npt.NDArray[np.uint64],
        owners: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.int64]:
        """``owners`` of calls, those of loops that also work for nobody they hold made :data:`AMBIGUOUS`."""
        for tid in self._loops.keys() & set(values_of(tids)) if self._loops and len(tids) else ():
            loop, mine = self._loops[tid], tids == tid
            alone = times_ns[mine & (owners == 0) & (times_ns > loop.since_ns)]
            if len(alone):
                loop.loose_ns = min(loop.loose_ns, int(alone.min()))
            owners = np.where(mine & (owners > 0) & (times_ns >= loop.loose_ns), AMBIGUOUS, owners)
        return owners

    def trusted(
        self,
        tids: npt.NDArray[np.uint32],
        times_ns: npt.NDArray[np.uint64],
        owners: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.int64]:
        """``owners`` of what is no call, as :meth:`distrust` has them, which learns of calls alone."""
        for tid, loop in self._loops.items() if len(tids) else ():
            if loop.loose_ns != _NEVER_NS:
                owners = np.where(
                    (tids == tid) & (owners > 0) & (times_ns >= loop.loose_ns), AMBIGUOUS, owners
                )
        return owners

    def owners_of_waiting(
        self, tids: npt.NDArray[np.uint32], times_ns: npt.NDArray[np.uint64]
    ) -> npt.NDArray[np.int64]:
        """As :meth:`owners`, of threads that wait for what they read; those of loops hold nothing here: shape (n,)."""
        owners = self.owners(tids, times_ns)
        return np.where(np.isin(tids, list(self._loops)), 0, owners) if self._loops else owners

    def owner(self, tid: int, time_ns: int) -> int:
        """The state of one thread at a time, as :meth:`owners` gives it, and :meth:`trusted`."""
        state = self._state(tid, time_ns)
        loop = self._loops.get(tid)
        return AMBIGUOUS if state > 0 and loop is not None and time_ns >= loop.loose_ns else state

    def _state(self, tid: int, time_ns: int) -> int:
        thread = self._threads.get(tid)
        if thread is None:
            return 0
        place = bisect_right(thread.times, time_ns)
        return thread.states[place - 1] if place else 0

    def _states_of(self, tid: int, since_ns: int, until_ns: int) -> tuple[list[int], list[int]]:
        """What a thread held between two times, and from when on; the first, from before them on, from 0 on."""
        thread = self._threads.get(tid)
        if thread is None:
            return [0], [0]
        first, last = bisect_right(thread.times, since_ns), bisect_right(thread.times, until_ns)
        before = thread.states[first - 1] if first else 0
        return [0, *thread.times[first:last]], [before, *thread.states[first:last]]

    def current(self) -> Iterator[tuple[int, int, int]]:
        """(tgid, tid, exchange) of every thread that works for just one exchange now."""
        for tid, thread in self._threads.items():
            loop = self._loops.get(tid)
            if thread.states[-1] > 0 and (loop is None or loop.loose_ns == _NEVER_NS):
                yield thread.tgid, tid, thread.states[-1]

    def held(self) -> set[int]:
        """The exchanges that some thread holds now."""
        return {exchange for thread in self._threads.values() for exchange in thread.held}

    def forget_before(self, time_ns: int) -> None:
        """Drop what can no longer be asked about; a thread's current state is kept."""
        for tid, thread in list(self._threads.items()):
            cut = bisect_left(thread.times, time_ns) - 1
            if cut > 0:
                del thread.times[:cut], thread.states[:cut]
            if not thread.held and thread.times[-1] < time_ns:
                del self._threads[tid]

    def forget_loops(self, tgid: int) -> None:
        """Drop what threads of a process hold that they read without waiting: it is no evidence."""
        for tid in [tid for tid, loop in self._loops.items() if loop.tgid == tgid]:
            del self._loops[tid]
            self._threads.pop(tid, None)
        self._processes.pop(tgid, None)

    def forget_process(self, tgid: int) -> None:
        """Drop a process that ended: its thread ids may be given out again."""
        for tid in [tid for tid, thread in self._threads.items() if thread.tgid == tgid]:
            del self._threads[tid]
        self._loops = {tid: loop for tid, loop in self._loops.items() if loop.tgid != tgid}
        self._processes.pop(tgid, None)
