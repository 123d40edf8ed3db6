"""The rings that a collection drains, and until when all that was submitted has been collected.

In: loaded families. Out: their records, and that time. A probe's program may lose the processor while it writes its
record, and nothing behind that can be read before it has written it. Who believed that all until now is there would
report requests without their calls.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Final

from otelgpu.kernel.loader import LoadedFamily
from otelgpu.model.inputs import Batch, joined_batches

HELD_UP_NS: Final = 250_000_000
"""So long is it waited for: some turns of a processor that several want."""
_AGAIN_S: Final = 0.001


class Draining:
    """Those of one session, in the order in which they are drained. ``clock``: CLOCK_MONOTONIC, ns."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._first: list[LoadedFamily] = []
        self._others: list[LoadedFamily] = []
        self._joined: list[LoadedFamily] = []
        self._complete_ns = 0
        self.is_last = False
        """No collection follows: what is held up is waited for."""

    def __iter__(self) -> Iterator[LoadedFamily]:
        return chain(self._first, self._others)

    def add(self, loaded: LoadedFamily, *, first: bool, joined: bool = False) -> None:
        """One more; ``first``: before all that are not. ``joined``: its records of a kind are one batch."""
        (self._first if first else self._others).append(loaded)
        if joined:
            self._joined.append(loaded)

    def rest(self) -> bool:
        """Have the next record of any ring wake its reader, until :meth:`resume`; False, and nothing: one is there."""
        empty = [loaded.await_records() for loaded in self]
        if all(empty):
            return True
        self.resume()
        return False

    def resume(self) -> None:
        """Records are collected on a timer again."""
        for loaded in self:
            loaded.await_none()

    def drained(self) -> Iterator[Batch]:
        """What is in the rings, one after the other."""
        yield from chain.from_iterable(map(self._batches, self))
        until_ns = self._clock() + HELD_UP_NS
        while self.is_last and self._clock() < until_ns:
            held_up = [loaded for loaded in self if loaded.ring.held_up]
            if not held_up:
                return
            time.sleep(_AGAIN_S)
            yield from chain.from_iterable(map(self._batches, held_up))

    def _batches(self, loaded: LoadedFamily) -> Iterable[Batch]:
        """Of one: records of two lengths that alternate are many short batches, each of which has its cost."""
        if not any(loaded is each for each in self._joined):
            return loaded.drain()
        of_kind: dict[str, list[Batch]] = {}
        for batch in loaded.drain():
            of_kind.setdefault(batch.kind, []).append(batch)
        return map(joined_batches, of_kind.values())

    def complete_ns(self, now_ns: int) -> int:
        """What was submitted by then has been drained, of what was there at ``now_ns``, before :meth:`drained`."""
        if any(loaded.ring.held_up for loaded in self):
            now_ns = max(self._complete_ns, now_ns - HELD_UP_NS)
        self._complete_ns = now_ns
        return now_ns
