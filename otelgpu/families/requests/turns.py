"""Time to parse: each process and each container has a share of it between two ticks, and may have what others leave.

In: whose bytes are parsed next, and a stopwatch. Out: whether they are. It must not know what is parsed.

A process that has had its share is put off: its connections wait, in their order, until the tick. What all others
left of their time is theirs then; and of the new time each has its share before anything newer is parsed. Those with
least to do come first: who sends a chunk that takes longer than his share lengthens nobody's way but his own.

Invariant: all turns between two ticks take no more than :data:`TURNS_NS` and one more chunk of each process; but for
what nobody else wants, a process alone has half of that, a container two thirds, and others two thirds of what they
left (``shares``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from otelgpu.families.requests.parser_output import ParserOutput
from otelgpu.model.shares import Headroom, Pool, Refusals, Share

TURNS_NS: Final = 200_000_000
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
    """Those of one session; ``output`` is where the exchanges of all go, ``waiting``: how much a process has to do."""

    def __init__(
        self,
        stopwatch: Stopwatch,
        output: ParserOutput,
        waiting: Callable[[int], int],
        turns_ns: int = TURNS_NS,
        headroom: Headroom | None = None,
    ) -> None:
        self._stopwatch, self._output, self._waiting = stopwatch, output, waiting
        self._turns_ns, self._headroom = turns_ns, headroom
        self._put_off: dict[int, deque[int]] = {}  # process → its connections that wait
        self._called = False  # those that were put off have their turns
        self._to_all = False  # and all that is left is theirs: nobody else's are to come
        self._whose: Share | None = None  # the turn under way
        self._process = -1
        self._began_ns = self._exchanges = self._bytes = 0
        self.refused = Refusals()
        self._renew()

    def _renew(self) -> None:
        """Everybody has his whole share again."""
        self.end()
        self._pool = Pool(self._turns_ns, floor=FLOOR_NS, headroom=self._headroom)
        self._shares: dict[int, Share] = {}

    def begin(self, process: int, container: int, size: int) -> bool:
        """Whether ``size`` bytes of a process may be parsed; it is its turn then, until another's or :meth:`end`."""
        self._bytes += size
        if process == self._process and self._bytes <= GRAIN_BYTES:
            return True
        self.end()
        if process in self._put_off and not self._called:
            return False
        share = self._shares.get(process)
        if share is None:
            share = self._shares[process] = self._pool.share_of(process, container)
        if (self._pool.free if self._to_all else share.left) <= 0:
            return False
        self._whose, self._process, self._bytes = share, process, size
        self._exchanges = len(self._output.exchanges)
        self._began_ns = self._stopwatch()
        return True

    def put_off(self, process: int, connection: int) -> None:
        """A connection waits for the :meth:`tick`: first, if it has just had a turn there."""
        waiting = self._put_off.setdefault(process, deque())
        if self._called:
            waiting.appendleft(connection)
        else:
            waiting.append(connection)

    def tick(self, parse: Callable[[int], bool]) -> None:
        """``parse`` each connection that waits, while there is time: what was left, and shares of the new.

        ``parse`` says whether that was all of it; else it was put off again, by what :meth:`begin` said.
        """
        self._call(parse, to_all=True)
        self._renew()
        self._call(parse, to_all=False)

    def has_put_off(self, process: int) -> bool:
        """Whether something of a process waits for the tick."""
        return process in self._put_off

    def _call(self, parse: Callable[[int], bool], *, to_all: bool) -> None:
        self._called, self._to_all = True, to_all
        for process in sorted(self._put_off, key=self._waiting):
            waiting = self._put_off[process]
            while waiting and parse(waiting.popleft()):
                pass
            if not waiting:
                del self._put_off[process]
        self.end()
        self._called = self._to_all = False

    def end(self) -> None:
        """Nobody's turn: what follows is no parsing."""
        if self._whose is not None:
            took_ns = self._stopwatch() - self._began_ns
            self._whose.charge(took_ns + EXCHANGE_NS * (len(self._output.exchanges) - self._exchanges))
            self._whose, self._process = None, -1
