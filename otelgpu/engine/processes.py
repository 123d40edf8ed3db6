"""Which resource each process is: while it runs, and for a while after its end. Pure.

In: descriptions and ends of processes. Out: the resource of a tgid; the resources that have departed, which are
reported once more and then no more.

Example: process 7 execs at 1 s, so that it is described anew: what it was departs at 16 s. It ends at 20 s: what
it is departs at 35 s, and 7 is forgotten, unless the number was given to another process meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

from otelgpu.model.inputs import ProcessGone, ProcessSeen
from otelgpu.model.process_numbers import process_id
from otelgpu.model.resource import AttributeValue, Resource, of_machine, unnamed

GENERATIONS: Final = 16
"""How far back a process's ancestors are looked for."""

LINGER_NS: Final = 15_000_000_000
"""How long a process that ended is still known: its last window is reported in this time."""

MADE_UP: Final = 1024
"""Processes that nobody looked at and that are known all the same: what came of them later than that has no end."""


class Processes:
    """The processes of one session. ``own``: the resource of the program that looks at them."""

    def __init__(self, own: Resource) -> None:
        self._machine = of_machine(dict(own.attributes))
        self._resources: dict[int, Resource] = {}
        self._made_up: dict[int, None] = {}  # tgids, the oldest first
        self._leaving: deque[tuple[int, int, Resource | None]] = (
            deque()
        )  # until when, tgid, resource if known
        self._departed: set[Resource] = set()
        self._parents: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._resources)

    def resource(self, tgid: int) -> Resource:
        """What a process is; made up if it ended before anyone could look at it."""
        known = self._resources.get(tgid)
        if known is None:
            known = self._resources[tgid] = unnamed(process_id(tgid), self._machine)
            self._made_up[tgid] = None
            if len(self._made_up) > MADE_UP:
                oldest = next(iter(self._made_up))
                del self._made_up[oldest]
                self._departed.add(self._resources.pop(oldest))
        return known

    def known(self, tgid: int) -> Resource | None:
        """What a process is, if somebody looked at it."""
        return self._resources.get(tgid)

    def having(self, key: str) -> Iterator[tuple[int, AttributeValue]]:
        """All processes that have an attribute, by tgid, and its value."""
        for tgid, resource in self._resources.items():
            value = resource.get(key)
            if value is not None:
                yield tgid, value

    def lineage(self, tgid: int) -> Iterator[int]:
        """A process and those that it comes from, nearest first, as far as they are known."""
        for _ in range(GENERATIONS):
            if not tgid:
                return
            yield tgid
            tgid = self._parents.get(tgid, 0)

    def see(self, seen: ProcessSeen) -> bool:
        """A process is described: whether it was something else before.

        Of one that is the same program the poorer description departs with the process, not before.
        """
        self._parents[seen.tgid] = seen.parent
        before = self._resources.get(seen.tgid)
        changed = before is not None and before != seen.resource
        self._resources[seen.tgid] = seen.resource
        self._made_up.pop(seen.tgid, None)
        if before is not None and changed and seen.same_program:
            known_now = {(seen.tgid, before): seen.resource}  # it may have ended meanwhile
            self._leaving = deque(
                (until, tgid, known_now.get((tgid, owner), owner) if owner else None)
                for until, tgid, owner in self._leaving
            )
            return False
        if before is not None and changed:
            self._leaving.append((seen.time_ns + LINGER_NS, seen.tgid, before))
        return changed

    def end(self, gone: ProcessGone) -> None:
        """A process ended."""
        self._leaving.append((gone.time_ns + LINGER_NS, gone.tgid, self._resources.get(gone.tgid)))

    def expire(self, now_ns: int) -> list[int]:
        """Forget those whose time is over, and say which."""
        forgotten: list[int] = []
        while self._leaving and self._leaving[0][0] <= now_ns:
            _, tgid, owner = self._leaving.popleft()
            if owner is None and tgid in self._made_up:  # since its end
                owner = self._resources[tgid]
            if owner is not None:
                self._departed.add(owner)
            if self._resources.get(tgid) == owner:  # else its number was given out again
                self._resources.pop(tgid, None)
                self._parents.pop(tgid, None)
                self._made_up.pop(tgid, None)
                forgotten.append(tgid)
        return forgotten

    def take_departed(self) -> set[Resource]:
        """What departed since the last call."""
        departed, self._departed = self._departed, set()
        return departed
