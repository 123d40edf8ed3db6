"""One turn of waiting for a live source: until its time is over or, where it may rest, until there is something.

In: how long, and whatever comes meanwhile. Out: the time that is left. What comes while it rests is collected when it
would have been without the rest: at a multiple of the usual time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self


class Rings(Protocol):
    """What may be rested for."""

    def rest(self) -> bool:
        """Have the next record wake; False: there is one."""

    def resume(self) -> None:
        """Records wake nobody any more."""


class Turn:
    """``timeout_s``: as long as a turn takes; ``longest_s``: with a rest, if that is longer. A context."""

    def __init__(
        self, rings: Rings, timeout_s: float, longest_s: float, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rings, self._timeout_s, self._clock = rings, timeout_s, clock
        self._began = clock()
        self._due = self._began + timeout_s
        self._latest = self._began + max(longest_s, timeout_s)
        self.rests = False
        """Whether the next record of any ring wakes."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._wake()

    def left_s(self) -> float:
        """Seconds until there is to be collected; 0: now. It rests, if it may, unless there is something."""
        if self._due < self._latest and not self.rests and self._rings.rest():
            self.rests, self._due = True, self._latest
        return max(self._due - self._clock(), 0.0)

    def disturb(self) -> None:
        """There is something to collect: at the usual time."""
        if self.rests:
            past = math.ceil((self._clock() - self._began) / self._timeout_s)
            self._due = min(self._began + past * self._timeout_s, self._latest)
        self._latest = self._due
        self._wake()

    def _wake(self) -> None:
        if self.rests:
            self.rests = False
            self._rings.resume()
