"""The symbols that were stripped from a file, where it carries them compressed.

In: an image. Out: the bytes of a second ELF file that has its ``.symtab``. Pure.

Source: "Features/MiniDebugInfo" of Fedora and gdb's manual, section "MiniDebugInfo": section
``.gnu_debugdata`` holds an xz-compressed ELF file with the functions that ``.dynsym`` lacks.
"""

from __future__ import annotations

import lzma
from typing import Final

from otelgpu.elf.image import ElfError, ElfImage

MAX_BYTES: Final = 64 << 20
"""Uncompressed. libc's has 0.3 MB."""

_MAX_COMPRESSED_BYTES: Final = 16 << 20
_MAX_MEMORY_BYTES: Final = 128 << 20  # of the decompressor; what xz -9 asks for is 65 MB


def embedded_symbols(image: ElfImage) -> ElfImage | None:
    """The image in ``.gnu_debugdata``, made for its symbols only; None without that section.

    Raises :class:`ElfError` when it is damaged or larger than MAX_BYTES.
    """
    section = image.section(".gnu_debugdata")
    if section is None:
        return None
    if len(section.content) > _MAX_COMPRESSED_BYTES:
        raise ElfError(
            f"mini-debuginfo of {len(section.content)} bytes; at most {_MAX_COMPRESSED_BYTES} are read"
        )
    reader = lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=_MAX_MEMORY_BYTES)
    try:
        plain = reader.decompress(section.content, max_length=MAX_BYTES)
    except lzma.LZMAError as error:
        raise ElfError(f"damaged mini-debuginfo: {error}") from error
    if not reader.eof:
        raise ElfError("mini-debuginfo that is truncated or too large")
    return ElfImage(plain, symbols_only=True)
