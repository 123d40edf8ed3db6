"""Programs on uprobes have a tail call, without which kernels from 6.13 on have threads share their stacks."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

import otelgpu

FOLDER = Path(otelgpu.__file__).parent / "_bpf"
TAIL_CALL = struct.pack("<BBHi", 0x85, 0, 0, 12)  # BPF_JMP | BPF_CALL, helper 12: include/uapi/linux/bpf.h
KINDS = ("uprobe/", "uretprobe/", "usession/")


def sections(content: bytes) -> Iterator[tuple[str, bytes]]:
    """(name, content) of an ELF64 file's."""
    (at,) = struct.unpack_from("<Q", content, 40)
    size, count, names = struct.unpack_from("<HHH", content, 58)
    headers = [struct.unpack_from("<IIQQQQ", content, at + place * size) for place in range(count)]
    for name, _, _, _, offset, length in headers:
        begin = headers[names][4] + name
        yield content[begin : content.index(b"\0", begin)].decode(), content[offset : offset + length]


@pytest.mark.parametrize("family", ["verbs"])
def test_each_program_on_a_uprobe_keeps_its_own_stack(family: str) -> None:
    programs = {
        name: code
        for name, code in sections((FOLDER / f"{family}.bpf.o").read_bytes())
        if name.startswith(KINDS)
    }
    assert programs
    assert [name for name, code in programs.items() if TAIL_CALL not in code] == []
