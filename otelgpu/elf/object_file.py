"""Sections of a relocatable ELF file that comes with this program, as a BPF object is.

In: its bytes. Out: sections and the global variables in them. Files of others, of which nothing is taken on trust, are
:mod:`otelgpu.elf.image`'s. Source: System V ABI, chapters "Sections" and "Symbol Table".
"""

from __future__ import annotations

import struct
from functools import cached_property
from typing import Final

from msgspec import Struct

_HEADER: Final = struct.Struct("<16s HHI QQQ I HHH HHH")  # Elf64_Ehdr
_SECTION: Final = struct.Struct("<II QQQQ II QQ")  # Elf64_Shdr
_SYMBOL: Final = struct.Struct("<IBBHQQ")  # Elf64_Sym: name, info, other, section, value, size
_SHT_NOBITS: Final = 8
_STT_OBJECT: Final = 1


class ObjectSection(Struct, frozen=True):
    """``content``: none of one that takes no room in the file (``.bss``). ``link``: another section's number."""

    name: str
    content: memoryview
    link: int


class ObjectFile:
    """Of a file that was cut off something else than its own comes out: it is ours, and was written whole."""

    def __init__(self, data: bytes) -> None:
        """Raises :class:`ValueError` for what is no ELF file, and struct.error where it ends in its headers."""
        if data[:6] != b"\x7fELF\x02\x01":
            raise ValueError("not a 64-bit little-endian ELF file")
        *_, sections_at, _, _, _, _, size, count, names = _HEADER.unpack_from(data)
        whole = memoryview(data)
        rows = [_SECTION.unpack_from(data, sections_at + size * number) for number in range(count)]
        _, _, _, _, texts_at, texts_bytes, *_ = rows[names]
        texts = data[texts_at : texts_at + texts_bytes]
        self.sections = [
            ObjectSection(_text(texts, name), whole[at : at + (0 if kind == _SHT_NOBITS else length)], link)
            for name, kind, _, _, at, length, link, *_ in rows
        ]
        """By their numbers."""

    def content(self, name: str) -> memoryview | None:
        """Of the first section that is called so; None: there is none."""
        return next((each.content for each in self.sections if each.name == name), None)

    @cached_property
    def variables(self) -> dict[str, dict[str, tuple[int, int]]]:
        """Global variables by section: name → (offset, size in bytes)."""
        found: dict[str, dict[str, tuple[int, int]]] = {}
        for table in (each for each in self.sections if each.name == ".symtab"):
            texts = bytes(self.sections[table.link].content)
            for name, info, _, number, value, size in _SYMBOL.iter_unpack(table.content):
                if info & 0xF == _STT_OBJECT and number < len(self.sections):
                    found.setdefault(self.sections[number].name, {})[_text(texts, name)] = value, size
        return found


def _text(texts: bytes, at: int) -> str:
    return texts[at : texts.index(b"\0", at)].decode()
