"""What the memory that calls allocate is called: one table of names for each vendor's family.

A family whose calls make memory has ``memory=memory_names("cuda")`` in its signals; what its processes hold is
then reported as ``gpu.cuda.memory.*``. So another vendor's memory is never reported under this one's names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from otelgpu.engine.metric import Instrument, Metric

SITE: Final = "code.function.name"
OTHER: Final = "other"
"""Call sites that have no series of their own."""

SITES_REPORTED: Final = 20
"""Call sites of one process that have series of their own: those that hold most."""

LEAK_WINDOWS: Final = 5
"""A site is suspected when it allocated in each of so many minutes in a row and freed nothing in them."""


class MemoryNames(Struct, frozen=True, kw_only=True):
    """Metrics, and two keys of attributes: ``kind`` and ``device``.

    Device memory and pinned host memory are metrics of their own, so that the series of one metric add up.
    """

    kind: str
    device: str
    usage: Metric
    live: Metric
    peak: Metric
    host_usage: Metric
    imported: Metric
    site_usage: Metric
    leak: Metric
    freed: Metric
    failures: Metric
    requested: Metric

    @property
    def metrics(self) -> Mapping[Metric, tuple[str, ...]]:
        """Each metric with the keys of its attributes."""
        return {
            self.usage: (self.kind, self.device),
            self.live: (self.kind, self.device),
            self.peak: (self.kind, self.device),
            self.host_usage: (self.kind, self.device),
            self.imported: (self.device,),
            self.site_usage: (SITE,),
            self.leak: (SITE,),
            self.freed: (),
            self.failures: (self.kind, self.device),
            self.requested: (self.kind, self.device),
        }


def memory_names(vendor: str) -> MemoryNames:
    """The names of one vendor's API: ``gpu.hip.memory.*`` and ``hip.memory.kind`` of ``hip``."""

    def metric(name: str, unit: str, instrument: Instrument, description: str) -> Metric:
        return Metric(name=f"gpu.{vendor}.{name}", unit=unit, instrument=instrument, description=description)

    level = Instrument.UP_DOWN_COUNTER
    return MemoryNames(
        kind=f"{vendor}.memory.kind",
        device=f"{vendor}.device.index",
        usage=metric(
            "memory.usage",
            "By",
            level,
            "Device memory that the process holds, of what was allocated since it was observed.",
        ),
        live=metric(
            "memory.live.allocations",
            "{allocation}",
            level,
            "Allocations of device memory that are not freed.",
        ),
        peak=metric(
            "memory.peak",
            "By",
            Instrument.GAUGE,
            "The most device memory that the process held at a time.",
        ),
        host_usage=metric(
            "host.memory.usage",
            "By",
            level,
            "Host memory that the process has pinned: allocated as such, or its own and registered.",
        ),
        imported=metric(
            "memory.imported",
            "{allocation}",
            level,
            "Memory of other processes that the process has opened; it is not in its usage.",
        ),
        site_usage=metric(
            "memory.site.usage",
            "By",
            level,
            f"Device memory by the function that allocated it: the {SITES_REPORTED} that hold most, the rest is "
            f"`{OTHER}`.",
        ),
        leak=metric(
            "memory.leak.suspected",
            "By",
            Instrument.GAUGE,
            f"Device memory allocated by a function that allocated in each of the last {LEAK_WINDOWS} minutes or "
            "more and freed nothing in them. A cache that is being filled looks the same.",
        ),
        freed=metric(
            "memory.free.bytes",
            "By",
            Instrument.COUNTER,
            "Device memory freed whose allocation was seen.",
        ),
        failures=metric(
            "memory.allocation.failures", "{call}", Instrument.COUNTER, "Allocations that were refused."
        ),
        requested=metric(
            "memory.requested",
            "By",
            Instrument.COUNTER,
            "Memory asked for in calls whose return is not probed: not known to be held, and not in any usage.",
        ),
    )
