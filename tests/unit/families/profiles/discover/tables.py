"""BPF maps of Python, for what fills them."""

from __future__ import annotations

from otelgpu.kernel.libbpf import BpfError


class FakeTable:
    """A map: what ``put`` gave it, by key."""

    def __init__(self, capacity: int = 100) -> None:
        self.entries: dict[bytes, bytes] = {}
        self._capacity = capacity

    def put(self, key: bytes, value: bytes) -> None:
        if len(self.entries) >= self._capacity and key not in self.entries:
            raise BpfError("full")
        self.entries[key] = value

    def delete(self, key: bytes) -> bool:
        return self.entries.pop(key, None) is not None
