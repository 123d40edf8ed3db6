"""Sections and variables of our own BPF objects, as the compiler's own reader finds them."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

import otelgpu
from otelgpu.elf.object_file import ObjectFile

OBJECTS = sorted((Path(otelgpu.__file__).parent / "_bpf").glob("*.bpf.o"))


@pytest.mark.parametrize("path", OBJECTS, ids=lambda path: path.name)
def test_sections_and_variables_are_those_that_pyelftools_finds(path: Path) -> None:
    data = path.read_bytes()
    found, expected = ObjectFile(data), ELFFile(io.BytesIO(data))
    sections = list(expected.iter_sections())
    assert [each.name for each in found.sections] == [each.name for each in sections]
    for ours, theirs in zip(found.sections, sections, strict=True):
        assert bytes(ours.content) == (b"" if theirs["sh_type"] == "SHT_NOBITS" else theirs.data())
    objects = {
        (sections[symbol["st_shndx"]].name, symbol.name): (symbol["st_value"], symbol["st_size"])
        for symbol in expected.get_section_by_name(".symtab").iter_symbols()
        if symbol["st_info"]["type"] == "STT_OBJECT"
    }
    assert {(s, n): v for s, names in found.variables.items() for n, v in names.items()} == objects
    assert found.content(".BTF") == expected.get_section_by_name(".BTF").data()
    assert found.content(".nothing") is None


@pytest.mark.parametrize("data", [b"", b"\x7fELF\x01\x01" + bytes(100), b"MZ" + bytes(100)])
def test_what_is_no_elf_file_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="not a 64-bit"):
        ObjectFile(data)


def test_a_file_that_ends_in_its_headers_is_refused() -> None:
    with pytest.raises(struct.error):
        ObjectFile(b"\x7fELF\x02\x01\x01" + bytes(20))
