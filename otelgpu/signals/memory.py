"""The memory ledger → metrics: what each process holds, how much it held at most, which code asked for it.

In: :class:`~otelgpu.correlate.memory.MemoryLedger` at an export. Out: calls of
:class:`~otelgpu.signals.metrics.Metrics`. The names of these metrics are written here and nowhere else. Pure.

Device memory and pinned host memory are metrics of their own, so that the series of one metric add up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from otelgpu.correlate.memory import LEAK_WINDOWS, Account, MemoryLedger, ProcessMemory, Site
from otelgpu.families.base import DEVICE_MEMORY, HOST_MEMORY, Instrument, Metric, memory_name
from otelgpu.model.operations import DEVICE_UNKNOWN, Memory
from otelgpu.model.resource import Resource
from otelgpu.signals.metrics import Metrics

SCOPE: Final = "otelgpu.memory"
KIND: Final = "cuda.memory.kind"
DEVICE: Final = "cuda.device.index"
SITE: Final = "code.function.name"
OTHER: Final = "other"
"""Sites that have no series of their own."""

SITES_TOLD: Final = 20
"""Call sites of one process that have series of their own: those that hold most."""


def _metric(name: str, unit: str, instrument: Instrument, description: str) -> Metric:
    return Metric(name=name, unit=unit, instrument=instrument, description=description)


USAGE: Final = _metric(
    "gpu.cuda.memory.usage",
    "By",
    Instrument.UP_DOWN_COUNTER,
    "Device memory that the process holds, of what was allocated since it was observed.",
)
LIVE: Final = _metric(
    "gpu.cuda.memory.live.allocations",
    "{allocation}",
    Instrument.UP_DOWN_COUNTER,
    "Allocations of device memory that are not freed.",
)
PEAK: Final = _metric(
    "gpu.cuda.memory.peak", "By", Instrument.GAUGE, "The most device memory that the process held at a time."
)
HOST_USAGE: Final = _metric(
    "gpu.cuda.host.memory.usage",
    "By",
    Instrument.UP_DOWN_COUNTER,
    "Host memory that the process has pinned: allocated as such, or its own and registered.",
)
IMPORTED: Final = _metric(
    "gpu.cuda.memory.imported",
    "{allocation}",
    Instrument.UP_DOWN_COUNTER,
    "Memory of other processes that the process has opened; it is not in its usage.",
)
SITE_USAGE: Final = _metric(
    "gpu.cuda.memory.site.usage",
    "By",
    Instrument.UP_DOWN_COUNTER,
    f"Device memory by the function that allocated it: the {SITES_TOLD} that hold most, the rest is `{OTHER}`.",
)
LEAK: Final = _metric(
    "gpu.cuda.memory.leak.suspected",
    "By",
    Instrument.GAUGE,
    f"Device memory allocated by a function that allocated in each of the last {LEAK_WINDOWS} minutes or more "
    "and freed nothing in them. A cache that is being filled looks the same.",
)
FREED: Final = _metric(
    "gpu.cuda.memory.free.bytes",
    "By",
    Instrument.COUNTER,
    "Device memory freed whose allocation was seen.",
)
FAILURES: Final = _metric(
    "gpu.cuda.memory.allocation.failures", "{call}", Instrument.COUNTER, "Allocations that were refused."
)
REQUESTED: Final = _metric(
    "gpu.cuda.memory.requested",
    "By",
    Instrument.COUNTER,
    "Memory asked for in calls whose return is not probed: not known to be held, and not in any usage.",
)

METRICS: Final[Mapping[Metric, tuple[str, ...]]] = {
    USAGE: (KIND, DEVICE),
    LIVE: (KIND, DEVICE),
    PEAK: (KIND, DEVICE),
    HOST_USAGE: (KIND, DEVICE),
    IMPORTED: (DEVICE,),
    SITE_USAGE: (SITE,),
    LEAK: (SITE,),
    FREED: (),
    FAILURES: (KIND, DEVICE),
    REQUESTED: (KIND, DEVICE),
}
"""Each metric with the keys of its attributes."""

_MOST: Final = (1 << 63) - 1  # of an OTLP integer


class MemoryMetrics:
    """Tells a session's ledger.

    ``resource_of`` answers a tgid, ``site_name`` a tgid and a return address.
    """

    def __init__(
        self,
        ledger: MemoryLedger,
        resource_of: Callable[[int], Resource],
        site_name: Callable[[int, int], str],
    ) -> None:
        self._ledger = ledger
        self._resource_of = resource_of
        self._site_name = site_name
        self._owners: dict[int, Resource] = {}  # of the processes as they were told last
        self._ended: list[tuple[ProcessMemory, Resource]] = []  # not told yet, with what they were
        self._sites: dict[tuple[int, str], set[str]] = {}  # tgid, metric → sites that have a series
        self._sums: Counter[tuple[int, str, int, int]] = Counter()  # tgid, metric, device, kind → told so far

    def see_ended(self) -> None:
        """At each tick, after the ledger was settled: by the next export nobody may know what ended any more."""
        for process in self._ledger.take_ended():
            # A process that began another program ended as the one it was: its resource is the old one.
            owner = self._owners.pop(process.tgid, None) or self._resource_of(process.tgid)
            self._ended.append((process, owner))

    def forget(self, tgid: int) -> None:
        """Nothing more is told of a process, nor of what came of it after its end."""
        self._ledger.forget(tgid)
        self._owners.pop(tgid, None)
        if not any(process.tgid == tgid for process, _ in self._ended):
            self._forget(tgid)

    def publish(self, metrics: Metrics) -> None:
        """Tell how things stand: before each export, after the ledger was settled."""
        self.see_ended()
        for process, owner in self._ended:
            self._tell(metrics, process, owner)
            self._forget(process.tgid)
        self._ended.clear()
        for tgid, process in self._ledger.processes.items():
            owner = self._owners[tgid] = self._resource_of(tgid)
            self._tell(metrics, process, owner)

    def _tell(self, metrics: Metrics, process: ProcessMemory, owner: Resource) -> None:
        for account in process.accounts.values():
            self._account(metrics, process.tgid, account, owner)
        sites = [site for site in process.sites if site.account.memory in DEVICE_MEMORY]
        self._by_site(metrics, process.tgid, SITE_USAGE, ((s, s.live_bytes) for s in sites), owner)
        suspects = (site for site in sites if site.growing_windows >= LEAK_WINDOWS)
        self._by_site(metrics, process.tgid, LEAK, ((s, s.grown_bytes) for s in suspects), owner)

    def _account(self, metrics: Metrics, tgid: int, account: Account, owner: Resource) -> None:
        place = {} if account.device == DEVICE_UNKNOWN else {DEVICE: account.device}
        labels: dict[str, str | int] = {KIND: memory_name(account.memory), **place}
        levels: list[tuple[Metric, Mapping[str, str | int], int]] = []
        if account.memory in DEVICE_MEMORY:
            levels += [
                (USAGE, labels, account.live_bytes),
                (LIVE, labels, account.live_allocations),
                (PEAK, labels, account.peak_bytes),
            ]
            self._add(metrics, FREED, {}, tgid, account, account.freed_bytes, owner)
        elif account.memory in HOST_MEMORY:
            levels.append((HOST_USAGE, labels, account.live_bytes))
        elif account.memory == Memory.IMPORTED:
            levels.append((IMPORTED, place, account.live_allocations))
        for metric, at, value in levels:
            metrics.set(metric, SCOPE, owner, at, min(value, _MOST))
        self._add(metrics, FAILURES, labels, tgid, account, account.failures, owner)
        self._add(metrics, REQUESTED, labels, tgid, account, account.requested_bytes, owner)

    def _add(
        self,
        metrics: Metrics,
        metric: Metric,
        labels: Mapping[str, str | int],
        tgid: int,
        account: Account,
        total: int,
        owner: Resource,
    ) -> None:
        """What a sum grew by since it was told last."""
        key = (tgid, metric.name, account.device, account.memory)
        total = min(total, _MOST)
        if total > self._sums[key]:
            metrics.add(metric, SCOPE, owner, labels, total - self._sums[key])
            self._sums[key] = total

    def _by_site(
        self,
        metrics: Metrics,
        tgid: int,
        metric: Metric,
        held: Iterable[tuple[Site, int]],
        owner: Resource,
    ) -> None:
        """The functions that hold most, each summed up over its places; series of others are told no more."""
        sums: Counter[str] = Counter()
        for caller, size in _by_caller(held).most_common():
            name = self._site_name(tgid, caller) if caller else "unknown"
            sums[name if name in sums or len(sums) < SITES_TOLD else OTHER] += size
        told = self._sites.get((tgid, metric.name), set())
        for name in told - sums.keys():
            metrics.unset(metric, owner, {SITE: name})
        for name, size in sums.items():
            metrics.set(metric, SCOPE, owner, {SITE: name}, min(size, _MOST))
        self._sites[tgid, metric.name] = set(sums)

    def _forget(self, tgid: int) -> None:
        for key in [key for key in self._sums if key[0] == tgid]:
            del self._sums[key]
        for metric in (SITE_USAGE, LEAK):
            self._sites.pop((tgid, metric.name), None)


def _by_caller(held: Iterable[tuple[Site, int]]) -> Counter[int]:
    sums: Counter[int] = Counter()
    for site, size in held:
        if size:
            sums[site.caller] += size
    return sums
