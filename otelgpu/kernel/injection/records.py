"""What an observed process may write: which bytes are records of family ``cuda``, and in which order they come.

In: runs of records as :class:`~otelgpu.kernel.injection.shared_memory.SharedMemory` reads them. Out: records by struct,
and batches in the order of time. What cannot be a record is left out and counted by the caller.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from otelgpu.elf.btf import Btf
from otelgpu.kernel.injection.shared_memory import Run
from otelgpu.kernel.loader import record_struct
from otelgpu.model.inputs import Batch, Records

FAMILY: Final = "cuda"


class InjectRecords:
    """Which records of a ring are possible, and how they come as batches."""

    def __init__(self, btf: Btf) -> None:
        kinds = btf.enumerators(f"{FAMILY}_kind")
        structs = {number: record_struct(btf, FAMILY, name) for name, number in kinds.items()}
        self._dtypes = {name: btf.dtype(name) for name in dict.fromkeys(structs.values())}
        self._names = list(self._dtypes)
        self._struct_of = np.full(max(structs) + 1, len(self._names), dtype=np.uint8)
        for number, name in structs.items():
            self._struct_of[number] = self._names.index(name)
        self._head = btf.dtype("record_head")
        self._apis = btf.enumerators("cuda_api")["API_COUNT"]

    @property
    def lengths(self) -> frozenset[int]:
        """Bytes that a record may have."""
        return frozenset(dtype.itemsize for dtype in self._dtypes.values())

    def heads(self, run: Run) -> Records:
        """The run's ``struct record_head``, in place."""
        heads: Records = run[:, : self._head.itemsize].view(self._head)[:, 0]
        return heads

    def split(self, run: Run, possible: npt.NDArray[np.bool_]) -> tuple[list[tuple[str, Records]], int]:
        """The run's records by struct, and how many were dropped for being impossible."""
        kinds = self.heads(run)["kind"]
        structs = self._struct_of[np.minimum(kinds, len(self._struct_of) - 1)]
        possible &= kinds < len(self._struct_of)
        kept = 0
        found = []
        for position in structs[:1] if (structs == structs[0]).all() else np.unique(structs):
            if position == len(self._names) or self._dtypes[self._names[position]].itemsize != run.shape[1]:
                continue
            name = self._names[position]
            mine = possible & (structs == position)
            records = (run if mine.all() else run[mine]).view(self._dtypes[name])[:, 0]
            if "api" in (records.dtype.names or ()):
                known = (records["api"] > 0) & (records["api"] < self._apis)
                records = records if known.all() else records[known]
            kept += len(records)
            if len(records):
                found.append((name, records))
        return found, len(run) - kept


def merged(kind: str, parts: list[Records], until_ns: int) -> tuple[Batch | None, Records]:
    """Records of several rings in the order in which they ended, and those that ended after ``until_ns``.

    What one thread did because of what another had done must come after it.
    """
    ends = np.concatenate([part["head"]["time_ns"] + part["head"]["duration_ns"] for part in parts])
    records = parts[0]
    if len(parts) > 1 or (ends[1:] < ends[:-1]).any():
        order = np.argsort(ends, kind="stable")
        place = np.empty(len(order), dtype=np.intp)
        place[order] = np.arange(len(order))
        # Without fields, or each would be copied by itself.
        whole = np.empty(len(order), dtype=np.dtype((np.void, records.dtype.itemsize)))
        at = 0
        for part in parts:
            whole[place[at : at + len(part)]] = part.view(whole.dtype)
            at += len(part)
        ends, records = ends[order], whole.view(records.dtype)
    cut = int(np.searchsorted(ends, np.uint64(until_ns), side="right"))
    batch = Batch(family=FAMILY, kind=kind, records=records[:cut]) if cut else None
    return batch, records[cut:]
