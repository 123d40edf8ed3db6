"""Whose records found no room in a family's ring, or in their share of it.

In: the kernel's counts, and its table of who lost how many (bpf/lib/lost_records.h), which is read only after some were
lost. Out: how many more each process lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from otelgpu.kernel.loader import LoadedFamily, counter_names
from otelgpu.kernel.tables import CountedTable
from otelgpu.model.inputs import Input, RecordsLost

REASONS: Final = ("ring_full", "ring_share_spent", "process_share_spent")
"""Of losses: those that are counted by process too."""
LOOK_EVERY_NS: Final = 1_000_000_000

_KEY: Final = np.dtype([("tgid", "<u4")])
_VALUE: Final = np.dtype([("count", "<u8")])


class LostRecords:
    """A watcher of one family: see :mod:`otelgpu.processes.discovery`."""

    def __init__(self, loaded: LoadedFamily) -> None:
        self._loaded = loaded
        known = counter_names(loaded.image.btf, loaded.family)
        self._counters = [number for number, name in known.items() if name in REASONS]
        self._table = CountedTable(loaded.map("records_lost"), _KEY, _VALUE)
        self._total = 0
        self._before: dict[int, int] = {}
        self._look_ns = 0

    def forget(self, tgid: int) -> None:
        """A process ended: what it lost is to be known before it is forgotten."""
        self._look_ns = 0

    def collect(self, now_ns: int) -> Sequence[Input]:
        """What was lost since the last look."""
        if now_ns < self._look_ns:
            return ()
        self._look_ns = now_ns + LOOK_EVERY_NS
        total = sum(map(self._loaded.counter, self._counters))
        if total == self._total:
            return ()
        self._total = total
        rows = self._table.read()
        now = dict(zip(rows["key"]["tgid"].tolist(), rows["value"]["count"].tolist(), strict=True))
        found = [(tgid, self._grown(tgid, count)) for tgid, count in now.items()]
        self._before = now
        family = self._loaded.family
        return [RecordsLost(tgid=tgid, family=family, count=count) for tgid, count in found if tgid and count]

    def _grown(self, tgid: int, count: int) -> int:
        before = self._before.get(tgid, 0)
        return count - before if count >= before else count  # its entry had gone, and began anew
