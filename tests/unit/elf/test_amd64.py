"""Lengths of amd64 instructions, against binutils' disassembler, and on bytes that are no code; where code returns."""

from __future__ import annotations

import re
import shutil
import subprocess
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.elf.amd64 import MAX_INSTRUCTION_BYTES, UnknownInstruction, instructions, returns

COUNT = 40_000
LINE = re.compile(r"\s+([0-9a-f]+):\t((?:[0-9a-f]{2} )+)\s*\t(.+)")
JUMP = re.compile(r"(?:j[a-z]+|loop[a-z]*)(?:,p[nt])? +([0-9a-f]+)(?: |$)")


def disassembled(program: Path) -> list[tuple[int, bytes, str]]:
    """The first instructions of its code: where they are, their bytes, and what they are."""
    if shutil.which("objdump") is None:
        pytest.skip("objdump is not installed")
    command = ["objdump", "-d", "-w", "-z", "-j", ".text", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        found = (LINE.match(line) for line in process.stdout)
        listed = [
            (int(one[1], 16), bytes.fromhex(one[2]), one[3]) for one in islice(filter(None, found), COUNT)
        ]
        process.kill()
    return listed


@pytest.mark.parametrize("program", ["/usr/local/go/bin/gofmt", "/lib/x86_64-linux-gnu/libc.so.6"])
def test_lengths_and_jumps_are_those_of_the_disassembler(program: str) -> None:
    if not Path(program).exists():
        pytest.skip(f"{program} is not here")
    listed = disassembled(Path(program))
    assert len(listed) == COUNT
    wrong = []
    for at, code, what in listed:
        one = next(instructions(code + bytes(16)))
        jump = JUMP.match(what)
        if one.size != len(code) or one.target != (int(jump[1], 16) - at if jump is not None else None):
            wrong.append((code.hex(), what, one))
    assert wrong == []


@pytest.mark.parametrize(
    ("code", "length"),
    [
        ("c3", 1),
        ("48b8c3c3c3c3c3c3c3c3", 10),  # mov rax, imm64
        ("66b8c3c3", 4),
        ("f604c5c3c3c3c3c3", 8),  # test byte [rax*8+disp32], imm8
        ("f714c5c3c3c3c3", 7),  # not
        ("c5f877", 3),  # vzeroupper
        ("c4e37d0fc3c3", 6),  # vpalignr with an immediate
        ("62f17c4828 04c5c3c3c3c3", 11),  # vmovaps zmm
        ("a0c3c3c3c3c3c3c3c3", 9),
        ("67a0c3c3c3c3", 6),
    ],
)
def test_an_immediate_is_no_instruction(code: str, length: int) -> None:
    assert next(instructions(bytes.fromhex(code) + bytes(16))).size == length


@pytest.mark.parametrize("code", ["06", "8fe878c2ec0e", "0f0f541af2b7", "66" * 16, "48", "e8000000", "c5f8"])
def test_what_is_no_instruction_is_refused(code: str) -> None:
    with pytest.raises(UnknownInstruction):
        list(instructions(bytes.fromhex(code)))


@pytest.mark.parametrize(
    ("code", "places"),
    [
        ("c3", [0]),
        ("7401 90 c3 cc", [3]),
        ("90 f3c3 0f84f7ffffff c3", [1, 9]),  # with a prefix; a long jump to the beginning
        ("b8c3c3c3c3 c3", [5]),
    ],
)
def test_a_function_returns_where_it_does(code: str, places: list[int]) -> None:
    assert returns(bytes.fromhex(code)) == places


@pytest.mark.parametrize(
    "code",
    [
        "eb01 b8c3c3c3c3 c3",  # into an instruction: what is here may be no code
        "7410 c3",  # out of the function
        "e9f0ffffff c3",
        "c20800",
        "cb",
    ],
)
def test_a_function_that_may_be_left_elsewhere_is_refused(code: str) -> None:
    with pytest.raises(UnknownInstruction):
        returns(bytes.fromhex(code))


@given(st.binary(max_size=200))
def test_any_bytes_are_understood_or_refused(code: bytes) -> None:
    try:
        found = list(instructions(code))
    except UnknownInstruction:
        return
    assert [each.at for each in found[1:]] == [each.at + each.size for each in found[:-1]]
    assert sum(each.size for each in found) == len(code)
    assert all(0 < each.size <= MAX_INSTRUCTION_BYTES for each in found)
