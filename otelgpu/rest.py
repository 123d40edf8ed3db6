"""For how long the loop may wait where nothing comes: who has nothing to do is not there.

In: each collection's inputs, and when the session has something to do that no input asks for. Out: seconds. Who lives
side by side with a thousand idle processes is woken once in two seconds so, and by the first record at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from otelgpu.model.inputs import ClockAnchor, Input, LossCounted, Tick

LONGEST_S: Final = 2.0
"""Counters, sensors (which read every two seconds) and the ceiling of memory are looked at as often, whatever comes."""
QUIET_S: Final = 5.0
"""So long nothing has come before: what a process does at its start is followed by what has to be found out of it."""
_NOTHING: Final = (Tick, ClockAnchor, LossCounted)


class Session(Protocol):
    """What has something to do."""

    def due_in_s(self, now_s: float) -> float:
        """Seconds from ``now_s`` (CLOCK_MONOTONIC) on; 0: at the next tick."""


class Rest:
    """Of one loop, which says of each :meth:`turned`."""

    def __init__(self, session: Session, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._session, self._clock = session, clock
        self._quiet_since = clock()

    def turned(self, inputs: Iterable[Input]) -> None:
        """A collection is over: these came of the source."""
        if not all(isinstance(item, _NOTHING) for item in inputs):
            self._quiet_since = self._clock()

    @property
    def longest_s(self) -> float:
        """How long the next wait may last; 0: no longer than usual."""
        now_s = self._clock()
        if now_s - self._quiet_since < QUIET_S:
            return 0.0
        return min(self._session.due_in_s(now_s), LONGEST_S)
