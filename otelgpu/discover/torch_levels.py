"""What PyTorch's allocators hold, by device and process: read out of the kernel's map.

In: map ``levels`` of family torch. Out: batches of kind ``torch_levels``, of what has changed. Entries of processes
that have ended are told once more and deleted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from otelgpu.kernel.clock import monotonic_ns
from otelgpu.kernel.loader import LoadedFamily
from otelgpu.kernel.tables import CountedTable, Rows
from otelgpu.model.inputs import Batch, Input

_KIND: Final = "torch_levels"


class TorchLevels:
    """The watcher of family torch."""

    def __init__(self, loaded: LoadedFamily) -> None:
        btf = loaded.image.btf
        self._family = loaded.family
        self._number = btf.enumerators("torch_kind")["TORCH_LEVELS"]
        self._record = btf.dtype(_KIND)
        self._table = CountedTable(loaded.map("levels"), btf.dtype("torch_key"), btf.dtype("torch_totals"))
        self._gone: set[int] = set()

    @property
    def counters(self) -> Mapping[str, int]:
        """None: what is lost is counted where it is, in the kernel."""
        return {}

    def look(self, batch: Batch) -> None:
        """Nothing: records need nobody's help."""

    def mapped(self, tgid: int) -> None:
        """Nothing."""

    def program_changed(self, tgid: int) -> None:
        """Nothing: what the kernel counts of it goes on under its number, and is told by what it grows."""

    def collect(self, now_ns: int) -> Sequence[Input]:
        """What has changed."""
        changed, everything = self._table.changed()
        self._table.delete(row["key"] for row in everything if int(row["key"]["tgid"]) in self._gone)
        self._gone.clear()
        return (self._batch(changed),) if len(changed) else ()

    def forget(self, tgid: int) -> None:
        """Its last levels are in the next collection."""
        self._gone.add(tgid)

    def close(self) -> None:
        """Nothing was put on."""

    def _batch(self, rows: Rows) -> Batch:
        records = np.zeros(len(rows), self._record)
        records["key"], records["totals"] = rows["key"], rows["value"]
        head = records["head"]
        head["time_ns"], head["kind"] = monotonic_ns(), self._number
        head["tgid"] = head["tid"] = rows["key"]["tgid"]
        return Batch(family=self._family, kind=_KIND, records=records)
