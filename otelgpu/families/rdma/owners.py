"""Which communicator a queue pair was made for. Pure.

A process with one communicator made its queue pairs for that one. Of several, the one counts that was being made
when the queue pair was; where that is not clear, none does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from msgspec import Struct

from otelgpu.families.rdma.queue_pairs import QueuePair
from otelgpu.model.communicators import CommunicatorSeen

COMMUNICATORS: Final = 4096
"""Kept of one process; a program that makes more has its oldest forgotten."""


class OwnerSource(StrEnum):
    """How the owner is known: ``rdma.communicator.source``."""

    ONLY = "only_communicator"  # the process has had no other
    CREATION = "creation"  # it was being made when the queue pair was


class Owner(NamedTuple):
    """A communicator's hash, and how it is known to own a queue pair."""

    hash: int
    source: OwnerSource


class _Communicator(Struct):
    address: int
    hash: int
    made_ns: int = 0  # when the call that made it began; 0: before the agent looked
    made_by_ns: int = 0  # when that call returned
    ended_ns: int = 0


class Owners:
    """The communicators of each process. ``counters`` grow."""

    def __init__(self) -> None:
        self._of: dict[int, list[_Communicator]] = {}
        self.counters: Counter[str] = Counter()

    def learn(self, seen: Sequence[CommunicatorSeen]) -> None:
        """What was learnt of communicators, in its order."""
        for each in seen:
            self._learn(each)

    def _learn(self, seen: CommunicatorSeen) -> None:
        known = self._of.setdefault(seen.tgid, [])
        same = next((one for one in known if one.address == seen.address and not one.ended_ns), None)
        made = seen.duration_ns > 0  # in this very call: ``created`` stays true
        if same is not None and made and same.made_ns and seen.time_ns > same.made_by_ns:
            same.ended_ns = seen.time_ns  # its address is another's
            same = None
        if same is None:
            if seen.ended:
                return
            same = _Communicator(seen.address, seen.hash)
            known.append(same)
            if len(known) > COMMUNICATORS:
                del known[0]
                self.counters["communicators_beyond_memory"] += 1
        same.hash = seen.hash or same.hash
        if made and not same.made_ns:
            same.made_ns, same.made_by_ns = seen.time_ns - seen.duration_ns, seen.time_ns
        if seen.ended:
            same.ended_ns = seen.time_ns

    def owner(self, queue_pair: QueuePair) -> Owner | None:
        """The communicator that a queue pair was made for; None: there is none, or it is not known which."""
        known = [each for each in self._of.get(queue_pair.tgid, ()) if each.hash]
        hashes = {each.hash for each in known}
        if len(hashes) == 1:
            return Owner(known[0].hash, OwnerSource.ONLY)
        if queue_pair.late:
            return None
        under_way = [each for each in known if each.made_ns <= queue_pair.made_ns <= each.made_by_ns]
        return Owner(under_way[0].hash, OwnerSource.CREATION) if len(under_way) == 1 else None

    def forget_process(self, tgid: int) -> None:
        """A process ended."""
        self._of.pop(tgid, None)
