"""One frame to its caller's, by call frame information: of a table made by hand, and of anything."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.elf.call_frames import RETURN_ADDRESS, RSP, NoFrame, caller_of, find_entry

CODE, FRAMES, HEADER, STACK = 0x401000, 0x500000, 0x600000, 0x7000
RBP = 6
PUSHED, MOVED = 1, 4
"""Where `push %rbp` and `mov %rsp,%rbp` end, of the function at CODE."""


class Memory:
    """Pieces at addresses."""

    def __init__(self, **pieces: tuple[int, bytes]) -> None:
        self._pieces = pieces.values()

    def read(self, address: int, count: int) -> bytes:
        for start, data in self._pieces:
            if start <= address and address + count <= start + len(data):
                return data[address - start : address - start + count]
        raise OSError("nothing is mapped there")


def entry(data: bytes) -> bytes:
    data += bytes(-(4 + len(data)) % 8)
    return struct.pack("<I", len(data)) + data


def frames(augmentation: bytes = b"zR") -> bytes:
    """A CIE and the FDE of a function of 32 bytes that begins with a frame of its own."""
    # version 1, factors 1 and -8, RA in 16, pcrel sdata4; CFA = rsp+8, RA at CFA-8
    common = entry(bytes(4) + b"\x01" + augmentation + b"\0\x01\x78\x10\x01\x1b" + b"\x0c\x07\x08\x90\x01")
    at = FRAMES + len(common) + 8
    # advance 1; CFA = rsp+16, rbp at CFA-16; advance 3; CFA = rbp+16
    own = struct.pack("<Iii", len(common) + 4, CODE - at, 32) + b"\0" + b"\x41\x0e\x10\x86\x02\x43\x0d\x06"
    return common + entry(own)


def header(data: bytes) -> bytes:
    own = FRAMES + 4 + struct.unpack_from("<I", data)[0]
    table = struct.pack("<ii", CODE - HEADER, own - HEADER)
    return b"\x01\x1b\x03\x3b" + struct.pack("<iI", FRAMES - HEADER - 4, 1) + table


def memory(data: bytes | None = None) -> Memory:
    data = data if data is not None else frames()
    stack = struct.pack("<4Q", 0xB0B, 0x402345, 3, 4)
    return Memory(frames=(FRAMES, data), header=(HEADER, header(data)), stack=(STACK, stack))


def registers(pc: int, sp: int, bp: int = 0x1234) -> dict[int, int]:
    return {**dict.fromkeys(range(16), 0), RBP: bp, RSP: sp, RETURN_ADDRESS: pc}


@pytest.mark.parametrize(
    ("offset", "sp", "bp", "expected_bp"),
    [(0, STACK + 8, 0x1234, 0x1234), (PUSHED, STACK, 0x1234, 0xB0B), (MOVED + 9, 0x10, STACK, 0xB0B)],
)
def test_the_caller_is_found_at_each_instruction(offset: int, sp: int, bp: int, expected_bp: int) -> None:
    caller = caller_of(memory().read, HEADER, 20, registers(CODE + offset, sp, bp), is_leaf=True)
    assert caller.registers is not None and not caller.is_interrupted
    assert caller.registers[RETURN_ADDRESS] == 0x402345
    assert caller.registers[RSP] == STACK + 16
    assert caller.registers[RBP] == expected_bp


def test_where_a_call_returns_to_belongs_to_the_call() -> None:
    end = registers(CODE + 32, 0, STACK)
    assert caller_of(memory().read, HEADER, 20, end, is_leaf=False).registers is not None
    with pytest.raises(NoFrame, match="no entry"):
        caller_of(memory().read, HEADER, 20, end, is_leaf=True)


def test_a_frame_of_a_signal_says_so() -> None:
    found = memory(frames(b"zRS"))
    assert caller_of(found.read, HEADER, 20, registers(CODE, STACK + 8), is_leaf=True).is_interrupted


def test_a_table_of_an_impossible_size_is_not_searched() -> None:
    with pytest.raises(NoFrame, match="impossible size"):
        find_entry(memory().read, HEADER, 12, CODE)


@given(st.binary(min_size=48, max_size=200), st.integers(0, 40))
def test_anything_is_a_frame_or_none(noise: bytes, offset: int) -> None:
    for data in (noise, frames()[:offset] + noise):
        found = Memory(
            frames=(FRAMES, data + bytes(512)),
            header=(HEADER, header(frames())),
            stack=(STACK, bytes(64)),
        )
        try:
            caller_of(found.read, HEADER, 20, registers(CODE + offset, STACK), is_leaf=True)
        except (NoFrame, OSError):
            continue
