"""MPI in a session: communicators of calls are reported, and waits are passed on to who has steps. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from otelgpu.engine.facts import CommunicatorsSeen, StretchesSeen
from otelgpu.engine.services import Services
from otelgpu.families.mpi.decode import waits
from otelgpu.model.communicators import CommunicatorSeen
from otelgpu.model.inputs import Batch
from otelgpu.model.job_groups import FULL, UNIDENTIFIED, Called, JobGroups
from otelgpu.model.losses import Reasons

COUNTERS: Final = Reasons(
    "mpi",
    {
        UNIDENTIFIED: "a communicator of MPI whose identity is not known: its collectives are each reported by "
        "themselves",
        FULL: "a communicator of MPI beyond the bound, likewise",
    },
)
"""Reason → what one count means."""


class MpiHandler:
    """Calls are decoded elsewhere, and reported as all collectives are."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._groups = JobGroups("mpi", services.session.processes.known)

    @property
    def counters(self) -> Mapping[str, int]:
        """What could not be known, by reason."""
        return self._groups.counters

    def take(self, batch: Batch) -> None:
        """Calls."""
        seen = learn(self._groups, batch)
        if seen:
            self._services.emit(CommunicatorsSeen(seen))
        rows = waits(batch)
        if len(rows):
            self._services.emit(StretchesSeen(rows))

    def end_process(self, tgid: int, time_ns: int) -> None:
        """Its communicators are gone."""
        self._groups.forget_process(tgid)


def learn(groups: JobGroups, batch: Batch) -> list[CommunicatorSeen]:
    """The communicators that a batch of calls is the first to show, and those that were freed."""
    if batch.kind != "mpi_call":
        return []
    chosen = (batch.records["wait"] == 0) & (batch.records["transfer"] == 0)
    columns = (
        *(batch.heads[name] for name in ("tgid", "time_ns")),
        *(batch.records[name] for name in ("communicator", "rank", "ranks")),
        *(batch.records[name] == 1 for name in ("created", "freed")),
    )
    found = []
    for tgid, time_ns, address, rank, ranks, created, freed in zip(
        *(each[chosen].tolist() for each in columns), strict=True
    ):
        if freed:
            found.append(groups.end(tgid, address, time_ns))
        elif not groups.knows(tgid, address):
            call = Called(
                tgid=tgid, time_ns=time_ns, address=address, rank=rank, ranks=ranks, created=created
            )
            found.append(groups.learn(call))
    return [seen for seen in found if seen is not None]
