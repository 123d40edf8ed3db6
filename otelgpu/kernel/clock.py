"""The one place that reads clocks for the pipeline."""

from __future__ import annotations

import time

from otelgpu.model.inputs import ClockAnchor


def monotonic_ns() -> int:
    """CLOCK_MONOTONIC, the clock of ``bpf_ktime_get_ns``."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


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
