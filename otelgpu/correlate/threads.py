"""Tier ``thread``: which request a thread was working for at a time.

In: claims (a thread took up or let go of an exchange) and columns of (thread, time). Out: for each row
the exchange's key, 0 for none, or :data:`AMBIGUOUS` when the thread held several at once (an event loop):
such work is left unlinked rather than given to the wrong request.

Worked example, thread 7: claims (t=10, exchange 1, held), (t=30, exchange 1, let go) answer
t=5 → 0, t=10 → 1, t=29 → 1, t=30 → 0.

Invariant: an answer for time t depends only on claims with time ≤ t, so it does not matter how claims
and questions were batched, as long as every claim up to t has been applied before t is asked about.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from otelgpu.correlate.runs import runs
from otelgpu.model.exchange import Claim

AMBIGUOUS: Final = -1


@dataclass(slots=True)
class _Thread:
    tgid: int
    held: dict[int, None] = field(default_factory=dict)
    times: list[int] = field(default_factory=list)  # ascending
    states: list[int] = field(default_factory=list)  # what holds from times[i] on


class ThreadTimeline:
    """The claims of all threads, for as long as questions about them can come."""

    def __init__(self) -> None:
        self._threads: dict[int, _Thread] = {}

    def apply(self, claims: Iterable[Claim]) -> None:
        """Add claims; per thread they come in order of time."""
        for claim in claims:
            thread = self._threads.get(claim.tid)
            if thread is None:
                thread = self._threads[claim.tid] = _Thread(claim.tgid)
            if claim.held:
                thread.held[claim.exchange] = None
            else:
                thread.held.pop(claim.exchange, None)
            if not thread.held:
                state = 0
            elif len(thread.held) == 1:
                state = next(iter(thread.held))
            else:
                state = AMBIGUOUS
            time_ns = max(claim.time_ns, thread.times[-1]) if thread.times else claim.time_ns
            thread.times.append(time_ns)
            thread.states.append(state)

    def owners(self, tids: npt.NDArray[np.uint32], times_ns: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """The state at each (tid, time): shape (n,) int64."""
        owners = np.zeros(len(tids), dtype=np.int64)
        if not self._threads or not len(tids):
            return owners
        order = np.argsort(tids, kind="stable")
        sorted_tids = tids[order]
        for begin, end in runs(sorted_tids):
            thread = self._threads.get(int(sorted_tids[begin]))
            if thread is None:
                continue
            rows = order[begin:end]
            positions = np.searchsorted(np.array(thread.times, dtype=np.uint64), times_ns[rows], side="right")
            states = np.array([0, *thread.states], dtype=np.int64)
            owners[rows] = states[positions]
        return owners

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

    def forget_process(self, tgid: int) -> None:
        """Drop a process that ended: its thread ids may be given out again."""
        for tid in [tid for tid, thread in self._threads.items() if thread.tgid == tgid]:
            del self._threads[tid]
