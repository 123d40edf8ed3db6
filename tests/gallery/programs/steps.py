"""The work of a step: so much CPU time, whatever else the machine does."""

from __future__ import annotations

import time
import zlib

STEPS = 40
WORK_S = 0.03
PAUSE_S = 0.01
EVERY = 5
_BLOCK = bytes(range(256)) * 256


def work(seconds: float = WORK_S) -> None:
    """Native code that gives up the interpreter's lock, as a matrix product does."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        zlib.crc32(zlib.compress(_BLOCK, 6))


def pause(seconds: float = PAUSE_S) -> None:
    """As a loop that waits for a device does."""
    time.sleep(seconds)
