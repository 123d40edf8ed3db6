"""Rows as they came into parts, and into what is of one owner: ``split_rows`` and ``group_owners``. Pure."""

from __future__ import annotations

import ctypes
from collections.abc import Collection
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from otelgpu.model.operations import OPERATION, Operations
from otelgpu.spanwriter.library import Split, library

_OWNS_NOTHING, _SPECIAL = 1, 2
_PART: Final = np.dtype(
    [("tgid", "<u4"), ("kind", "<u2"), ("failed", "u1"), ("unused", "u1"), ("count", "<i8")]
)
_OWNER: Final = np.dtype([("key", "<i8"), ("first", "<i8"), ("count", "<i8"), ("last_ns", "<u8")])


class Owners(Struct, frozen=True, kw_only=True):
    """The k distinct owners of some rows, ascending: columns of shape (k,). ``codes``: (n,) which each row is of."""

    keys: npt.NDArray[np.int64]
    first: npt.NDArray[np.int64]  # the first row of each
    count: npt.NDArray[np.int64]
    last_ns: npt.NDArray[np.uint64]  # when the newest row of each started
    codes: npt.NDArray[np.int64]


class SplitRows(Struct, frozen=True, kw_only=True):
    """n rows in a new array, part after part, in each as they came; parts by process, kind and outcome.

    ``parts``: process, kind, whether all are known to have failed, and how many rows. ``plain``: each row has an owner
    above 0, and no context of its own.
    """

    rows: Operations
    owners: npt.NDArray[np.int64]
    parts: list[tuple[int, int, bool, int]]
    plain: bool


class Splitter:
    """``unowned``: sources of contexts whose rows are of nobody; ``own``: of those that have one of their own."""

    def __init__(self, unowned: Collection[int], own: Collection[int]) -> None:
        self._sources = np.zeros(256, dtype=np.uint8)
        self._sources[list(own)] |= _SPECIAL
        self._sources[list(unowned)] |= _OWNS_NOTHING

    def split(self, rows: Operations, owners: npt.NDArray[np.int64], family: int) -> SplitRows:
        """``owners``: (n,), whose array is used; ``family`` is set in all."""
        rows, owners = np.ascontiguousarray(rows), np.ascontiguousarray(owners, dtype=np.int64)
        out, parts = np.empty(len(rows), dtype=OPERATION), np.empty(len(rows), dtype=_PART)
        asked = Split(
            rows=rows.ctypes.data,
            n=len(rows),
            owners=owners.ctypes.data,
            source=self._sources.ctypes.data,
            out=out.ctypes.data,
            parts=parts.ctypes.data,
            family=family,
        )
        found: Any = library()
        count = found.split_rows(ctypes.byref(asked))
        if count < 0:
            raise MemoryError
        columns = (parts[name][:count].tolist() for name in ("tgid", "kind", "failed", "count"))
        return SplitRows(
            rows=out,
            owners=owners,
            parts=[
                (tgid, kind, bool(failed), rows) for tgid, kind, failed, rows in zip(*columns, strict=True)
            ],
            plain=not asked.special,
        )


def owners_of(rows: Operations, owners: npt.NDArray[np.int64]) -> Owners:
    """Those of n rows: ``owners`` (n,)."""
    rows, owners = np.ascontiguousarray(rows), np.ascontiguousarray(owners, dtype=np.int64)
    codes, groups = np.empty(len(rows), dtype=np.int64), np.empty(len(rows), dtype=_OWNER)
    found: Any = library()
    count = found.group_owners(
        rows.ctypes.data, owners.ctypes.data, len(rows), codes.ctypes.data, groups.ctypes.data
    )
    if count < 0:
        raise MemoryError
    columns = {
        name: np.ascontiguousarray(groups[name][:count]) for name in ("key", "first", "count", "last_ns")
    }
    return Owners(keys=columns.pop("key"), codes=codes, **columns)
