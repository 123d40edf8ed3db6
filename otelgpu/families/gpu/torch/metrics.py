"""What frameworks' allocators hold of devices' memory → metrics. The names of these metrics are here and nowhere else.

In: levels, as they are read. Out: calls of :class:`~otelgpu.engine.metrics.Metrics`. Pure.

``gpu.cuda.memory.*`` says what the driver gave to the process; an allocator's ``reserved`` is its part of that, and
``allocated`` what tensors hold of its part. So they are not to be added up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from otelgpu.engine.metric import Instrument, Metric
from otelgpu.engine.metrics import Metrics
from otelgpu.engine.services import AllocatorLevel
from otelgpu.model.allocators import Levels, cuda_ordinal, device_name
from otelgpu.model.resource import Resource

SCOPE: Final = "otelgpu.torch"
DEVICE: Final = "torch.device"
"""A device as PyTorch writes it, numbered as the process sees them: ``cuda:0``."""


def _metric(name: str, unit: str, instrument: Instrument, description: str) -> Metric:
    return Metric(name=name, unit=unit, instrument=instrument, description=description)


ALLOCATED: Final = _metric(
    "torch.memory.allocated",
    "By",
    Instrument.UP_DOWN_COUNTER,
    "Memory that tensors hold, as PyTorch's allocator counts it: since the program began, rounded up to its blocks.",
)
RESERVED: Final = _metric(
    "torch.memory.reserved",
    "By",
    Instrument.UP_DOWN_COUNTER,
    "Memory that PyTorch's allocator has from the driver, as of its last allocation or free for a tensor.",
)
CACHED: Final = _metric(
    "torch.memory.cached",
    "By",
    Instrument.UP_DOWN_COUNTER,
    "Reserved less allocated: what is kept for later, or in pieces too small for what is asked for.",
)
ALLOCATED_PEAK: Final = _metric(
    "torch.memory.allocated.peak", "By", Instrument.GAUGE, "The most that tensors held while it was observed."
)
RESERVED_PEAK: Final = _metric(
    "torch.memory.reserved.peak", "By", Instrument.GAUGE, "The most that was reserved while it was observed."
)
ALLOCATIONS: Final = _metric("torch.memory.allocations", "By", Instrument.COUNTER, "Memory given to tensors.")
ALLOCATION_CALLS: Final = _metric(
    "torch.memory.allocation.calls", "{call}", Instrument.COUNTER, "Allocations for tensors."
)
FREED: Final = _metric("torch.memory.free.bytes", "By", Instrument.COUNTER, "Memory that tensors gave back.")
FREE_CALLS: Final = _metric(
    "torch.memory.free.calls", "{call}", Instrument.COUNTER, "Tensors' memory given back."
)
REFUSALS: Final = _metric(
    "torch.memory.allocation.failures",
    "{call}",
    Instrument.COUNTER,
    "Allocations for tensors that failed: out of memory.",
)

_STANDING: Final[Mapping[str, Metric]] = {
    "allocated": ALLOCATED,
    "reserved": RESERVED,
    "allocated_peak": ALLOCATED_PEAK,
    "reserved_peak": RESERVED_PEAK,
}
_GROWING: Final[Mapping[str, Metric]] = {
    "allocated_bytes": ALLOCATIONS,
    "allocations": ALLOCATION_CALLS,
    "freed_bytes": FREED,
    "frees": FREE_CALLS,
    "refusals": REFUSALS,
}
METRICS: Final = (*_STANDING.values(), CACHED, *_GROWING.values())
"""All of them; each has the one attribute :data:`DEVICE`."""


class TensorMetrics:
    """One session's."""

    def __init__(self, metrics: Metrics, resource_of: Callable[[int], Resource]) -> None:
        self._metrics, self._resource_of = metrics, resource_of
        self._reported: dict[
            tuple[int, int], dict[str, int]
        ] = {}  # by process and device: sums reported so far
        self._levels: dict[tuple[int, int], AllocatorLevel] = {}  # by process and ordinal

    def take(self, levels: Levels) -> None:
        """How things stand now."""
        names = levels.dtype.names or ()
        for row in levels.tolist():
            self._level(dict(zip(names, row, strict=True)))

    def level(self, tgid: int, ordinal: int) -> AllocatorLevel | None:
        """How a process's allocator on the device of an ordinal stands; None where nobody says so."""
        return self._levels.get((tgid, ordinal))

    def forget(self, tgid: int) -> None:
        """It has ended."""
        for place in [place for place in self._levels if place[0] == tgid]:
            del self._levels[place]
        for key in [key for key in self._reported if key[0] == tgid]:
            del self._reported[key]

    def _level(self, level: Mapping[str, int]) -> None:
        owner = self._resource_of(level["tgid"])
        labels = {DEVICE: device_name(level["device"])}
        # An allocator that keeps no totals has peaks of 0, whatever it gave.
        if level["reserved_peak"] or level["allocated_peak"]:
            for name, metric in _STANDING.items():
                self._metrics.set(metric, SCOPE, owner, labels, level[name])
            cached = max(level["reserved"] - level["allocated"], 0)
            self._metrics.set(CACHED, SCOPE, owner, labels, cached)
            if (ordinal := cuda_ordinal(level["device"])) is not None:
                stands = AllocatorLevel(level["reserved"], level["allocated"])
                self._levels[level["tgid"], ordinal] = stands
        reported = self._reported.setdefault((level["tgid"], level["device"]), dict.fromkeys(_GROWING, 0))
        for name, metric in _GROWING.items():
            grown = level[name] - reported[name]
            if grown > 0:
                self._metrics.add(metric, SCOPE, owner, labels, grown)
            reported[name] = level[name]
