"""Global variables of a BPF object that runs, in the memory that its programs have them in.

Reading and writing them is no system call, and writes nothing beside them: programs write others of the same map.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from typing import Final, Literal

from otelgpu.kernel.libbpf import Map

_WORDS: Final[dict[int, Literal["B", "I", "Q"]]] = {1: "B", 4: "I", 8: "Q"}


class GlobalVariables:
    """Those of a loaded object's ``.bss``; ``places``: name → (offset, size in bytes)."""

    def __init__(self, table: Map, places: Mapping[str, tuple[int, int]]) -> None:
        pages = -(-table.value_bytes // mmap.PAGESIZE)
        self._places = places
        self._pages = mmap.mmap(table.fd, pages * mmap.PAGESIZE, mmap.MAP_SHARED)
        self._pages.madvise(mmap.MADV_DONTFORK)  # a child that outlives this process must not keep the map
        self._memory = memoryview(self._pages)

    def read(self, name: str) -> bytes:
        """What a variable holds now."""
        offset, size = self._places[name]
        return bytes(self._memory[offset : offset + size])

    def write(self, name: str, value: int) -> None:
        """Set one at once: no program meets half of it."""
        offset, size = self._places[name]
        with self._memory[offset : offset + size] as place, place.cast(_WORDS[size]) as word:
            word[0] = value

    def close(self) -> None:
        """Unmap."""
        self._memory.release()
        self._pages.close()
