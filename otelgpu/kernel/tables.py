"""A hash map of the kernel as rows: what programs count there, read in bulk.

In: a map whose key and value are structs of the family's BTF. Out: numpy rows of those that changed since the last
read. An entry is deleted by the reader alone, after its last value was handed on.
"""

from __future__ import annotations

import ctypes
import errno
from collections.abc import Iterable
from typing import Final

import numpy as np
import numpy.typing as npt

from otelgpu.kernel.libbpf import Map, load_libbpf

_ROWS: Final = 512  # at a time, at first

Rows = npt.NDArray[np.void]


class CountedTable:
    """One such map. ``key`` and ``value`` are their dtypes."""

    def __init__(self, table: Map, key: np.dtype[np.void], value: np.dtype[np.void]) -> None:
        if (key.itemsize, value.itemsize) != (table.key_bytes, table.value_bytes):
            raise ValueError(f"map {table.name} has other keys or values than {key} and {value}")
        self._table = table
        self._entry = np.dtype([("key", key), ("value", value)])
        self._reported: dict[bytes, bytes] = {}
        self._room = _ROWS

    def read(self) -> Rows:
        """All entries, in no order: shape (n,), fields ``key`` and ``value``.

        Those that come, go or change meanwhile are as they are found. Without BPF_MAP_LOOKUP_BATCH (Linux 5.6) one
        system call each.
        """
        keys, values = self._read_all()
        rows: Rows = np.empty(len(keys) // self._table.key_bytes, self._entry)
        rows["key"] = np.frombuffer(keys, self._entry["key"])
        rows["value"] = np.frombuffer(values, self._entry["value"])
        return rows

    def changed(self) -> tuple[Rows, Rows]:
        """Rows whose value is not what it was at the last call, or that are new; and all rows."""
        rows = self.read()
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

    def _read_all(self) -> tuple[bytes, bytes]:
        library = load_libbpf()
        key_bytes, value_bytes = self._table.key_bytes, self._table.value_bytes
        at, following = ctypes.create_string_buffer(max(key_bytes, 4)), ctypes.create_string_buffer(key_bytes)
        found: list[tuple[bytes, bytes]] = []
        first = True
        while True:
            count = ctypes.c_uint32(self._room)
            keys = ctypes.create_string_buffer(self._room * key_bytes)
            values = ctypes.create_string_buffer(self._room * value_bytes)
            code = library.bpf_map_lookup_batch(
                self._table.fd, None if first else at, following, keys, values, ctypes.byref(count), None
            )
            if (
                code and ctypes.get_errno() == errno.ENOSPC
            ):  # a bucket with more entries than there is room for
                self._room *= 2
                continue
            if code and ctypes.get_errno() != errno.ENOENT:
                return self._read_singly()
            found.append((keys.raw[: count.value * key_bytes], values.raw[: count.value * value_bytes]))
            if code or sum(len(part) for part, _ in found) >= 2 * self._table.max_entries * key_bytes:
                break
            at.raw = following.raw.ljust(len(at), b"\0")
            first = False
        return b"".join(part for part, _ in found), b"".join(part for _, part in found)

    def _read_singly(self) -> tuple[bytes, bytes]:
        keys, values = [], []
        for key in self._table.list_keys():
            value = self._table.get(key)
            if value is not None:
                keys.append(key)
                values.append(value)
        return b"".join(keys), b"".join(values)
