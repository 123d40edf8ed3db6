"""The memory ledger → metrics: what each process holds, how much it held at most, which code asked for it.

In: :class:`~otelgpu.families.gpu.memory.ledger.MemoryLedger` at an export. Out: calls of
:class:`~otelgpu.engine.metrics.Metrics`, under the names that the family has whose calls made the memory. Pure.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Final

from otelgpu.engine.memory_names import LEAK_WINDOWS, OTHER, SITE, SITES_REPORTED, MemoryNames
from otelgpu.engine.metric import Metric
from otelgpu.engine.metrics import Metrics
from otelgpu.families.gpu.memory.ledger import Account, MemoryLedger, ProcessMemory, Site
from otelgpu.model.operations import DEVICE_MEMORY, DEVICE_UNKNOWN, HOST_MEMORY, Memory, memory_name
from otelgpu.model.resource import Resource

SCOPE: Final = "otelgpu.memory"

_MOST: Final = (1 << 63) - 1  # of an OTLP integer


class MemoryMetrics:
    """Reports a session's ledger.

    ``names``: of each family by its position in the session; nothing is reported of a family without.
    ``resource_of`` answers a tgid, ``site_name`` a tgid and a return address.
    """

    def __init__(
        self,
        names: Sequence[MemoryNames | None],
        ledger: MemoryLedger,
        resource_of: Callable[[int], Resource],
        site_name: Callable[[int, int], str],
    ) -> None:
        self._names = dict(enumerate(names))
        self._ledger = ledger
        self._resource_of = resource_of
        self._site_name = site_name
        self._owners: dict[int, Resource] = {}  # of the processes as they were reported last
        # By tgid those not reported yet, with what they were.
        self._ended: defaultdict[int, list[tuple[ProcessMemory, Resource]]] = defaultdict(list)
        self._sites: dict[tuple[int, str], set[str]] = {}  # tgid, metric → sites that have a series
        self._sums: Counter[tuple[int, str, int, int]] = (
            Counter()
        )  # tgid, metric, device, kind → reported so far

    def see_ended(self) -> None:
        """At each tick, after the ledger was settled: by the next export nobody may know what ended any more."""
        for process in self._ledger.take_ended():
            # A process that began another program ended as the one it was: its resource is the old one.
            owner = self._owners.pop(process.tgid, None) or self._resource_of(process.tgid)
            self._ended[process.tgid].append((process, owner))

    def forget(self, tgid: int) -> None:
        """Nothing more is reported of a process, nor of what came of it after its end."""
        self._ledger.forget(tgid)
        self._owners.pop(tgid, None)
        if tgid not in self._ended:
            self._forget(tgid)

    def publish(self, metrics: Metrics) -> None:
        """Report how things stand: before each export, after the ledger was settled."""
        self.see_ended()
        for process, owner in chain.from_iterable(self._ended.values()):
            self._report(metrics, process, owner)
            self._forget(process.tgid)
        self._ended.clear()
        for tgid, process in self._ledger.processes.items():
            owner = self._owners[tgid] = self._resource_of(tgid)
            self._report(metrics, process, owner)

    def _report(self, metrics: Metrics, process: ProcessMemory, owner: Resource) -> None:
        for account in process.accounts.values():
            if names := self._names.get(account.family):
                self._account(metrics, names, process.tgid, account, owner)
        for family in dict.fromkeys(account.family for account in process.accounts.values()):
            if names := self._names.get(family):
                sites = [
                    site
                    for site in process.sites
                    if site.account.family == family and site.account.memory in DEVICE_MEMORY
                ]
                self._by_site(
                    metrics, process.tgid, names.site_usage, ((s, s.live_bytes) for s in sites), owner
                )
                suspects = (site for site in sites if site.growing_windows >= LEAK_WINDOWS)
                self._by_site(
                    metrics, process.tgid, names.leak, ((s, s.grown_bytes) for s in suspects), owner
                )

    def _account(
        self, metrics: Metrics, names: MemoryNames, tgid: int, account: Account, owner: Resource
    ) -> None:
        place = {} if account.device == DEVICE_UNKNOWN else {names.device: account.device}
        labels: dict[str, str | int] = {names.kind: memory_name(account.memory), **place}
        levels: list[tuple[Metric, Mapping[str, str | int], int]] = []
        if account.memory in DEVICE_MEMORY:
            levels += [
                (names.usage, labels, account.live_bytes),
                (names.live, labels, account.live_allocations),
                (names.peak, labels, account.peak_bytes),
            ]
            self._add(metrics, names.freed, {}, tgid, account, account.freed_bytes, owner)
        elif account.memory in HOST_MEMORY:
            levels.append((names.host_usage, labels, account.live_bytes))
        elif account.memory == Memory.IMPORTED:
            levels.append((names.imported, place, account.live_allocations))
        for metric, at, value in levels:
            metrics.set(metric, SCOPE, owner, at, min(value, _MOST))
        self._add(metrics, names.failures, labels, tgid, account, account.failures, owner)
        self._add(metrics, names.requested, labels, tgid, account, account.requested_bytes, owner)

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
        """What a sum grew by since it was reported last."""
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
        """The functions that hold most, each summed up over its places; series of others are reported no more."""
        sums: Counter[str] = Counter()
        for caller, size in _by_caller(held).most_common():
            name = self._site_name(tgid, caller) if caller else "unknown"
            sums[name if name in sums or len(sums) < SITES_REPORTED else OTHER] += size
        reported = self._sites.get((tgid, metric.name), set())
        for name in reported - sums.keys():
            metrics.unset(metric, owner, {SITE: name})
        for name, size in sums.items():
            metrics.set(metric, SCOPE, owner, {SITE: name}, min(size, _MOST))
        self._sites[tgid, metric.name] = set(sums)

    def _forget(self, tgid: int) -> None:
        for key in [key for key in self._sums if key[0] == tgid]:
            del self._sums[key]
        for key_of_sites in [key for key in self._sites if key[0] == tgid]:
            del self._sites[key_of_sites]


def _by_caller(held: Iterable[tuple[Site, int]]) -> Counter[int]:
    sums: Counter[int] = Counter()
    for site, size in held:
        if size:
            sums[site.caller] += size
    return sums
