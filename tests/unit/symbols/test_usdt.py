"""Where tracepoints of ELF files lie, and where they keep their arguments."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.elf.image import ElfError
from otelgpu.model.user_probes import REGISTERS, ArgumentSource, Reading
from otelgpu.processes.elf_files import open_elf
from otelgpu.symbols.usdt import _notes, reading_of, usdt_places

SOURCE = """
#define PROBE(name, arguments, ...) \\
	__asm__ volatile("990: nop\\n.pushsection .note.stapsdt,\\"\\",\\"note\\"\\n.balign 4\\n" \\
                         ".4byte 992f-991f,994f-993f,3\\n991: .asciz \\"stapsdt\\"\\n992: .balign 4\\n" \\
                         "993: .8byte 990b\\n.8byte _.stapsdt.base\\n.8byte counter\\n.asciz \\"own\\"\\n" \\
                         ".asciz \\"" name "\\"\\n.asciz \\"" arguments "\\"\\n994: .balign 4\\n.popsection\\n" \\
                         ".ifndef _.stapsdt.base\\n.pushsection .stapsdt.base,\\"aG\\",\\"progbits\\"," \\
                         ".stapsdt.base,comdat\\n.weak _.stapsdt.base\\n_.stapsdt.base: .space 1\\n" \\
                         ".popsection\\n.endif\\n" ::__VA_ARGS__)
unsigned short counter = 1;
int main(int argc, char **argv) { PROBE("first", "-4@%%edi 8@%%rsi"); PROBE("second", "8@$7"); return argc; }
"""


@pytest.mark.parametrize(
    ("text", "reading"),
    [
        ("8@%rdi", Reading(source=ArgumentSource.REGISTER, register=0)),
        ("-4@%eax", Reading(source=ArgumentSource.REGISTER, size=4, signed=True, register=6)),
        ("1@%r10b", Reading(source=ArgumentSource.REGISTER, size=1, register=REGISTERS.index("r10"))),
        ("8@%ecx", Reading(source=ArgumentSource.REGISTER, size=4, register=3)),
        ("-4@$-1", Reading(source=ArgumentSource.CONSTANT, size=4, signed=True, offset=-1)),
        ("8@$0x10", Reading(source=ArgumentSource.CONSTANT, offset=16)),
        ("2@-20(%rbp)", Reading(source=ArgumentSource.MEMORY, size=2, register=8, offset=-20)),
        ("8@(%rsp)", Reading(source=ArgumentSource.MEMORY, register=9)),
        ("8@8(%rax,%rcx,8)", None),
        ("8f@%xmm0", None),
        ("8@%xmm0", None),
        ("8@name(%rip)", None),
        ("3@%rax", None),
        ("", None),
    ],
)
def test_arguments_as_assemblers_write_them(text: str, reading: Reading | None) -> None:
    assert reading_of(text) == reading


@given(st.text(alphabet="8-@%$()rdiax,f0x", max_size=16))
def test_any_argument_is_read_or_passed_over(text: str) -> None:
    assert isinstance(reading_of(text), Reading | None)


def test_places_of_a_program(tmp_path: Path) -> None:
    (tmp_path / "x.c").write_text(SOURCE)
    program = tmp_path / "x"
    done = subprocess.run(
        ["gcc", "-O1", "-o", program, tmp_path / "x.c"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    with open_elf(program) as file:
        first, second = usdt_places(file.image)
        main = file.image.function_offsets(["main"])["main"]
        content = program.read_bytes()
    assert (first.provider, first.name, second.name) == ("own", "first", "second")
    assert main <= first.file_offset < second.file_offset < main + 64
    assert content[first.file_offset] == 0x90
    assert struct.unpack_from("<H", content, first.semaphore) == (1,)
    assert first.arguments == (
        Reading(source=ArgumentSource.REGISTER, size=4, signed=True, register=0),
        Reading(source=ArgumentSource.REGISTER, register=1),
    )


@given(st.binary(max_size=200))
def test_damaged_notes_are_an_error_or_nothing(data: bytes) -> None:
    try:
        list(_notes(data))
    except ElfError:
        pass


def test_a_note_that_is_cut_off_is_an_error() -> None:
    whole = struct.pack("<3I8s3Q", 8, 24 + 6, 3, b"stapsdt\0", 1, 0, 0) + b"a\0b\0\0\0"
    assert list(_notes(whole)) == [(1, 0, 0, "a", "b", "")]
    with pytest.raises(ElfError):
        list(_notes(whole[:-1]))
