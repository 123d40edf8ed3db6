"""Valid ELF files for tests: compiled ones in a line, and a synthetic one with any number of symbols."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from otelgpu.elf.image import HEADER, SECTION, SEGMENT
from otelgpu.elf.symbols import SYMBOL

LIBRARY = r"""
    #include <stddef.h>
    __attribute__((noinline)) static int hidden_helper(int x) { return x * 3; }
    int exported(int x) { return hidden_helper(x) + 1; }
    __attribute__((weak)) int weak_one(int x) { return x; }
    int not_a_function = 7;

    int versioned_old(int x) { return x + 1; }
    int versioned_new(int x) { return x + 2; }
    __asm__(".symver versioned_old,versioned@VERS_1");
    __asm__(".symver versioned_new,versioned@@VERS_2");

    static int picked(int x) { return x; }
    static int (*resolve_indirect(void))(int) { return picked; }
    int indirect(int x) __attribute__((ifunc("resolve_indirect")));

    int undefined_elsewhere(int);
    int calls_out(int x) { return undefined_elsewhere(x); }

    __asm__(".text\n.globl sizeless\n.type sizeless,@function\nsizeless:\n nop\n nop\n nop\n nop\n ret\n");
    int after_sizeless(int x) { return x - 1; }
"""
VERSIONS = "VERS_1 { global: *; };\nVERS_2 { global: versioned; } VERS_1;\n"
PROGRAM = "int main(void) { return 0; }\n"


def compiler(name: str = "gcc") -> str:
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed")
    return path


def compile_c(folder: Path, name: str, source: str, *options: str, with_compiler: str = "gcc") -> Path:
    suffix = ".cc" if with_compiler == "g++" else ".c"
    text = folder / f"{name}{suffix}"
    text.write_text(source)
    output = folder / name
    command = [compiler(with_compiler), "-O1", "-o", str(output), str(text), *options]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return output


def compile_library(folder: Path, name: str = "libsample.so.1", *options: str) -> Path:
    script = folder / "versions.map"
    script.write_text(VERSIONS)
    return compile_c(
        folder,
        name,
        LIBRARY,
        *("-shared", "-fPIC", f"-Wl,-soname,{name}", f"-Wl,--version-script={script}", "-Wl,--build-id=sha1"),
        *options,
    )


def synthetic_elf(symbol_count: int, *, size: int = 0, names: Sequence[str] = ("f",)) -> bytes:
    """A file with one executable segment and ``symbol_count`` global functions, four bytes apart."""
    strings = b"\0" + b"".join(name.encode() + b"\0" for name in names)
    places = np.cumsum([1, *(len(name) + 1 for name in names[:-1])])
    symbols = np.zeros(symbol_count, SYMBOL)
    symbols["name"] = places[np.arange(symbol_count) % len(names)]
    symbols["info"] = 1 << 4 | 2
    symbols["section"] = 1
    symbols["value"] = 0x1000 + 4 * np.arange(symbol_count)
    symbols["size"] = size

    segment = np.zeros(1, SEGMENT)
    segments_at = HEADER.itemsize
    strings_at = segments_at + SEGMENT.itemsize
    symbols_at = strings_at + len(strings)
    sections_at = symbols_at + symbols.nbytes
    total = sections_at + 3 * SECTION.itemsize
    segment["type"], segment["flags"] = 1, 5
    segment["address"], segment["file_size"], segment["memory_size"] = 0x1000, total, total

    sections = np.zeros(3, SECTION)
    sections["type"] = [0, 2, 3]  # null, symtab, strtab
    sections["link"] = [0, 2, 0]
    sections["offset"] = [0, symbols_at, strings_at]
    sections["size"] = [0, symbols.nbytes, len(strings)]
    sections["entry_size"] = [0, SYMBOL.itemsize, 0]

    header = np.zeros(1, HEADER)
    header["magic"] = int.from_bytes(b"\x7fELF", "little")
    header["file_class"], header["data"], header["type"], header["machine"] = 2, 1, 3, 62
    header["segments_at"], header["segment_size"], header["segment_count"] = segments_at, SEGMENT.itemsize, 1
    header["sections_at"], header["section_size"], header["section_count"] = sections_at, SECTION.itemsize, 3
    return b"".join((header.tobytes(), segment.tobytes(), strings, symbols.tobytes(), sections.tobytes()))


def crowded_elf(section_count: int, *, names_bytes: int = 1 << 15) -> bytes:
    """A file with nothing but sections, of symbols, whose names are as long as may be, and nearly all different."""
    names_at = HEADER.itemsize + SEGMENT.itemsize
    sections_at = names_at + names_bytes
    segment = np.zeros(1, SEGMENT)
    segment["type"], segment["flags"] = 1, 5
    segment["address"], segment["memory_size"] = 0x1000, sections_at
    segment["file_size"] = sections_at

    sections = np.zeros(section_count, SECTION)
    sections["type"][1:] = 11  # SHT_DYNSYM
    sections["name"] = np.arange(section_count) % (names_bytes - 1)
    sections["offset"], sections["link"] = names_at, 1
    sections["size"] = sections["entry_size"] = SYMBOL.itemsize
    sections["type"][1], sections["size"][1] = 3, names_bytes  # SHT_STRTAB
    sections["size"][0] = section_count

    header = np.zeros(1, HEADER)
    header["magic"] = int.from_bytes(b"\x7fELF", "little")
    header["file_class"], header["data"], header["type"], header["machine"] = 2, 1, 3, 62
    header["segments_at"], header["segment_size"], header["segment_count"] = (
        HEADER.itemsize,
        SEGMENT.itemsize,
        1,
    )
    header["sections_at"], header["section_size"], header["names_section"] = sections_at, SECTION.itemsize, 1
    names = (b"s" * (names_bytes - 1)) + b"\0"
    return b"".join((header.tobytes(), segment.tobytes(), names, sections.tobytes()))


def registering_elf(anchors: int, *, load_count: int = 1000) -> bytes:
    """A file whose code looks as if it registered kernels all the time, by calls to where nothing is mapped."""
    block = b"\x41\xb8\xff\xff\xff\xff" + b"\xe8\x00\x00\x00\x7f" * 24
    code = block * anchors
    segments_at = HEADER.itemsize
    code_at = segments_at + load_count * SEGMENT.itemsize
    sections_at = code_at + len(code)

    segments = np.zeros(load_count, SEGMENT)
    segments["type"], segments["flags"] = 1, 4
    segments["address"] = 0x10000000 + 0x1000 * np.arange(load_count)
    segments["file_size"] = segments["memory_size"] = 16
    segments["flags"][0], segments["address"][0], segments["offset"][0] = 5, 0x1000, code_at
    segments["file_size"][0] = segments["memory_size"][0] = len(code)

    sections = np.zeros(2, SECTION)
    sections["type"][1], sections["flags"][1] = 1, 6
    sections["address"][1], sections["offset"][1], sections["size"][1] = 0x1000, code_at, len(code)

    header = np.zeros(1, HEADER)
    header["magic"] = int.from_bytes(b"\x7fELF", "little")
    header["file_class"], header["data"], header["type"], header["machine"] = 2, 1, 3, 62
    header["segments_at"], header["segment_size"], header["segment_count"] = (
        segments_at,
        SEGMENT.itemsize,
        load_count,
    )
    header["sections_at"], header["section_size"], header["section_count"] = sections_at, SECTION.itemsize, 2
    return b"".join((header.tobytes(), segments.tobytes(), code, sections.tobytes()))
