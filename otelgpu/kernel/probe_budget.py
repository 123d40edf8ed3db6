"""How much of the time probes of hot functions may be attached, so that they cost a process no more than was allowed.

In: how often the functions were called while they were probed. Out: the share of time for each kind of probe, and
how it is cut into windows. Pure: time and rates are arguments.

A window costs a thread at most its own length, even one that does nothing but trap. So a share as large as the
budget is safe before anything is known of a program, and the first windows have that share. From then on the rate
that was measured decides. Posts come first: as long as they are affordable they are always probed and what is
counted of them is exact; polls get what is left.
"""

from __future__ import annotations

import math
from typing import Final

from msgspec import Struct

_WINDOW_NS: Final = 100_000_000
_SHORTEST_NS: Final = 2_000_000  # shorter ones are mostly attaching and detaching
_PERIOD_NS: Final = 2_000_000_000
_LONGEST_PERIOD_NS: Final = 60_000_000_000
_POSTS_OF_BUDGET: Final = 0.75
_OF_WINDOWS: Final = 0.8  # of a budget: what traps cost in caches, and attaching and detaching, is not tried
_SMOOTHED: Final = 0.5  # of what is known, when a new rate comes that is lower; a higher one counts at once
_SECOND_NS: Final = 1_000_000_000


class Window(Struct, frozen=True, kw_only=True):
    """``open_ns`` in each ``period_ns``: equal when always, 0 when never."""

    open_ns: int
    period_ns: int

    @property
    def is_always(self) -> bool:
        """Whether it never closes."""
        return self.open_ns >= self.period_ns

    @property
    def share(self) -> float:
        """Of time, 0 to 1."""
        return self.open_ns / self.period_ns


ALWAYS: Final = Window(open_ns=_PERIOD_NS, period_ns=_PERIOD_NS)
NEVER: Final = Window(open_ns=0, period_ns=_PERIOD_NS)


class ProbeBudget:
    """``percent`` of a core per observed process; infinite: probe always, 0: never.

    ``trap_ns``: what one probed call costs its thread, entry and return together.
    """

    def __init__(self, percent: float, trap_ns: float) -> None:
        if not percent >= 0:
            raise ValueError(f"a budget of {percent} % is none")
        self._allowed = percent / 100  # ns per ns
        self._trap_ns = trap_ns
        self._posts: float | None = None  # a second, of the busiest process, while probed
        self._polls: float | None = None

    def measured(self, *, posts: int = 0, posts_ns: int = 0, polls: int = 0, polls_ns: int = 0) -> None:
        """Calls of the busiest process in a time that its probes were attached; without time, nothing is learnt."""
        if posts_ns > 0:
            self._posts = _smoothed(self._posts, posts * _SECOND_NS / posts_ns)
        if polls_ns > 0:
            self._polls = _smoothed(self._polls, polls * _SECOND_NS / polls_ns)

    def cost(self, trap_ns: float) -> None:
        """What one probed call costs was tried since."""
        self._trap_ns = trap_ns

    @property
    def posts(self) -> Window:
        """When posts are to be probed."""
        return self._window(_POSTS_OF_BUDGET * self._allowed, self._posts, unknown=ALWAYS)

    @property
    def polls(self) -> Window:
        """When polls are to be probed."""
        left = self._allowed - self._cost(self._posts or 0.0) * self.posts.share
        return self._window(left, self._polls, unknown=_cut(min(self._allowed, 1.0)))

    def _cost(self, rate: float) -> float:
        """Share of a core that always probing costs, of which a thread cannot lose more than all its time.

        Called so often because it is slowed down, a function would be called even more often without probes: the
        measured rate is then its upper bound, and so is the cost.
        """
        return rate * self._trap_ns / _SECOND_NS

    def _window(self, allowed: float, rate: float | None, *, unknown: Window) -> Window:
        if not self._allowed:
            return NEVER
        if math.isinf(self._allowed):
            return ALWAYS
        if rate is None:
            return unknown
        cost = self._cost(rate)
        return _cut(allowed / cost if cost > 0 else 1.0)


class CallBudget:
    """``percent`` of a core for calls of one process: always probed, until so many were made that it costs more.

    ``trap_ns``: see :class:`ProbeBudget`.
    """

    def __init__(self, percent: float, trap_ns: float) -> None:
        self._allowed, self._trap_ns = percent / 100, trap_ns
        self._rate: float | None = None

    def measured(self, calls: int, observed_ns: int) -> None:
        """Calls in a time that they were probed; without time, nothing is learnt."""
        if observed_ns > 0:
            self._rate = _smoothed(self._rate, calls * _SECOND_NS / observed_ns)

    def cost_of(self, trap_ns: float) -> None:
        """What one probed call costs was tried since."""
        self._trap_ns = trap_ns

    @property
    def rate(self) -> float:
        """Calls a second, as far as is known."""
        return self._rate or 0.0

    @property
    def cost(self) -> float:
        """Share of a core that always probing costs."""
        return self.rate * self._trap_ns / _SECOND_NS

    @property
    def window(self) -> Window:
        """When calls are to be probed."""
        return ALWAYS if self.cost <= self._allowed else _cut(_OF_WINDOWS * self._allowed / self.cost)


def _smoothed(before: float | None, now: float) -> float:
    return now if before is None or now > before else before * _SMOOTHED + now * (1 - _SMOOTHED)


def _cut(share: float) -> Window:
    """A share of time as a window and its period: longer windows first, then rarer ones."""
    if share >= 1:
        return ALWAYS
    if share <= 0:
        return NEVER
    open_ns = min(share * _PERIOD_NS, _WINDOW_NS)
    if share * _PERIOD_NS > _WINDOW_NS:
        return Window(open_ns=_WINDOW_NS, period_ns=int(_WINDOW_NS / share))
    if open_ns >= _SHORTEST_NS:
        return Window(open_ns=int(open_ns), period_ns=_PERIOD_NS)
    period_ns = _SHORTEST_NS / share
    if period_ns > _LONGEST_PERIOD_NS:
        return NEVER
    return Window(open_ns=_SHORTEST_NS, period_ns=int(period_ns))
