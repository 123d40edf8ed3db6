"""The live side of family ``torch``: what PyTorch's allocators hold, by device and process, out of the kernel's map.

In: map ``levels`` of family torch. Out: batches of kind ``torch_levels``, of what has changed. Entries of processes
that have ended are reported once more and deleted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from otelgpu.engine.contract import Family
from otelgpu.families.gpu.torch import FAMILY
from otelgpu.kernel.clock import monotonic_ns
from otelgpu.kernel.loader import LoadedFamily
from otelgpu.kernel.tables import CountedTable, Rows
from otelgpu.model.inputs import Batch, Input
from otelgpu.model.profiling import ProfileKind, ProfileSettings
from otelgpu.model.settings import Settings
from otelgpu.processes.coverage import Blind, Findings, Inspection, Machine, Observed
from otelgpu.processes.discovery import FEW_RECORDS, Discovery, Profiles

CORE: Final = "libc10"
"""Library name of PyTorch's core, to which its allocators report."""

_KIND: Final = "torch_levels"


def asked(settings: Settings) -> Family | None:
    """Where memory is profiled and no choice of families leaves it out."""
    nothing: tuple[str, ...] = ()
    profiled = settings.get("profiling", ProfileSettings()).kinds
    return FAMILY if ProfileKind.MEM in profiled and not settings.get("families", nothing) else None


class TorchLevels:
    """A watcher: see :mod:`otelgpu.processes.discovery`."""

    def __init__(self, loaded: LoadedFamily) -> None:
        btf = loaded.image.btf
        self._family = loaded.family
        self._number = btf.enumerators("torch_kind")["TORCH_LEVELS"]
        self._record = btf.dtype(_KIND)
        self._table = CountedTable(loaded.map("levels"), btf.dtype("torch_key"), btf.dtype("torch_totals"))
        self._gone: set[int] = set()

    def collect(self, now_ns: int) -> Sequence[Input]:
        """What has changed."""
        changed, everything = self._table.changed()
        self._table.delete(row["key"] for row in everything if int(row["key"]["tgid"]) in self._gone)
        self._gone.clear()
        return (self._batch(changed),) if len(changed) else ()

    def forget(self, tgid: int) -> None:
        """Its last levels are in the next collection."""
        self._gone.add(tgid)

    def _batch(self, rows: Rows) -> Batch:
        records = np.zeros(len(rows), self._record)
        records["key"], records["totals"] = rows["key"], rows["value"]
        head = records["head"]
        head["time_ns"], head["kind"] = monotonic_ns(), self._number
        head["tgid"] = head["tid"] = rows["key"]["tgid"]
        return Batch(family=self._family, kind=_KIND, records=records)


def judge(process: Observed, machine: Machine) -> Findings:
    """What PyTorch's allocators give to tensors: each version has some of the functions."""
    sees: list[str] = []
    blind: list[Blind] = []
    for library in process.libraries:
        if library.name != CORE or library.error or library.refusal:
            continue
        if library.symbols:
            sees.append(
                f"tensors' memory by PyTorch's allocator in {library.path}, where it is asked for: "
                "profiles of mem, or family torch"
            )
            continue
        where = library.path + (" (deleted on disk, still mapped)" if library.deleted else "")
        why = "it reports what it gives to tensors in no way that is known: PyTorch 1.10 to 2.15 do"
        blind.append(Blind(what=f"tensors' memory by {where}", why=why, do="use such a version"))
    return Findings(sees, blind)


DISCOVERY: Final = Discovery(
    choose=lambda settings: FEW_RECORDS,
    watch={"torch": lambda loaded, placer, settings: (TorchLevels(loaded),)},
    profiles=Profiles(kinds=frozenset((ProfileKind.MEM,))),
    inspect=lambda: Inspection(judge=judge, libraries=frozenset((CORE,))),
)
