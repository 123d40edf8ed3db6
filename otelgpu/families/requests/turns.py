"""Time to parse: each process and each container has a share of it between two ticks.

In: whose bytes are parsed next, and a stopwatch. Out: whether they are. It must not know what is parsed.

Invariant: all turns between two ticks take no more than :data:`TURNS_NS` and one more chunk of each process: a process
alone has half of that, a container two thirds, and others two thirds of what they left (``shares``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from otelgpu.families.requests.parser_output import ParserOutput
from otelgpu.model.shares import Headroom, Pool, Refusals, Share

TURNS_NS: Final = 300_000_000
"""For everybody between two ticks, of this thread's time: the loop that does this has other work."""
FLOOR_NS: Final = 20_000_000
"""For every container, also where a chunk of somebody's took far longer than usual: processors may be busy."""
EXCHANGE_NS: Final = 50_000
"""What a finished exchange costs those who make spans and metrics of it."""
GRAIN_BYTES: Final = 2048
"""Of one process after each other, of which the time is taken together: to read a clock costs as much as a token."""

Stopwatch = Callable[[], int]
"""Nanoseconds since some time."""


class Turns:
    """Those of one session; ``output`` is where the exchanges of all go."""

    def __init__(
        self,
        stopwatch: Stopwatch,
        output: ParserOutput,
        turns_ns: int = TURNS_NS,
        headroom: Headroom | None = None,
    ) -> None:
        self._stopwatch, self._output = stopwatch, output
        self._turns_ns, self._headroom = turns_ns, headroom
        self._whose: Share | None = None  # the turn under way
        self._process = -1
        self._began_ns = self._exchanges = self._bytes = 0
        self.refused = Refusals()
        self.renew()

    def renew(self) -> None:
        """A tick: everybody has his whole share again."""
        self.end()
        self._pool = Pool(self._turns_ns, floor=FLOOR_NS, headroom=self._headroom)
        self._shares: dict[int, Share] = {}

    def begin(self, process: int, container: int, size: int) -> bool:
        """Whether ``size`` bytes of a process may be parsed; it is its turn then, until another's or :meth:`end`."""
        self._bytes += size
        if process == self._process and self._bytes <= GRAIN_BYTES:
            return True
        self.end()
        share = self._shares.get(process)
        if share is None:
            share = self._shares[process] = self._pool.share_of(process, container)
        if share.left <= 0:
            self.refused.add(process, container)
            return False
        self._whose, self._process, self._bytes = share, process, size
        self._exchanges = len(self._output.exchanges)
        self._began_ns = self._stopwatch()
        return True

    def end(self) -> None:
        """Nobody's turn: what follows is no parsing."""
        if self._whose is not None:
            took_ns = self._stopwatch() - self._began_ns
            self._whose.charge(took_ns + EXCHANGE_NS * (len(self._output.exchanges) - self._exchanges))
            self._whose, self._process = None, -1
