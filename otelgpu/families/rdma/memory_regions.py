"""Memory that is registered for RDMA, and so pinned: bytes live by process, device and whose memory it is. Pure.

Regions of before the agent looked are not known: when they go, that is counted and changes no sum.
"""

from __future__ import annotations

from collections import Counter
from typing import Final, NamedTuple

from otelgpu.families.rdma.facts import RegionChanged

REGIONS: Final = 1_000_000
"""Regions that are known at a time, of all processes: some 200 bytes each."""

LARGEST_BYTES: Final = 1 << 48
"""Beyond it a region is not memory but all of the address space (on-demand paging), which pins nothing."""


class Holder(NamedTuple):
    """Whose pinned memory: of process ``tgid`` for ``device``; ``dmabuf``: the memory of another device."""

    tgid: int
    device: str
    dmabuf: bool


class Pinned:
    """What is registered now. ``counters`` grow: oddities by name."""

    def __init__(self) -> None:
        self._regions: dict[tuple[int, int], tuple[Holder, int]] = {}
        self.bytes: Counter[Holder] = Counter()
        self.regions: Counter[Holder] = Counter()
        self.counters: Counter[str] = Counter()

    def take(self, fact: RegionChanged) -> None:
        """A region was registered or deregistered; a call that failed changes nothing."""
        if fact.error:
            self.counters["region_calls_failed"] += 1
            return
        key = fact.tgid, fact.region
        if key in self._regions:
            if not fact.removed:
                self.counters["deregister_unseen"] += 1
            self._remove(key)
            if fact.removed:
                return
        elif fact.removed:
            self.counters["regions_of_before"] += 1
            return
        if len(self._regions) >= REGIONS:
            self.counters["regions_beyond_memory"] += 1
            return
        size = fact.bytes
        if size >= LARGEST_BYTES:
            self.counters["regions_of_everything"] += 1
            size = 0
        holder = Holder(fact.tgid, fact.device, fact.dmabuf)
        self._regions[key] = holder, size
        self.bytes[holder] += size
        self.regions[holder] += 1

    def forget_process(self, tgid: int) -> list[Holder]:
        """A process ended: what it held is free. The result is what stood of it."""
        for key in [key for key in self._regions if key[0] == tgid]:
            del self._regions[key]
        gone = [holder for holder in self.bytes if holder.tgid == tgid]
        for holder in gone:
            del self.bytes[holder], self.regions[holder]
        return gone

    def _remove(self, key: tuple[int, int]) -> None:
        holder, size = self._regions.pop(key)
        self.bytes[holder] -= size
        self.regions[holder] -= 1
