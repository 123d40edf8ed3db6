"""The one place that reads clocks for the pipeline."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Final

from otelgpu.model.inputs import ClockAnchor

_EVERY_NS: Final = 10_000_000_000
_STEP_NS: Final = 1_000_000  # more than lies between two readings


def monotonic_ns() -> int:
    """CLOCK_MONOTONIC, the clock of ``bpf_ktime_get_ns``."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


class WorkingTime:
    """The time that the main thread computes, ns, without what the garbage collector takes in it.

    A collection comes when somebody makes objects, and takes as long as there are objects of all: it is nobody's work.
    """

    def __init__(self) -> None:
        self._collecting_ns = self._began_ns = 0
        self._hurried_ns: int | None = None  # its reading less that of the clock, while it follows the clock
        gc.callbacks.append(self._collects)

    def __call__(self) -> int:
        """Since some time."""
        if self._hurried_ns is not None:
            return monotonic_ns() + self._hurried_ns
        return time.thread_time_ns() - self._collecting_ns

    @contextmanager
    def hurried(self) -> Iterator[None]:
        """Meanwhile every nanosecond counts, also those in which others have the processor: somebody waits."""
        before = self()
        self._hurried_ns = before - monotonic_ns()
        try:
            yield
        finally:
            self._collecting_ns = time.thread_time_ns() - self()
            self._hurried_ns = None

    def _collects(self, phase: str, _: object) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        if phase == "start":
            self._began_ns = time.thread_time_ns()
        else:
            self._collecting_ns += time.thread_time_ns() - self._began_ns


@cache
def working_time() -> WorkingTime:
    """That of this program; to be read in its main thread."""
    return WorkingTime()


def since_boot_ns(time_ns: int) -> int:
    """What CLOCK_MONOTONIC was at a time of CLOCK_BOOTTIME, if the system has not been suspended since."""
    return time_ns - (time.clock_gettime_ns(time.CLOCK_BOOTTIME) - monotonic_ns())


def anchor() -> ClockAnchor:
    """A pairing of CLOCK_MONOTONIC with CLOCK_REALTIME, from the tightest of a few bracketed reads."""
    best: tuple[int, int, int] | None = None
    for _ in range(5):
        before = monotonic_ns()
        unix = time.clock_gettime_ns(time.CLOCK_REALTIME)
        after = monotonic_ns()
        if best is None or after - before < best[0]:
            best = (after - before, (before + after) // 2, unix)
    assert best is not None
    return ClockAnchor(monotonic_ns=best[1], unix_ns=best[2])


class Anchors:
    """When to pair the clocks anew: now and then, and when one of them was set or went on through a suspend."""

    def __init__(self) -> None:
        self._last: ClockAnchor | None = None

    def due(self) -> ClockAnchor | None:
        """A new pairing, or None while the last one holds. Ask at every collection."""
        last, now_ns = self._last, monotonic_ns()
        if last is not None and now_ns - last.monotonic_ns < _EVERY_NS:
            ahead_ns = time.clock_gettime_ns(time.CLOCK_REALTIME) - now_ns
            if abs(ahead_ns - (last.unix_ns - last.monotonic_ns)) < _STEP_NS:
                return None
        self._last = anchor()
        return self._last
