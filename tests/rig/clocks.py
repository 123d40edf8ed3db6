"""How far the wall clock is ahead of CLOCK_MONOTONIC, for logs of the one that are compared with spans of the other."""

from __future__ import annotations

import time


def wall_ahead_ns() -> int:
    """Of several readings the largest: a thread that is held up between the two clocks reads the second one late."""
    return max(time.time_ns() - time.monotonic_ns() for _ in range(9))
