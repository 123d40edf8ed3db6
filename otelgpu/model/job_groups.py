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
        self._known: dict[tuple[int, int], tuple[int, bool]] = {}  # process and address → hash, of transfers
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
        if not self._has_identity(call.tgid, call.transfer):
            identity = identity_of(self._library, owner, call.rank, call.ranks)
        self._counts[UNIDENTIFIED] += not identity
        self._known[key] = identity, call.transfer
        return CommunicatorSeen(
            tgid=call.tgid,
            time_ns=call.time_ns,
            address=call.address,
            hash=identity,
            rank=call.rank,
            ranks=call.ranks,
            created=call.created,
        )

    def _has_identity(self, tgid: int, transfer: bool) -> bool:
        known = self._known.items()
        return any(identity for (of, _), (identity, kind) in known if of == tgid and kind == transfer)

    def forget_process(self, tgid: int) -> None:
        """All of a process."""
        self._known = {key: identity for key, identity in self._known.items() if key[0] != tgid}


def identity_of(library: str, owner: Resource, rank: int, ranks: int) -> int:
    """Of the group of all ranks of the job; 0 of every other, and where the launcher names no job."""
    job = owner.get(JOB_ID)
    if not job or owner.get(JOB_RANK) != rank or owner.get(JOB_SIZE) != ranks:
        return 0
    from hashlib import sha256  # loads OpenSSL: of those that have such groups

    return int.from_bytes(sha256(f"{library} {job} {ranks}".encode()).digest()[:8], "big") or 1
