"""The functions of the kernel's shared object that every process has mapped (vdso(7)), which is in no file.

It is read from this program's own memory: all processes of one word size have the same.
"""

from __future__ import annotations

import os
from typing import Final

from otelgpu.elf.image import ElfError, ElfImage
from otelgpu.processes.maps import read_maps
from otelgpu.symbols.functions import FunctionTable

NAME: Final = "[vdso]"
"""Its path in maps files."""


class Vdso:
    """Its functions by offset; read when the first is wanted."""

    def __init__(self) -> None:
        self._size_bytes = 0
        self._table: FunctionTable | None = None
        self._is_read = False

    def function_at(self, offset: int, size_bytes: int) -> str:
        """The function at ``offset`` of a mapping of that size; "" where none is, or another kind is mapped."""
        if not self._is_read:
            self._is_read = True
            self._read()
        try:
            if self._table is None or size_bytes != self._size_bytes:
                return ""
            found = self._table.function_at(offset)
        except ElfError:
            return ""
        return found[0] if found is not None else ""

    def _read(self) -> None:
        try:
            for mapping in read_maps(os.getpid()):
                if mapping.path == NAME:
                    with open("/proc/self/mem", "rb", buffering=0) as memory:
                        memory.seek(mapping.start)
                        content = memory.read(mapping.end - mapping.start)
                    self._size_bytes = len(content)
                    self._table = FunctionTable(ElfImage(content), NAME)
        except (OSError, ElfError):
            self._table = None
