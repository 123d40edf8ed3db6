"""What the kernel reports of processes, in turns: an owner whose processes take long to look at waits for the next.

In: the ring of family ``process``. Out: its records, of each owner in their order. Those of a process whose number was
another's wait until that one has been collected.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Final, NamedTuple

import numpy as np

from otelgpu.kernel import clock
from otelgpu.kernel.loader import LoadedFamily, Single
from otelgpu.processes.maps import mapped_name
from otelgpu.processes.reader.accounts import Accounts, Owner, Owners, Turn

EXEC: Final = "process_exec"
FORK: Final = "process_fork"
EXIT: Final = "process_exit"
MAPPING: Final = "process_mapping"
TURN_S: Final = 0.1
"""For so long one owner's processes may keep all others waiting, and for one more that is under way."""
YOUNG_NS: Final = 1_000_000_000
"""For so long a process that has done nothing of concern is left alone: it may end as quietly."""
MOST_YOUNG: Final = 1024
"""Such processes; what more there are is looked at."""
_LOOKS: Final = 2
"""At the ring: who ends just now is not quiet any more, and its end is there when it is looked at again."""
MOST_WAITING: Final = 4096
"""Records of one owner; what comes then is handled in its place, out of turn, and finds that there is no share left."""


class Event(NamedTuple):
    """What a record says, and of whom."""

    kind: str
    tgid: int
    time_ns: int
    record: np.void


class Shares:
    """Whose processes are looked at now. ``accounts``: what each owner has left."""

    def __init__(self, accounts: Accounts) -> None:
        self.owners, self.turn = Owners(), Turn(TURN_S)
        self._accounts = accounts

    def look(self, tgid: int, look: Callable[[], None]) -> bool:
        """Look at a process at its owner's expense; False: nothing is left of that's turn, or at all."""
        owner = self.owners.of(tgid)
        if self.turn.is_over(owner) or self._accounts.of(owner).is_spent():
            return False
        with self.turn.kept(owner), self._accounts.charged(owner):
            look()
        return True


class ProcessEvents:
    """Those of one session.

    ``is_wanted``: whether a file is called like one that others wait for. ``must_wait``: whether an event, of which
    it is given the kind, the process and the time, is for after the next collection. ``is_quiet``: whether a process
    has done nothing of concern until now.
    """

    def __init__(
        self,
        process: LoadedFamily,
        shares: Shares,
        is_wanted: Callable[[str], bool],
        must_wait: Callable[[str, int, int], bool],
        is_quiet: Callable[[int], bool],
    ) -> None:
        self._process, self._shares = process, shares
        self._is_wanted, self._must_wait, self._is_quiet = is_wanted, must_wait, is_quiet
        self._of_young: list[Single] = []  # quiet processes, which may end so
        self._waiting: dict[Owner, deque[Event]] = {}
        self._ends: dict[int, int] = {}  # of processes of which there are events, the latest
        self._successors: dict[int, list[Event]] = {}  # of processes whose numbers' former owners come first

    @property
    def are_waiting(self) -> bool:
        """Whether some are left for the next turn, or wait for a collection."""
        return bool(self._waiting or self._successors)

    def take(self) -> Iterator[Event]:
        """What is there, without what has to wait; each is handled before the next is asked for."""
        self._shares.turn.begin()
        if not (self._waiting or self._successors):
            self._ends.clear()
        before, self._waiting = self._waiting, {}
        successors, self._successors = self._successors, {}
        for events in (*before.values(), *successors.values()):
            yield from self._in_turn(events)
        yield from self._in_turn(self._drained())

    def is_anothers(self, tgid: int, time_ns: int) -> bool:
        """Whether who has a number now is not who had it at the time of an event."""
        return time_ns <= self._ends.get(tgid, -1) and os.path.exists(f"/proc/{tgid}")

    def _in_turn(self, events: Iterable[Event]) -> Iterator[Event]:
        for event in events:
            tgid = event.tgid
            if tgid in self._successors or self._must_wait(event.kind, tgid, event.time_ns):
                self._successors.setdefault(tgid, []).append(event)
                continue
            owner = self._shares.owners.of(tgid)
            waiting = self._waiting.get(owner)
            if waiting is None and not self._shares.turn.is_over(owner):
                yield event
            elif waiting is None:
                self._waiting[owner] = deque((event,))
            elif len(waiting) < MOST_WAITING:
                waiting.append(event)
            else:
                yield event

    def _drained(self) -> list[Event]:
        """In the order of their times; first those of processes that have mapped a library that is known by name.

        To look at the others takes time. Of those that have begun and ended, and did nothing that concerns anybody,
        there are none; nor yet of those that have begun just now, and did nothing of the kind so far.
        """
        found, self._of_young = self._of_young, []
        first: set[int] = set()
        begun: dict[int, int | None] = {
            single.tgid: single.time_ns for single in found if single.kind == FORK
        }
        over: set[int] = set()
        young: set[int] = set()
        for _ in range(_LOOKS):
            found += self._judged(begun, over)
            recent = self._recent(begun)
            young = set(islice(filter(self._is_quiet, recent), MOST_YOUNG))
            if len(young) == len(recent):
                break
        if young:
            self._of_young = [single for single in found if single.tgid in young]
        found = [single for single in found if single.tgid not in over and single.tgid not in young]
        for single in found:
            if single.kind == MAPPING and self._is_wanted(mapped_name(single.record)):
                first.add(single.tgid)
        found.sort(key=lambda each: (each.tgid not in first, each.time_ns + each.duration_ns))
        return [Event(each.kind, each.tgid, each.time_ns, each.record) for each in found]

    def _judged(self, begun: dict[int, int | None], over: set[int]) -> Iterator[Single]:
        """What is in the ring. To ``over`` come those that have begun and ended, quietly.

        To ``begun`` those that begin, and when; None: it has ended, or several had its number.
        """
        for single in self._process.drain_each():
            kind, tgid = single.kind, single.tgid
            if kind == FORK:
                begun[tgid] = None if tgid in begun else single.time_ns
                over.discard(tgid)
            elif kind == EXIT:
                self._ends[tgid] = single.time_ns
                if begun.get(tgid) is not None and single.record["quiet"]:
                    over.add(tgid)
                begun[tgid] = None
            yield single

    def _recent(self, begun: Mapping[int, int | None]) -> list[int]:
        """Those of who has begun, and has not ended, that did so just now."""
        since_ns = clock.monotonic_ns() - YOUNG_NS if begun else 0
        return [tgid for tgid, began_ns in begun.items() if began_ns is not None and began_ns > since_ns]
