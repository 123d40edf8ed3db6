"""Where an ELF image keeps a thread-local variable, and which of its words say where the dynamic linker put it.

In: an image and a name. Out: :class:`ThreadVariable`. A file can only say which words will report: a shared
library's place among the thread-local variables of a process is chosen when it is loaded.

Sources: System V ABI ("Hash Table"), the GNU hash section as binutils writes it, "ELF Handling For Thread-Local
Storage" (Drepper, 2013), the x86-64 psABI's relocation types, and Oliva, de Magalhães: "Speeding Up Thread-Local
Storage Access in Dynamic Libraries" (TLS descriptors).
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final

import numpy as np
from msgspec import Struct

from otelgpu.elf.image import HEADER, PT_TLS, SEGMENT, ElfImage, ThreadLocals
from otelgpu.elf.symbols import SYMBOL

RELOCATION: Final = np.dtype([("address", "<u8"), ("info", "<u8"), ("addend", "<i8")])
"""Elf64_Rela, 24 bytes."""

_DT_PLTRELSZ, _DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_RELA, _DT_RELASZ = 2, 4, 5, 6, 7, 8
_DT_JMPREL, _DT_GNU_HASH = 23, 0x6FFFFEF5
_NOWHERE: Final = -1  # no address of an image
_STT_TLS: Final = 6
_MAX_CHAIN: Final = 1 << 12  # symbols of one hash bucket: linkers make a handful
_MAX_TABLE_BYTES: Final = 1 << 28


class Access(IntEnum):
    """How code finds the variable; the numbers of the x86-64 relocations that report it."""

    MODULE = 16  # R_X86_64_DTPMOD64: two words, the module's number and the offset in its block
    DISTANCE = 18  # R_X86_64_TPOFF64: one word, the distance from the thread pointer
    DESCRIPTOR = 36  # R_X86_64_TLSDESC: two words, a function and its argument


class ThreadVariable(Struct, frozen=True, kw_only=True):
    """A thread-local variable that an image defines.

    ``offset``: in the image's block. ``distance``: from the thread pointer, if the image is the program.
    ``accesses``: (how, address of the words that report, relative to where the image is loaded).
    """

    offset: int
    distance: int
    accesses: tuple[tuple[Access, int], ...]


def may_have_thread_locals(start: bytes) -> bool:
    """Whether an ELF file that begins with ``start`` has thread-local variables, as far as that reports.

    Ten times as quick as making an :class:`~otelgpu.elf.image.ElfImage`, and most files have none.
    """
    if len(start) < HEADER.itemsize:
        return False
    header = np.frombuffer(start, HEADER, 1)[0]
    at, count = int(header["segments_at"]), int(header["segment_count"])
    if at + count * SEGMENT.itemsize > len(start):
        return True
    return bool(np.any(np.frombuffer(start, SEGMENT, count, at)["type"] == PT_TLS)) if count else False


def find_thread_variable(image: ElfImage, name: str, size: int) -> ThreadVariable | None:
    """The exported thread-local variable ``name`` of ``size`` bytes; in a static program also one that is not.

    Raises :class:`~otelgpu.elf.image.ElfError` when the image is damaged where it had to be read.
    """
    block = image.thread_locals
    if block is None or image.machine != "x86-64":
        return None
    encoded = name.encode()
    number, offset = _exported(image, encoded, size) or (0, _named(image, encoded, size))
    if offset is None or offset + size > block.size:
        return None
    return ThreadVariable(
        offset=offset,
        distance=offset - _end_of(block),
        accesses=_accesses(image, number, offset) if number else (),
    )


def thread_variable_distance(image: ElfImage, name: bytes) -> int | None:
    """From the thread pointer to a program's variable of that name, which may be exported or not; None: it has none."""
    block = image.thread_locals
    if block is None:
        return None
    for table in image.symbol_tables:
        for row in np.flatnonzero(table.symbols["info"] & 0xF == _STT_TLS):
            symbol = table.symbols[row]
            if symbol["section"] != 0 and table.strings.text(int(symbol["name"])).encode() == name:
                return int(symbol["value"]) - _end_of(block)
    return None


def _end_of(block: ThreadLocals) -> int:
    """From the start of a program's block to the thread pointer: its end is aligned as the block is."""
    return block.size + (-block.address - block.size) % block.align


# -- Symbols -------------------------------------------------------------------------------------------


def _exported(image: ElfImage, name: bytes, size: int) -> tuple[int, int] | None:
    """(number, value) of a symbol that the dynamic linker would find."""
    tags = image.dynamic
    symbols = image.content_at(tags.get(_DT_SYMTAB, _NOWHERE))
    strings = image.content_at(tags.get(_DT_STRTAB, _NOWHERE))
    candidates = (
        _gnu_bucket(image.content_at(tags[_DT_GNU_HASH]), name)
        if _DT_GNU_HASH in tags
        else _bucket(image.content_at(tags.get(_DT_HASH, _NOWHERE)), name)
    )
    for number in candidates:
        if (number + 1) * SYMBOL.itemsize > len(symbols):
            break
        symbol = np.frombuffer(symbols, SYMBOL, 1, number * SYMBOL.itemsize)[0]
        place = int(symbol["name"])
        if _is_wanted(symbol, size) and bytes(strings[place : place + len(name) + 1]) == name + b"\0":
            return number, int(symbol["value"])
    return None


def _is_wanted(symbol: np.void, size: int) -> bool:
    return bool(symbol["info"] & 0xF == _STT_TLS and symbol["section"] != 0 and symbol["size"] == size)


def _words(data: memoryview, place: int, count: int) -> tuple[int, ...]:
    """``count`` 32-bit words, or none when they are not all there."""
    return struct.unpack_from(f"<{count}I", data, place) if place + 4 * count <= len(data) else ()


def _gnu_bucket(table: memoryview, name: bytes) -> list[int]:
    """Numbers of the symbols whose hash is that of ``name``."""
    wanted = 5381
    for byte in name:
        wanted = (wanted * 33 + byte) & 0xFFFFFFFF
    bucket_count, first, bloom_count, _ = _words(table, 0, 4) or (0, 0, 0, 0)
    buckets = 16 + 8 * bloom_count
    start = _words(table, buckets + 4 * (wanted % bucket_count), 1) if bucket_count else ()
    if not start or start[0] < first:
        return []
    found = []
    for number in range(start[0], start[0] + _MAX_CHAIN):
        chain = _words(table, buckets + 4 * bucket_count + 4 * (number - first), 1)
        if chain and chain[0] | 1 == wanted | 1:
            found.append(number)
        if not chain or chain[0] & 1:
            break
    return found


def _bucket(table: memoryview, name: bytes) -> list[int]:
    """The same of the System V hash table, which holds no hashes: all symbols of the bucket."""
    wanted = 0
    for byte in name:
        wanted = (wanted << 4) + byte
        wanted = (wanted ^ ((wanted & 0xF0000000) >> 24)) & 0x0FFFFFFF
    bucket_count, chain_count = _words(table, 0, 2) or (0, 0)
    number = _words(table, 8 + 4 * (wanted % bucket_count), 1) if bucket_count else ()
    found: list[int] = []
    while number and 0 < number[0] < chain_count and len(found) < _MAX_CHAIN:
        found.append(number[0])
        number = _words(table, 8 + 4 * (bucket_count + number[0]), 1)
    return found


def _named(image: ElfImage, name: bytes, size: int) -> int | None:
    """The value of a symbol of a program that nothing is linked to at run time, so that it exports none."""
    if image.is_dynamic:
        return None
    for table in image.symbol_tables:
        for row in np.flatnonzero(table.symbols["info"] & 0xF == _STT_TLS):
            symbol = table.symbols[row]
            if _is_wanted(symbol, size) and table.strings.text(int(symbol["name"])).encode() == name:
                return int(symbol["value"])
    return None


# -- Relocations ---------------------------------------------------------------------------------------


def _accesses(image: ElfImage, number: int, offset: int) -> tuple[tuple[Access, int], ...]:
    """Those of symbol ``number``; one that no other image can override may be meant by its offset alone."""
    tags = image.dynamic
    found: list[tuple[Access, int]] = []
    for at, bytes_at in ((_DT_RELA, _DT_RELASZ), (_DT_JMPREL, _DT_PLTRELSZ)):
        content = image.content_at(tags.get(at, _NOWHERE))
        count = min(tags.get(bytes_at, 0), len(content), _MAX_TABLE_BYTES) // RELOCATION.itemsize
        rows = np.frombuffer(content, RELOCATION, count)
        kinds = rows["info"] & np.uint64(0xFFFFFFFF)
        symbols = rows["info"] >> np.uint64(32)
        likely = np.isin(kinds, list(Access)) & ((symbols == number) | (symbols == 0))
        for row in rows[likely]:
            how, address = Access(int(row["info"]) & 0xFFFFFFFF), int(row["address"])
            if int(row["info"]) >> 32 == number or _means(image, how, address, int(row["addend"]), offset):
                found.append((how, address))
    return tuple(sorted(set(found), reverse=True))


def _means(image: ElfImage, how: Access, address: int, addend: int, offset: int) -> bool:
    """Whether a relocation without a symbol is about the variable at ``offset``."""
    if how is not Access.MODULE:
        return addend == offset
    words = image.content_at(address)[8:16]
    return len(words) == 8 and int.from_bytes(words, "little") == offset
