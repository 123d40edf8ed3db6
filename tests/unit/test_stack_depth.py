"""BPF programs have 512 bytes of stack for a whole chain of calls: what the verifiers of all kernels say of it."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import BytesIO
from itertools import chain
from typing import Final

import pytest
from elftools.elf.elffile import ELFFile

from otelgpu.engine.registry import with_records
from otelgpu.kernel.loader import read_image

LIMIT: Final = 512  # MAX_BPF_STACK

# include/uapi/linux/bpf.h, bpf_common.h: an instruction is an opcode, two registers, an offset and a constant.
_INSTRUCTION: Final = struct.Struct("<BBhi")
_LOAD_64, _CALL, _MOVE, _ADD = 0x18, 0x85, 0xBF, 0x07
_LOAD_CLASS, _STORE_CLASSES = 1, (2, 3)
_STACK, _OF_THE_OBJECT = 10, 1

Place = tuple[int, int]
"""Number of a section, and an offset in it."""


@dataclass(slots=True)
class Function:
    """``bytes`` of stack that it reaches down to, and the functions of the object that it calls."""

    name: str
    section: str
    bytes: int = 0
    calls: set[Place] = field(default_factory=set)


def functions_in(content: bytes) -> dict[Place, Function]:
    """All of an object."""
    elf = ELFFile(BytesIO(content))
    symbols = list(elf.get_section_by_name(".symtab").iter_symbols())
    targets = {
        (section["sh_info"], entry["r_offset"]): symbols[entry["r_info_sym"]]
        for section in elf.iter_sections("SHT_REL")
        for entry in section.iter_relocations()
    }
    found = {}
    for symbol in symbols:
        if symbol["st_info"]["type"] != "STT_FUNC":
            continue
        number, begin = symbol["st_shndx"], symbol["st_value"]
        section = elf.get_section(number)
        function = found[number, begin] = Function(symbol.name, section.name)
        copies: set[int] = set()  # registers that have the stack's address
        for at, (opcode, registers, offset, constant) in instructions(
            section.data(), begin, symbol["st_size"]
        ):
            into, of = registers & 15, registers >> 4
            stores = opcode & 7 in _STORE_CLASSES and into == _STACK
            if opcode == _MOVE and of == _STACK:
                copies.add(into)
            elif opcode == _ADD and into in copies:
                function.bytes = max(function.bytes, -constant)
                copies.discard(into)
            elif stores or (opcode & 7 == _LOAD_CLASS and of == _STACK):
                function.bytes = max(function.bytes, -offset)
            elif opcode == _CALL and of == _OF_THE_OBJECT:
                behind = 8 * (constant + 1)
                target = targets.get((number, at))
                function.calls.add(
                    (number, at + behind)
                    if target is None
                    else (target["st_shndx"], target["st_value"] + behind)
                )
    return found


def instructions(code: bytes, begin: int, size: int) -> Iterator[tuple[int, tuple[int, int, int, int]]]:
    """(offset, (opcode, registers, offset of a jump or access, constant)) of a function."""
    at = begin
    while at < begin + size:
        instruction = _INSTRUCTION.unpack_from(code, at)
        yield at, instruction
        at += 16 if instruction[0] == _LOAD_64 else 8


def deepest(functions: dict[Place, Function], at: Place, grain: int) -> tuple[int, list[str]]:
    """The most stack of any chain of calls from a function on, and the chain."""
    mine = functions[at]
    most, names = max((deepest(functions, each, grain) for each in mine.calls), default=(0, []))
    return most + -(-max(mine.bytes, 1) // grain) * grain, [f"{mine.name} {mine.bytes}", *names]


@pytest.mark.parametrize("family", [*with_records(), "process"])
def test_every_chain_of_calls_fits_the_stack(family: str) -> None:
    functions = functions_in(read_image(family).data)
    called = set(chain.from_iterable(each.calls for each in functions.values()))
    programs = functions.keys() - called
    assert programs and called <= functions.keys()
    for at in programs:
        # check_max_stack_depth() of kernel/bpf/verifier.c. Sessions are of Linux 6.13 and later, which round up to 16.
        grain = 16 if functions[at].section.startswith("usession/") else 32
        most, names = deepest(functions, at, grain)
        assert most <= LIMIT, f"{most} bytes: {' > '.join(names)}"
