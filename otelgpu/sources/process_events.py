"""What the kernel reports of processes, in turns: an owner whose processes take long to look at waits for the next.

In: the ring of family ``process``. Out: its records, of each owner in their order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import numpy as np

from otelgpu.kernel.loader import LoadedFamily
from otelgpu.model.inputs import Records
from otelgpu.processes.maps import mapped_name
from otelgpu.processes.reader.accounts import Accounts, Owner, Owners, Turn

MAPPING: Final = "process_mapping"
TURN_S: Final = 0.25
"""For so long one owner's processes may keep all others waiting, and for one more that is under way."""
MOST_WAITING: Final = 4096
"""Records of one owner; what comes then is handled in its place, out of turn, and finds that there is no share left."""

Event = tuple[str, np.void]
"""(kind, record)"""


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
    """Those of one session. ``is_wanted``: whether a file is called like one that others wait for."""

    def __init__(self, process: LoadedFamily, shares: Shares, is_wanted: Callable[[str], bool]) -> None:
        self._process, self._shares = process, shares
        self._is_wanted = is_wanted
        self._waiting: dict[Owner, deque[Event]] = {}

    @property
    def are_waiting(self) -> bool:
        """Whether some are left for the next turn."""
        return bool(self._waiting)

    def take(self) -> Iterator[Event]:
        """What is there, without what has to wait; each is handled before the next is asked for."""
        self._shares.turn.begin()
        before, self._waiting = self._waiting, {}
        for events in before.values():
            yield from self._in_turn(events)
        for batch in self._process.drain():
            records = self._wanted_first(batch.records) if batch.kind == MAPPING else batch.records
            yield from self._in_turn((batch.kind, record) for record in records)

    def _in_turn(self, events: Iterable[Event]) -> Iterator[Event]:
        for event in events:
            owner = self._shares.owners.of(int(event[1]["head"]["tgid"]))
            waiting = self._waiting.get(owner)
            if waiting is None and not self._shares.turn.is_over(owner):
                yield event
            elif waiting is None:
                self._waiting[owner] = deque((event,))
            elif len(waiting) < MOST_WAITING:
                waiting.append(event)
            else:
                yield event

    def _wanted_first(self, mappings: Records) -> Iterable[np.void]:
        """Of what was mapped, the libraries that are known by name: looking at the others takes time."""
        wanted = [self._is_wanted(mapped_name(record)) for record in mappings]
        return [
            record
            for asked in (True, False)
            for record, it_is in zip(mappings, wanted, strict=True)
            if it_is is asked
        ]
