"""The one place that reads clocks for the pipeline."""

from __future__ import annotations

import time
from typing import Final

from otelgpu.model.inputs import ClockAnchor

_EVERY_NS: Final = 10_000_000_000
_STEP_NS: Final = 1_000_000  # more than lies between two readings


def monotonic_ns() -> int:
    """CLOCK_MONOTONIC, the clock of ``bpf_ktime_get_ns``."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


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
