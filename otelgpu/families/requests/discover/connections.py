"""Connections that began before the programs of family ``http`` were there.

In: processes as they come into scope and end. Out: entries of the family's maps, known by their names: see bpf/http.
"""

from __future__ import annotations

import struct
from typing import Final

import numpy as np

from otelgpu.kernel.loader import LoadedFamily
from otelgpu.processes.connections import open_connections

_CONNECTIONS: Final = "connections"  # (process, descriptor) → struct connection
_HOLDERS: Final = "holders"  # processes with entries in these, whose keys begin with a process
_HELD: Final = (_CONNECTIONS, "tls_sessions")


class OpenConnections:
    """Those that processes have open as they come into scope."""

    def __init__(self, loaded: LoadedFamily) -> None:
        numbers = loaded.image.btf.enumerators("connection_number")
        self._loaded = loaded
        self._next = 1 << numbers["CONNECTION_FOUND_SHIFT"]
        self._roles = loaded.image.btf.enumerators("http_role")
        self._value = np.zeros(1, dtype=loaded.image.btf.dtype("connection"))

    def enter(self, tgid: int) -> None:
        """Put those that a process has open into the kernel's maps, unless they are known."""
        connections, value = self._loaded.map(_CONNECTIONS), self._value
        for found in open_connections(tgid):
            key = struct.pack("<Ii", tgid, found.descriptor)
            if connections.get(key) is None:
                self._next += 1
                value["id"], value["late"] = self._next, 1
                value["role"] = self._roles[f"HTTP_ROLE_{found.role}"]
                connections.put(key, value.tobytes())
                self._loaded.map(_HOLDERS).put(struct.pack("<I", tgid), b"\1")

    def forget(self, tgid: int) -> None:
        """A process has ended."""
        if not self._loaded.map(_HOLDERS).delete(struct.pack("<I", tgid)):
            return
        for table in map(self._loaded.map, _HELD):
            for key in table.list_keys():
                if struct.unpack_from("<I", key)[0] == tgid:
                    table.delete(key)
