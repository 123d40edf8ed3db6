"""Which group of ranks a call of gloo was made in: its identity, the same on all ranks. Pure.

gloo gives its groups no name. The one of all ranks of a job is known all the same: its size and the process's rank in
it are what the launcher says of the process, and the job has an id that all ranks share (``otelgpu.job.*``). Of such
groups of a process only the first has an identity, for nothing distinguishes a second on all hosts alike; others have
none, and their calls are reported each by itself. Sends and receives are of another object than collectives: of each
kind the first one has it.

Example: rank 3 of the 8 of job ``17`` calls in a group of 8 as rank 3: the hash of (``17``, 8). Its call in a group of
2, as rank 1: 0, not known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from otelgpu.model.communicators import CommunicatorSeen
from otelgpu.model.inputs import Batch
from otelgpu.model.job import JOB_ID, JOB_RANK, JOB_SIZE
from otelgpu.model.losses import Reasons
from otelgpu.model.resource import Resource

GROUPS: Final = 4096
"""Groups of all processes that are known at a time."""

COUNTERS: Final = Reasons(
    "gloo",
    {
        "group_unidentified": "a group of gloo's whose identity is not known: its collectives are each reported by "
        "themselves",
        "groups_full": "a group of gloo's beyond the bound, likewise",
    },
)
"""Reason → what one count means."""


class Groups:
    """One session's."""

    def __init__(self, resource_of: Callable[[int], Resource | None]) -> None:
        """``resource_of``: what a process is; None as long as nobody has looked at it."""
        self._resource_of = resource_of
        self._known: dict[tuple[int, int], tuple[int, bool]] = {}  # process and address → hash, of transfers
        self._counts = dict.fromkeys(COUNTERS, 0)

    @property
    def counters(self) -> Mapping[str, int]:
        """What could not be known, by reason."""
        return self._counts

    def learn(self, batch: Batch) -> list[CommunicatorSeen]:
        """The groups that a batch of calls is the first to show."""
        if batch.kind != "gloo_call":
            return []
        found = []
        columns = (
            batch.heads["tgid"],
            batch.heads["time_ns"],
            *(batch.records[name] for name in ("context", "rank", "ranks")),
            batch.records["transfer"] == 1,
        )
        for tgid, time_ns, address, rank, ranks, transfer in zip(
            *(each.tolist() for each in columns), strict=True
        ):
            if (tgid, address) in self._known or rank < 0:
                continue
            owner = self._resource_of(tgid)
            if owner is None:
                continue
            if len(self._known) >= GROUPS:
                self._counts["groups_full"] += 1
                continue
            identity = 0 if self._has_identity(tgid, transfer) else identity_of(owner, rank, ranks)
            self._counts["group_unidentified"] += not identity
            self._known[tgid, address] = identity, transfer
            found.append(
                CommunicatorSeen(
                    tgid=tgid, time_ns=time_ns, address=address, hash=identity, rank=rank, ranks=ranks
                )
            )
        return found

    def _has_identity(self, tgid: int, transfer: bool) -> bool:
        known = self._known.items()
        return any(identity for (of, _), (identity, kind) in known if of == tgid and kind == transfer)

    def forget_process(self, tgid: int) -> None:
        """All of a process."""
        self._known = {key: identity for key, identity in self._known.items() if key[0] != tgid}


def identity_of(owner: Resource, rank: int, ranks: int) -> int:
    """Of the group of all ranks of the job; 0 of every other, and where the launcher names no job."""
    job = owner.get(JOB_ID)
    if not job or owner.get(JOB_RANK) != rank or owner.get(JOB_SIZE) != ranks:
        return 0
    from hashlib import sha256  # loads OpenSSL: of those that have gloo

    return int.from_bytes(sha256(f"gloo {job} {ranks}".encode()).digest()[:8], "big") or 1
