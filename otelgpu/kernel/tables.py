"""A map of the kernel as rows: what programs count there, read in bulk.

In: an array of counters, or a hash map whose key and value are structs of the family's BTF. Out: numpy rows, all or
some at a time; or those that changed since the last read, whose entries are deleted by the reader alone, after the last
value was handed on.
"""

from __future__ import annotations

import ctypes
import errno
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt

from otelgpu.kernel.libbpf import Map, load_libbpf

_ROWS: Final = 512  # at a time, at first

Rows = npt.NDArray[np.void]


class Walk:
    """Once through such a map, some entries at a time. Those that come or go meanwhile may be missed, or met twice.

    ``key`` and ``value`` are their dtypes; ``rows``: how many at a time, more where a bucket of the map has more.
    """

    def __init__(
        self, table: Map, key: np.dtype[np.void], value: np.dtype[np.void], *, rows: int = _ROWS
    ) -> None:
        if (key.itemsize, value.itemsize) != (table.key_bytes, table.value_bytes):
            raise ValueError(f"map {table.name} has other keys or values than {key} and {value}")
        self._table, self._rows = table, rows
        self._entry = np.dtype([("key", key), ("value", value)])
        self._at = ctypes.create_string_buffer(max(table.key_bytes, 4))
        self._first, self._met = True, 0

    def __iter__(self) -> Iterator[Rows]:
        """The parts that are left. Raises :class:`BpfError`."""
        while (rows := self.read()) is not None:
            yield rows

    def read(self) -> Rows | None:
        """The next part: shape (n,), fields ``key`` and ``value``; None: it is through. Raises :class:`BpfError`."""
        table, library = self._table, load_libbpf()
        if self._met >= 2 * table.max_entries:  # it is filled as fast as it is read
            return None
        following = ctypes.create_string_buffer(table.key_bytes)
        while True:
            count = ctypes.c_uint32(self._rows)
            keys = ctypes.create_string_buffer(self._rows * table.key_bytes)
            values = ctypes.create_string_buffer(self._rows * table.value_bytes)
            at = None if self._first else self._at
            code = library.bpf_map_lookup_batch(
                table.fd, at, following, keys, values, ctypes.byref(count), None
            )
            if not code or ctypes.get_errno() != errno.ENOSPC:
                break
            self._rows *= 2  # a bucket with more entries than there is room for
        if code and ctypes.get_errno() != errno.ENOENT:
            raise library.error(f"cannot read map {table.name}", code)
        self._at.raw, self._first = following.raw.ljust(len(self._at), b"\0"), False
        self._met = 2 * table.max_entries if code else self._met + count.value
        rows: Rows = np.empty(count.value, self._entry)
        rows["key"] = np.frombuffer(memoryview(keys), self._entry["key"], count.value)
        rows["value"] = np.frombuffer(memoryview(values), self._entry["value"], count.value)
        return rows


def array_rows(table: Map, cpus: int) -> npt.NDArray[np.uint64]:
    """The numbers of an array of each CPU: shape (entries, cpus). One system call, from Linux 5.13 on."""
    entries, library = table.max_entries, load_libbpf()
    count, last = ctypes.c_uint32(entries), ctypes.create_string_buffer(table.key_bytes)
    keys, values = (ctypes.create_string_buffer(entries * size) for size in (table.key_bytes, 8 * cpus))
    code = library.bpf_map_lookup_batch(table.fd, None, last, keys, values, ctypes.byref(count), None)
    raw = values.raw
    if count.value != entries or (code and ctypes.get_errno() != errno.ENOENT):  # at the end it says so
        found = (table.get(number.to_bytes(4, "little"), 8 * cpus) for number in range(entries))
        raw = b"".join(value or bytes(8 * cpus) for value in found)
    return np.frombuffer(raw, "<u8").reshape(entries, cpus)


class CountedTable:
    """One such map. ``key`` and ``value`` are their dtypes."""

    def __init__(self, table: Map, key: np.dtype[np.void], value: np.dtype[np.void]) -> None:
        self._walk = partial(Walk, table, key, value)
        self._table = table
        self._reported: dict[bytes, bytes] = {}

    def read(self) -> Rows:
        """All entries, in no order: shape (n,), fields ``key`` and ``value``. Raises :class:`BpfError`.

        Those that come, go or change meanwhile are as they are found.
        """
        return np.concatenate(list(self._walk()))

    def changed(self) -> tuple[Rows, Rows]:
        """Rows whose value is not what it was at the last call, or that are new; and all rows."""
        rows = self.read()
        if not len(rows):
            self._reported = {}
            return rows, rows
        fresh = np.zeros(len(rows), dtype=bool)
        reported: dict[bytes, bytes] = {}
        for place, row in enumerate(rows):
            key, value = row["key"].tobytes(), row["value"].tobytes()
            fresh[place] = self._reported.get(key) != value
            reported[key] = value
        self._reported = reported
        return rows[fresh], rows

    def delete(self, keys: Iterable[np.void]) -> None:
        """Entries that nothing is added to any more."""
        for key in keys:
            raw = key.tobytes()
            self._table.delete(raw)
            self._reported.pop(raw, None)
