"""File offset → function name, for one image. Caching is the caller's."""

from __future__ import annotations

from otelgpu.layout.elf import ElfImage
from otelgpu.symbols.demangle import demangle


class FunctionTable:
    """The functions of one ELF file.

    ``module`` stands for the file in the names of what it has no symbol for: its base name.
    """

    def __init__(self, image: ElfImage, module: str) -> None:
        self._image = image
        self._module = module

    def name_at(self, file_offset: int) -> tuple[str, bool]:
        """(demangled name, True) of the function that holds ``file_offset``, else (``module+0xoffset``, False).

        Raises :class:`otelgpu.layout.elf.ElfError` when the file's symbol tables are damaged.
        """
        symbol = self._image.symbol_at(file_offset)
        if symbol is None or not symbol.name:
            return unknown_name(self._module, file_offset), False
        return demangle(symbol.name), True


def unknown_name(module: str, offset: int) -> str:
    """How a place without a name is written: ``libfoo.so+0x1a2b``."""
    return f"{module}+{offset:#x}"
