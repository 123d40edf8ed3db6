"""What a family needs to find out in the observed processes while it is observed, beside its probes.

In: records as they are drained, processes as they map libraries and end. Out: inputs of their own (what maps of the
kernel hold), and probes that could not be placed before: where a provider's functions are is known only once a
process has opened a device, how a communicator is laid out only once a library's version is known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from otelgpu.discover.probes import ProbePlacer
from otelgpu.kernel.loader import LoadedFamily
from otelgpu.model.inputs import Batch, Input


class Watcher(Protocol):
    """One family's. Processes may vanish at any time: that is counted, never raised."""

    @property
    def counters(self) -> Mapping[str, int]:
        """Losses by reason, since the start."""

    def look(self, batch: Batch) -> None:
        """Each batch of the family, as soon as it is drained and before it is told to anybody."""

    def mapped(self, tgid: int) -> None:
        """A process has mapped a file that carries probes, or was found to have."""

    def collect(self, now_ns: int) -> Sequence[Input]:
        """At each collection, after the rings were drained: what goes before its tick."""

    def forget(self, tgid: int) -> None:
        """A process has ended."""

    def close(self) -> None:
        """Take off what it put on; idempotent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchSettings:
    """What watchers are told of a session's configuration."""

    rdma_budget: float = 1.0  # percent of a core per observed process that probes of posts and polls may cost
    rdma_transfers: bool = False  # tell single work requests


def open_watchers(
    loaded: Mapping[str, LoadedFamily], placer: ProbePlacer, settings: WatchSettings
) -> dict[str, Watcher]:
    """The watchers of the families that were loaded, by family."""
    found: dict[str, Watcher] = {}
    if "nccl" in loaded:
        from otelgpu.discover.communicators import NcclLayouts  # as its family, not always wanted

        found["nccl"] = NcclLayouts(loaded["nccl"], placer)
    if "verbs" in loaded:
        from otelgpu.discover.verbs_providers import VerbsProviders

        found["verbs"] = VerbsProviders(
            loaded["verbs"], placer, budget=settings.rdma_budget, transfers=settings.rdma_transfers
        )
    return found
