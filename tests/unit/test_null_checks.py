"""What Linux 6.1 refuses and later kernels do not: to ask again whether a reserved record is NULL.

Its verifier does not know that the answer is no, so a record seems to be left that was neither submitted nor given
back. clang asks again behind a call that it cannot look into, where a macro names an expression twice.
"""

from __future__ import annotations

from io import BytesIO

import pytest
from elftools.elf.elffile import ELFFile

from otelgpu.engine.registry import with_records
from otelgpu.kernel.loader import read_image
from tests.unit.test_stack_depth import instructions

# Of include/uapi/linux/bpf.h: a call within the object, and jumps if a register is (not) a constant.
_CALL, _OF_THE_OBJECT = 0x85, 1
_JUMPS = (0x15, 0x55)
_KEPT = range(6, 10)
"""Registers that a call leaves as they are."""


def asked_again(content: bytes) -> list[str]:
    """Where a call is followed at once by a comparison with NULL of what was there before it."""
    elf = ELFFile(BytesIO(content))
    found = []
    for symbol in elf.get_section_by_name(".symtab").iter_symbols():
        if symbol["st_info"]["type"] != "STT_FUNC":
            continue
        code = elf.get_section(symbol["st_shndx"]).data()
        behind_call = False
        for at, (opcode, registers, _, constant) in instructions(code, symbol["st_value"], symbol["st_size"]):
            if behind_call and opcode in _JUMPS and registers & 15 in _KEPT and constant == 0:
                found.append(f"{symbol.name}+{at - symbol['st_value']}")
            behind_call = opcode == _CALL and registers >> 4 == _OF_THE_OBJECT
    return found


@pytest.mark.parametrize("family", [*with_records(), "process"])
def test_a_record_is_asked_for_null_once(family: str) -> None:
    assert asked_again(read_image(family).data) == []
