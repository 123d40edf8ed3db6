"""What Go writes into its programs, also into stripped ones: its version, and a table of all functions.

In: an image, which anybody may have made. Out: numbers, addresses and sizes. The table (``.gopclntab``) has had this
form since Go 1.20:

    header     magic 0xfffffff1, 0, 0, quantum, pointer size; then words: functions, files, address of the code, offsets
               of names, compilation units, files, tables of values, functions
    functions  (entry, offset) pairs of u32, by address, and one entry more: the end
    function   u32 entry, u32 offset of its name among the names, …

Entries are counted from the address of the code, ``runtime.text``. The header has it up to Go 1.25, the section
``.go.module`` from Go 1.26 on (in position-independent programs a relocation says what will be there), and else it is
where ``.text`` begins, unless the C linker put something before it. Each of these is a candidate: the code there says
which one holds.

Sources: src/runtime/symtab.go (pcHeader, functab, _func, moduledata), src/internal/abi/symtab.go,
src/debug/buildinfo/buildinfo.go.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Collection, Mapping
from typing import Final

import numpy as np
from msgspec import Struct

from otelgpu.elf.image import ElfError, ElfImage, Section
from otelgpu.elf.tls import RELOCATION

TABLES: Final = (".gopclntab", ".data.rel.ro.gopclntab")
"""Sections that have the table; the latter in position-independent programs."""
MAX_FUNCTION_BYTES: Final = 1 << 16
_VERSION: Final = re.compile(rb"\xff Go buildinf:.{18}.{1,2}?go1\.(\d{1,3})[^\d]", re.DOTALL)
_DEPENDENCY: Final = rb"\ndep\t%s\tv1\.(\d{1,4})\.\d+\t"  # then its sum, where it is not replaced
_MAX_BUILD_INFO_BYTES: Final = 1 << 20
_MAGIC: Final = b"\xf1\xff\xff\xff\0\0"
_POINTER_BYTES: Final = 8
_HEADER: Final = struct.Struct("<8x8Q")
_HEADER_CODE_AT: Final = 24
_MODULE_CODE_AT: Final = 176  # moduledata.text
_MAX_FUNCTIONS: Final = 1 << 21  # a Kubernetes node agent has 120,000
_MAX_NAME_BYTES: Final = 1 << 27
_DT_RELA, _DT_RELASZ = 7, 8
_RELATIVE: Final = 8  # R_X86_64_RELATIVE
_MAX_RELOCATION_BYTES: Final = 1 << 27


def go_minor(image: ElfImage) -> int | None:
    """The n of the Go 1.n that built a program; None: it does not say."""
    section = image.section(".go.buildinfo")
    match = _VERSION.match(bytes(section.content[:64])) if section is not None else None
    return int(match[1]) if match is not None else None


def module_minor(image: ElfImage, module: str) -> int | None:
    """The n of the version 1.n of a module that a program was linked with; None: of none, or of somebody's own."""
    section = image.section(".go.buildinfo")
    if section is None or len(section.content) > _MAX_BUILD_INFO_BYTES:
        return None
    found = re.search(_DEPENDENCY % re.escape(module.encode()), bytes(section.content))
    return int(found[1]) if found is not None else None


class GoTable(Struct, frozen=True):
    """Some of a program's functions. ``functions``: (entry, bytes) by name; ``bases``: what entries may count from.

    The bytes reach to the next function: padding is among them.
    """

    functions: Mapping[str, tuple[int, int]]
    bases: tuple[int, ...]


def go_table(image: ElfImage, names: Collection[str]) -> GoTable | None:
    """Those of ``names`` that it has once; None: there is no table, or of another form. Raises :class:`ElfError`."""
    table = next((found for name in TABLES if (found := image.section(name)) is not None), None)
    if table is None or bytes(table.content[:6]) != _MAGIC:
        return None
    try:
        return GoTable(_look_up(table, names), _bases(image, table))
    except (struct.error, ValueError) as error:
        raise ElfError(f"damaged table of Go functions: {error}") from error


def _look_up(table: Section, names: Collection[str]) -> dict[str, tuple[int, int]]:
    content = table.content
    count, _, _, names_at, units_at, _, _, functions_at = _HEADER.unpack_from(content)
    if (
        content[7] != _POINTER_BYTES
        or not 0 < count <= _MAX_FUNCTIONS
        or not names_at < units_at <= min(len(content), names_at + _MAX_NAME_BYTES)
        or not functions_at <= len(content) - 4 * (2 * count + 1)
        or functions_at & 3
    ):
        raise ValueError("its header")
    pairs = np.frombuffer(content, "<u4", 2 * count + 1, functions_at)
    entries, places = pairs[0::2].astype(np.int64), pairs[1::2].astype(np.int64) + functions_at
    if not (np.diff(entries) >= 0).all() or (places + 8 > len(content)).any() or (places & 3).any():
        raise ValueError("its functions")
    named = np.frombuffer(content[: len(content) & ~3], "<u4")[places // 4 + 1]
    all_names, found = bytes(content[names_at:units_at]), {}
    for name in names:
        at = all_names.find(b"\0" + name.encode() + b"\0") + 1
        rows = np.flatnonzero(named == at).tolist() if at else []
        if len(rows) == 1:
            entry, end = entries[rows[0] : rows[0] + 2].tolist()
            if 0 < end - entry <= MAX_FUNCTION_BYTES:
                found[name] = entry, end - entry
    return found


def _bases(image: ElfImage, table: Section) -> tuple[int, ...]:
    module, text = image.section(".go.module"), image.section(".text")
    found = (
        _pointer(image, table.address + _HEADER_CODE_AT),
        _pointer(image, module.address + _MODULE_CODE_AT) if module is not None else 0,
        text.address if text is not None else 0,
    )
    return tuple(dict.fromkeys(each for each in found if each))


def _pointer(image: ElfImage, address: int) -> int:
    """What a word holds once the program is loaded, relative to where that is; 0: nothing."""
    word = bytes(image.content_at(address)[:_POINTER_BYTES])
    if any(word):
        return int.from_bytes(word, "little")
    dynamic = image.dynamic
    size = min(dynamic.get(_DT_RELASZ, 0), _MAX_RELOCATION_BYTES)
    content = image.content_at(dynamic[_DT_RELA])[:size] if _DT_RELA in dynamic else b""
    rows = np.frombuffer(content[: len(content) // RELOCATION.itemsize * RELOCATION.itemsize], RELOCATION)
    found = rows["addend"][(rows["address"] == address) & (rows["info"] & np.uint64(0xFFFFFFFF) == _RELATIVE)]
    return int(found[0]) if len(found) else 0
