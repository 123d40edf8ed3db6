"""Which group of ranks a call was made in, where the library names none: an identity, the same on all ranks. Pure.

The group of all ranks of a job is known all the same: its size and the process's rank in it are what the launcher says
of the process, and the job has an id that all ranks share (``otelgpu.job.*``). Of such groups of a process only the
first has an identity, for nothing distinguishes a second on all hosts alike; others have none, and their calls are
reported each by itself.

Example: rank 3 of the 8 of job ``17`` calls in a group of 8 as rank 3: the hash of (``gloo``, ``17``, 8). Its call in a
group of 2, as rank 1: 0, not known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Struct

from otelgpu.model.communicators import CommunicatorSeen
from otelgpu.model.job import JOB_ID, JOB_RANK, JOB_SIZE
from otelgpu.model.resource import Resource

GROUPS: Final = 4096
"""Groups of all processes that are known at a time."""

UNIDENTIFIED: Final = "group_unidentified"
FULL: Final = "groups_full"


class Called(Struct, frozen=True, kw_only=True):
    """A call in a group. ``transfer``: a send or receive, where these have a group of another address.

    ``created``: every call in the group was seen.
    """

    tgid: int
    time_ns: int
    address: int
    rank: int
    ranks: int
    transfer: bool = False
    created: bool = False


class JobGroups:
    """One session's, of one library. ``counters``: what could not be known, by reason."""

    def __init__(self, library: str, resource_of: Callable[[int], Resource | None]) -> None:
        """``resource_of``: what a process is; None as long as nobody has looked at it."""
        self._library, self._resource_of = library, resource_of
        self._known: set[tuple[int, int]] = set()  # process and address
        self._identified: set[tuple[int, bool]] = set()  # process, of transfers
        self._counts = dict.fromkeys((UNIDENTIFIED, FULL), 0)

    @property
    def counters(self) -> Mapping[str, int]:
        """Groups without an identity, and beyond the bound."""
        return self._counts

    def knows(self, tgid: int, address: int) -> bool:
        """Whether the group was reported."""
        return (tgid, address) in self._known

    def learn(self, call: Called) -> CommunicatorSeen | None:
        """The group of a call, where that is the first to show it."""
        key = call.tgid, call.address
        if key in self._known or call.rank < 0:
            return None
        owner = self._resource_of(call.tgid)
        if owner is None:
            return None
        if len(self._known) >= GROUPS:
            self._counts[FULL] += 1
            return None
        identity = 0
        if (call.tgid, call.transfer) not in self._identified:
            identity = identity_of(self._library, owner, call.rank, call.ranks)
        if identity:
            self._identified.add((call.tgid, call.transfer))
        self._counts[UNIDENTIFIED] += not identity
        self._known.add(key)
        return CommunicatorSeen(
            tgid=call.tgid,
            time_ns=call.time_ns,
            address=call.address,
            hash=identity,
            rank=call.rank,
            ranks=call.ranks,
            created=call.created,
        )

    def end(self, tgid: int, address: int, time_ns: int) -> CommunicatorSeen | None:
        """Its address may become another's, which does not have its identity; None: it was not reported."""
        if not self.knows(tgid, address):
            return None
        self._known.discard((tgid, address))
        return CommunicatorSeen(
            tgid=tgid, time_ns=time_ns, address=address, hash=0, rank=-1, ranks=-1, ended=True
        )

    def forget_process(self, tgid: int) -> None:
        """All of a process."""
        self._known = {key for key in self._known if key[0] != tgid}
        self._identified = {key for key in self._identified if key[0] != tgid}


def identity_of(library: str, owner: Resource, rank: int, ranks: int) -> int:
    """Of the group of all ranks of the job; 0 of every other, and where the launcher names no job."""
    job = owner.get(JOB_ID)
    if not job or owner.get(JOB_RANK) != rank or owner.get(JOB_SIZE) != ranks:
        return 0
    from hashlib import sha256  # loads OpenSSL: of those that have such groups

    return int.from_bytes(sha256(f"{library} {job} {ranks}".encode()).digest()[:8], "big") or 1
