"""A Go program for tests, as far as its table of functions goes: otelgpu/elf/go.py."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final, Literal

import numpy as np

from otelgpu.elf.image import DYNAMIC, HEADER, SECTION, SEGMENT
from otelgpu.elf.tls import RELOCATION

ADDRESS: Final = 0x400000  # of the file's first byte
PROLOGUE: Final = b"\x49\x3b\x66\x10\x76\x01\xc3"  # cmp rsp, [r14+0x10]; jbe to what follows; ret
FUNCTION: Final = PROLOGUE + b"\x90\xc3"  # it returns at 6 and 8
_ALIGN: Final = 32

Base = Literal["header", "module", "relocation", "text"]
"""What says where the code begins: up to Go 1.25, from 1.26 on, a relocation of the latter, or that section itself."""


def go_elf(
    functions: Mapping[str, bytes], base: Base = "header", *, before: int = 0, build_info: bytes = b""
) -> bytes:
    """``functions``: name → code. ``before``: bytes of ``.text`` that the C linker put before Go's.

    ``build_info``: what follows its magic.
    """
    code, entries = b"", []
    for each in functions.values():
        entries.append(len(code))
        code += each + b"\xcc" * (-len(each) % _ALIGN)
    text_at = HEADER.itemsize + 2 * SEGMENT.itemsize
    begins = ADDRESS + text_at + before
    module = bytes(176) + (begins if base == "module" else 0).to_bytes(8, "little") + bytes(8)
    contents = {
        ".text": b"\xc3" * before + code,
        ".gopclntab": _table(functions, entries, len(code), begins if base == "header" else 0),
        ".go.buildinfo": b"\xff Go buildinf:" + build_info,
        ".go.module": module,
        ".rela.dyn": b"",
        ".dynamic": b"",
    }
    names = b"\0" + b"".join(name.encode() + b"\0" for name in (*contents, ".shstrtab"))
    places, at = {}, text_at
    for name, content in contents.items():
        places[name] = at
        if base == "relocation" and name == ".rela.dyn":
            address = ADDRESS + places[".go.module"] + 176
            contents[name] = content = np.array([(address, 8, begins)], RELOCATION).tobytes()
        elif base == "relocation" and name == ".dynamic":
            rows = [(7, ADDRESS + places[".rela.dyn"]), (8, RELOCATION.itemsize), (0, 0)]
            contents[name] = content = np.array(rows, DYNAMIC).tobytes()
        at += len(content) + -len(content) % 8
    contents[".shstrtab"], places[".shstrtab"] = names, at
    return _file(contents, places, names)


def _table(functions: Mapping[str, bytes], entries: list[int], end: int, begins: int) -> bytes:
    names, offsets = b"\0go:buildid\0", []
    for name in functions:
        offsets.append(len(names))
        names += name.encode() + b"\0"
    names_at = 72
    functions_at = names_at + len(names) + -len(names) % 4
    count = len(entries)
    first = 4 * (2 * count + 1)  # of the structs, from the pairs on
    pairs = [word for number, entry in enumerate(entries) for word in (entry, first + 8 * number)]
    structs = [word for entry, offset in zip(entries, offsets, strict=True) for word in (entry, offset)]
    header = b"\xf1\xff\xff\xff\0\0\1\x08" + struct.pack(
        "<8Q", count, 1, begins, names_at, names_at + len(names), functions_at, functions_at, functions_at
    )
    words = struct.pack(f"<{4 * count + 1}I", *pairs, end, *structs)
    return header + names.ljust(functions_at - names_at, b"\0") + words


def _file(contents: Mapping[str, bytes], places: Mapping[str, int], names: bytes) -> bytes:
    sections_at = places[".shstrtab"] + len(names) + -len(names) % 8
    sections = np.zeros(len(contents) + 1, SECTION)
    for row, (name, content) in zip(sections[1:], contents.items(), strict=True):
        row["name"], row["type"], row["size"] = names.index(name.encode() + b"\0"), 1, len(content)
        row["offset"], row["address"] = places[name], ADDRESS + places[name]
    segments = np.zeros(2, SEGMENT)
    segments["type"], segments["flags"] = (1, 2), 7  # PT_LOAD, PT_DYNAMIC
    segments["offset"] = 0, places[".dynamic"]
    segments["address"] = segments["offset"] + ADDRESS
    segments["file_size"] = segments["memory_size"] = sections_at, len(contents[".dynamic"])

    header = np.zeros(1, HEADER)
    header["magic"] = int.from_bytes(b"\x7fELF", "little")
    header["file_class"], header["data"], header["type"], header["machine"] = 2, 1, 2, 62
    header["segments_at"], header["segment_size"], header["segment_count"] = (
        HEADER.itemsize,
        SEGMENT.itemsize,
        len(segments),
    )
    header["sections_at"], header["section_size"] = sections_at, SECTION.itemsize
    header["section_count"], header["names_section"] = len(sections), len(sections) - 1
    made = bytearray(sections_at) + sections.tobytes()
    made[: HEADER.itemsize + segments.nbytes] = header.tobytes() + segments.tobytes()
    for name, content in contents.items():
        made[places[name] : places[name] + len(content)] = content
    return bytes(made)
