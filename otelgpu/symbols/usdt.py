"""Statically defined tracepoints of an ELF file: where each lies, and where it keeps its arguments. Pure.

Format: notes of type 3 and owner ``stapsdt`` in ``.note.stapsdt``
(https://sourceware.org/systemtap/wiki/UserSpaceProbeImplementation): three addresses (probe, link-time address of
``.stapsdt.base``, semaphore), then provider, name and arguments as zero-terminated texts. An argument is
``[-]SIZE@PLACE`` in the assembler's syntax; ``-`` says that it has a sign.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from otelgpu.elf.image import ElfError, ElfImage
from otelgpu.model.user_probes import REGISTERS, ArgumentSource, Reading

_NOTE: Final = struct.Struct("<3I")
_PLACES: Final = struct.Struct("<3Q")
_TYPE: Final = 3
MOST_NOTES: Final = 65_536
_ARGUMENT: Final = re.compile(r"(-?[1248])(?:f)?@(.+)")
_CONSTANT: Final = re.compile(r"\$(-?(?:0x[0-9a-f]+|\d+))")
_MEMORY: Final = re.compile(r"(-?(?:0x[0-9a-f]+|\d+))?\(%(\w+)\)")
_PARTS: Final = {
    **{f"r{letter}x": (f"e{letter}x", f"{letter}x", f"{letter}l") for letter in "abcd"},
    **{f"r{name}": (f"e{name}", name, f"{name}l") for name in ("si", "di", "bp", "sp")},
    **{f"r{n}": (f"r{n}d", f"r{n}w", f"r{n}b") for n in range(8, 16)},
}
_NARROW: Final = {
    part: (whole, size)
    for whole, parts in _PARTS.items()
    for part, size in zip((whole, *parts), (8, 4, 2, 1), strict=True)
}
"""Register as the assembler writes it → the whole one, and the bytes of it that are meant."""


class UsdtPlace(Struct, frozen=True, kw_only=True):
    """One place of a tracepoint. ``file_offset`` as uprobes want it; ``semaphore`` too, 0 of none.

    ``arguments``: None for what is kept where it cannot be read (indexed memory, floating point).
    """

    provider: str
    name: str
    file_offset: int
    semaphore: int
    arguments: tuple[Reading | None, ...]


def usdt_places(image: ElfImage) -> list[UsdtPlace]:
    """All of a file, in its order; those at addresses that the file does not have are left out.

    Raises :class:`~otelgpu.elf.image.ElfError` where the section is cut off.
    """
    section = image.section(".note.stapsdt")
    if section is None:
        return []
    base = image.section(".stapsdt.base")
    found = []
    for probe, linked_base, semaphore, provider, name, arguments in _notes(bytes(section.content)):
        moved = base.address - linked_base if base is not None and linked_base else 0
        place = image.offset_of(probe + moved)
        if place is None:
            continue
        counter = image.data_offset_of(semaphore + moved) if semaphore else 0
        found.append(
            UsdtPlace(
                provider=provider,
                name=name,
                file_offset=place,
                semaphore=counter or 0,
                arguments=tuple(map(reading_of, arguments.split())),
            )
        )
    return found


def _notes(data: bytes) -> Iterator[tuple[int, int, int, str, str, str]]:
    place = 0
    for _ in range(MOST_NOTES):
        if place + _NOTE.size > len(data):
            return
        owner_size, size, kind = _NOTE.unpack_from(data, place)
        body = place + _NOTE.size + -(-owner_size // 4) * 4
        if body + size > len(data):
            raise ElfError("its notes of tracepoints are cut off")
        owner = data[place + _NOTE.size : place + _NOTE.size + owner_size].rstrip(b"\0")
        texts = data[body + _PLACES.size : body + size].split(b"\0")
        if owner == b"stapsdt" and kind == _TYPE and len(texts) >= 3:
            provider, name, arguments = (text.decode("ascii", "backslashreplace") for text in texts[:3])
            yield (*_PLACES.unpack_from(data, body), provider, name, arguments)
        place = body + -(-size // 4) * 4


def reading_of(argument: str) -> Reading | None:
    """``-4@-20(%rbp)`` → 4 bytes with a sign, 20 below rbp. None for what cannot be read.

    >>> reading_of("8@%rdi").register
    0
    """
    matched = _ARGUMENT.fullmatch(argument)
    if matched is None or "f@" in argument:
        return None
    size, signed = abs(int(matched.group(1))), matched.group(1).startswith("-")
    where = matched.group(2)
    if constant := _CONSTANT.fullmatch(where):
        return Reading(
            source=ArgumentSource.CONSTANT, size=size, signed=signed, offset=int(constant.group(1), 0)
        )
    if memory := _MEMORY.fullmatch(where):
        whole, _ = _NARROW.get(memory.group(2), ("", 0))
        if whole in REGISTERS:
            return Reading(
                source=ArgumentSource.MEMORY,
                size=size,
                signed=signed,
                register=REGISTERS.index(whole),
                offset=int(memory.group(1) or "0", 0),
            )
        return None
    whole, width = _NARROW.get(where.removeprefix("%"), ("", 0))
    if not where.startswith("%") or whole not in REGISTERS:
        return None
    return Reading(
        source=ArgumentSource.REGISTER, size=min(size, width), signed=signed, register=REGISTERS.index(whole)
    )
