"""What a family needs to find out in the observed processes while it is observed, beside its probes.

In: records as they are drained, processes as they map libraries and end. Out: inputs of their own (what maps of the
kernel hold), and probes that could not be placed before: where a provider's functions are is known only once a
process has opened a device, how a communicator is laid out only once a library's version is known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final, Protocol

from otelgpu.discover.probes import ProbePlacer
from otelgpu.kernel.loader import LoadedFamily
from otelgpu.model.inputs import Batch, Input

_EVERYTHING: Final = 100.0  # percent of a core: whoever allows that wants all posts and polls counted


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
        """A process has ended: what is left of it is in the collection that follows at once."""

    def close(self) -> None:
        """Take off what it put on; idempotent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchSettings:
    """What watchers are told of a session's configuration."""

    rdma_budget: float = 1.0  # percent of a core per observed process that probes of posts and polls may cost
    rdma_transfers: bool = False  # tell single work requests


def open_watcher(loaded: LoadedFamily, placer: ProbePlacer, settings: WatchSettings) -> Watcher | None:
    """The watcher of a family that was loaded; None for those that need none."""
    if loaded.family == "nccl":
        from otelgpu.discover.communicators import NcclLayouts  # as its family, seldom wanted

        return NcclLayouts(loaded, placer)
    if loaded.family == "verbs":
        from otelgpu.discover.verbs_providers import VerbsProviders

        return VerbsProviders(
            loaded,
            placer,
            budget=settings.rdma_budget if settings.rdma_budget < _EVERYTHING else inf,
            transfers=settings.rdma_transfers,
        )
    return None
