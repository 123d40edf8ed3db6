"""The groups of ranks that calls of gloo were made in (:mod:`otelgpu.model.job_groups`). Pure.

Sends and receives are of another object than collectives: of each kind the first group of all ranks has the identity.
"""

from __future__ import annotations

from typing import Final

from otelgpu.model.communicators import CommunicatorSeen
from otelgpu.model.inputs import Batch
from otelgpu.model.job_groups import FULL, UNIDENTIFIED, Called, JobGroups
from otelgpu.model.losses import Reasons

COUNTERS: Final = Reasons(
    "gloo",
    {
        UNIDENTIFIED: "a group of gloo's whose identity is not known: its collectives are each reported by "
        "themselves",
        FULL: "a group of gloo's beyond the bound, likewise",
    },
)
"""Reason → what one count means."""


def learn(groups: JobGroups, batch: Batch) -> list[CommunicatorSeen]:
    """The groups that a batch of calls is the first to show."""
    if batch.kind != "gloo_call":
        return []
    columns = (
        batch.heads["tgid"],
        batch.heads["time_ns"],
        *(batch.records[name] for name in ("context", "rank", "ranks")),
        batch.records["transfer"] == 1,
    )
    calls = (
        Called(tgid=tgid, time_ns=time_ns, address=address, rank=rank, ranks=ranks, transfer=transfer)
        for tgid, time_ns, address, rank, ranks, transfer in zip(
            *(each.tolist() for each in columns), strict=True
        )
        if not groups.knows(tgid, address)
    )
    return [seen for call in calls if (seen := groups.learn(call))]
