"""Calls of vendors' libraries ↔ the stacks they were made under, by thread and start: both sides have the very same.

In: samples of kind CALL, and operations, in any order within a few ticks. Out: for each operation the number of its
stack. Pure; memory is bounded by :data:`ROWS`, and what finds no partner is counted, by side.

Worked example: sample (tid 9, time 100, stack 77); operations (9, 100) and (9, 200). The first has stack 77 at once;
the second waits :data:`WAIT_NS` for a sample that does not come, then is reported with stack 0 and counted as
``calls_without_stack``.

A sample comes with the call's entry and the operation with its return, hence later, if not by much: an operation
that has come to an end by a tick has its sample by then. Only where records are written at entries may the sample be
the later one. Samples are kept for :data:`KEEP_NS` after they came, for what a device did is reported so much later.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

import numpy as np
import numpy.typing as npt

from otelgpu.model.losses import Reasons
from otelgpu.model.operations import Operations, concatenate
from otelgpu.model.samples import Samples

ROWS: Final = 1 << 19
"""Samples that are kept, 16 MB; as many operations may wait, which nearly none does."""

WAIT_NS: Final = 1_000_000_000
"""How long an operation waits for its sample."""

KEEP_NS: Final = 15_000_000_000
"""How long a sample is of use after its call: device time finds its call for 10 s."""

CALL_NS: Final = 60_000_000_000
"""How long a sample waits for its operation: calls may last."""

COUNTERS: Final = Reasons(
    "profile",
    {
        "calls_without_stack": "a library's call whose stack was asked for and did not come: reported without it",
        "stacks_without_call": "the stack of a library's call whose record did not come: it was lost, or "
        "lasted a minute",
        "stacks_beyond_memory": "the stack of a library's call that was forgotten before its record came: too many",
    },
)
"""Reason → what one count means."""

_SAMPLE: Final = np.dtype(
    [("time_ns", "<u8"), ("stack", "<u8"), ("arrived_ns", "<i8"), ("tid", "<u4"), ("used", "u4")]
)


class CallStacks:
    """The samples of one session."""

    def __init__(self) -> None:
        self.counters: Counter[str] = Counter(dict.fromkeys(COUNTERS, 0))
        self._kept = np.zeros(0, dtype=_SAMPLE)  # by time
        self._new: list[npt.NDArray[np.void]] = []

    def __len__(self) -> int:
        return len(self._kept) + sum(map(len, self._new))

    def add(self, samples: Samples, now_ns: int) -> None:
        """Samples of calls that have operations, as they came."""
        rows = np.zeros(len(samples), dtype=_SAMPLE)
        rows["time_ns"], rows["tid"], rows["stack"] = samples["time_ns"], samples["tid"], samples["stack"]
        rows["arrived_ns"] = now_ns
        self._new.append(rows)

    def find(self, rows: npt.NDArray[np.void]) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.uint64]]:
        """Of rows with the thread and start of a call: whether its sample has come, and its stack. Shapes (n,)."""
        self._settle()
        place = self._places(np.ascontiguousarray(rows["tid"]), np.ascontiguousarray(rows["start_ns"]))
        found = place >= 0
        stacks = np.zeros(len(rows), dtype=np.uint64)
        stacks[found] = self._kept["stack"][place[found]]
        self._kept["used"][place[found]] = 1
        return found, stacks

    def stacks_of(self, rows: npt.NDArray[np.void]) -> npt.NDArray[np.uint64]:
        """The same without the difference between a stack that could not be taken and none that came."""
        return self.find(rows)[1]

    def expire(self, now_ns: int, *, final: bool = False) -> None:
        """Forget what is of no more use."""
        self._settle()
        age = np.where(final, CALL_NS, now_ns - self._kept["arrived_ns"])
        used = self._kept["used"] != 0
        self.counters["stacks_without_call"] += int((~used & (age >= CALL_NS)).sum())
        over = age >= np.where(used, KEEP_NS, CALL_NS)
        if over.any():
            self._kept = self._kept[~over]

    def _settle(self) -> None:
        if not self._new:
            return
        rows = np.concatenate([self._kept, *self._new])
        self._new.clear()
        rows = rows[np.argsort(rows["time_ns"], kind="stable")]
        excess = max(len(rows) - ROWS, 0)
        self.counters["stacks_beyond_memory"] += int((rows["used"][:excess] == 0).sum())
        self._kept = rows[excess:]

    def _places(self, tids: npt.NDArray[np.uint32], starts: npt.NDArray[np.uint64]) -> npt.NDArray[np.intp]:
        """Position of each call's sample, -1 where there is none."""
        place = np.full(len(tids), -1, dtype=np.intp)
        times = np.ascontiguousarray(self._kept["time_ns"])
        at = np.searchsorted(times, starts, side="left")
        last = np.searchsorted(times, starts, side="right")
        while (
            open_ := np.flatnonzero((at < last) & (place < 0))
        ).size:  # once, but for threads at one nanosecond
            right = self._kept["tid"][at[open_]] == tids[open_]
            place[open_[right]] = at[open_[right]]
            at[open_] += 1
        return place


class WaitingCalls:
    """Operations until their samples have come, or for :data:`WAIT_NS`."""

    def __init__(self, stacks: CallStacks) -> None:
        self._stacks = stacks
        self._new: list[Operations] = []
        self._waiting: list[tuple[int, Operations]] = []  # since when

    def add(self, rows: Operations) -> None:
        """They are kept: whoever may change them copies."""
        if len(rows):
            self._new.append(rows)

    def take(self, now_ns: int, *, final: bool = False) -> tuple[Operations, npt.NDArray[np.uint64]]:
        """Those that are known by now, and those that have waited too long, with their stacks: shapes (n,)."""
        candidates = [*self._waiting, *((now_ns, rows) for rows in self._new)]
        self._new, self._waiting = [], []
        reported: list[Operations] = []
        numbers: list[npt.NDArray[np.uint64]] = [np.zeros(0, dtype=np.uint64)]
        room = ROWS
        for since_ns, rows in candidates:
            found, stacks = self._stacks.find(rows)
            lost = ~found & (final or now_ns - since_ns >= WAIT_NS)
            lost |= ~found & (np.cumsum(~found) > room)
            self._stacks.counters["calls_without_stack"] += int(lost.sum())
            done = found | lost
            if not done.all():
                self._waiting.append((since_ns, rows.compress(~done)))
                room -= len(self._waiting[-1][1])
            reported.append(rows if done.all() else rows.compress(done))
            numbers.append(stacks[done])
        return concatenate(reported), np.concatenate(numbers)
