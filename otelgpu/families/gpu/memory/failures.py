"""Allocations that failed because memory was out: what was held just then, and whether the thread got it after all.

In: failed allocations and what follows them, in order of their effect, from the ledger. Out: :class:`Failure`, once it
is known how it went on: the same thread was given as much (``RECOVERED``), its process ended (``ENDED``), or neither
within :data:`WATCH_NS` (``UNMET``). Pure, bounded by :data:`WATCHED` and :data:`TOP`.

PyTorch's allocator asks again at once after it has given back what it kept; the two calls, of one thread and one size,
are one failure with two attempts, and one that recovers is no out of memory.

>>> failures = Failures()
>>> process = ProcessMemory(7, Counter(), 1 << 10)
>>> refused = Request(time_ns=100, tid=7, device=0, memory=1, family=0, size=64, caller=0, stack=0)
>>> failures.refuse(process, refused)
>>> failures.grant(7, 7, 0, 64, 180)
>>> [(each.outcome, each.after_ns) for each in failures.take(200)]
[('recovered', 80)]
"""

from __future__ import annotations

from collections import Counter
from typing import Final, NamedTuple

from msgspec import Struct, field

from otelgpu.engine.memory_names import LEAK_WINDOWS
from otelgpu.families.gpu.memory.process import ProcessMemory
from otelgpu.model.memory_failures import ENDED, RECOVERED, UNMET
from otelgpu.model.operations import DEVICE_MEMORY

WATCH_NS: Final = 3_000_000_000
"""How long after its last attempt a failure is watched."""
WATCHED: Final = 64
"""Failures of all processes that are watched at a time; more are counted."""
TOP: Final = 5
"""Places that held most, of each failure."""


class Request(NamedTuple):
    """An allocation that was refused: time of its return, thread, ordinal of the device, bytes, place."""

    time_ns: int
    tid: int
    device: int
    memory: int
    family: int
    size: int
    caller: int
    stack: int


class Holder(NamedTuple):
    """What one place in the code holds. ``growing``: it has freed nothing for minutes, and allocates."""

    caller: int
    stack: int
    size: int
    number: int
    growing: bool


class Failure(Struct, kw_only=True):
    """One, with what the process held of the device at its first attempt. ``after_ns``: when it recovered.

    ``freed``: bytes of the device that the process gave back from then until it recovered.
    """

    tgid: int
    request: Request
    held: int
    top: list[Holder] = field(default_factory=list)
    attempts: int = 1
    last_ns: int = 0
    outcome: str = UNMET
    after_ns: int = 0
    freed: int = 0


class Failures:
    """Those of one session."""

    def __init__(self) -> None:
        self.unwatched = 0
        """Failures that were too many to be looked at."""
        self._open: dict[tuple[int, int, int, int], Failure] = {}  # tgid, tid, device, size
        self._watched: Counter[int] = Counter()  # by process
        self._done: list[Failure] = []

    def __len__(self) -> int:
        return len(self._open) + len(self._done)

    def watches(self, tgid: int) -> bool:
        """Whether what a process allocates matters: see :meth:`grant`."""
        return tgid in self._watched

    def refuse(self, process: ProcessMemory, request: Request) -> None:
        """An allocation failed for want of memory."""
        key = process.tgid, request.tid, request.device, request.size
        known = self._open.get(key)
        if known is not None:
            known.attempts, known.last_ns = known.attempts + 1, request.time_ns
            return
        if len(self._open) >= WATCHED:
            self.unwatched += 1
            return
        self._open[key] = Failure(
            tgid=process.tgid,
            request=request,
            held=process.held_of(request.device),
            top=_top(process, request.device),
            last_ns=request.time_ns,
        )
        self._watched[process.tgid] += 1

    def grant(self, tgid: int, tid: int, device: int, size: int, time_ns: int, held: int = 0) -> None:
        """A thread of a watched process was given ``size`` bytes; ``held``: by the process then, these among them."""
        for key, failure in list(self._open.items()):
            if key[:3] == (tgid, tid, device) and size >= key[3] and time_ns > failure.request.time_ns:
                failure.outcome, failure.after_ns = RECOVERED, time_ns - failure.request.time_ns
                failure.freed = max(failure.held - (held - size), 0)
                self._close(key)

    def end_process(self, tgid: int) -> None:
        """It ended."""
        for key, failure in list(self._open.items()):
            if key[0] == tgid:
                failure.outcome = ENDED
                self._close(key)

    def take(self, now_ns: int, *, final: bool = False) -> list[Failure]:
        """Those of which it is known how they went on; ``final``: all."""
        for key, failure in list(self._open.items()):
            if final or failure.last_ns + WATCH_NS <= now_ns:
                self._close(key)
        done, self._done = self._done, []
        return done

    def _close(self, key: tuple[int, int, int, int]) -> None:
        self._done.append(self._open.pop(key))
        self._watched[key[0]] -= 1
        if not self._watched[key[0]]:
            del self._watched[key[0]]


def _top(process: ProcessMemory, device: int) -> list[Holder]:
    """By place: a caller and a stack, whatever the kind of memory and the context."""
    sums: dict[tuple[int, int], Holder] = {}
    for site in process.sites:
        account = site.account
        if site.live_bytes and account.device == device and account.memory in DEVICE_MEMORY:
            place = site.caller, site.stack
            before = sums.get(place) or Holder(*place, 0, 0, growing=False)
            sums[place] = Holder(
                *place,
                before.size + site.live_bytes,
                before.number + site.live_allocations,
                growing=before.growing or site.growing_windows >= LEAK_WINDOWS,
            )
    return sorted(sums.values(), key=lambda each: -each.size)[:TOP]
