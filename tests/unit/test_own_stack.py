"""Programs on uprobes have a tail call, without which kernels from 6.13 on have threads share their stacks."""

from __future__ import annotations

import io
import struct
from typing import Final

import pytest
from elftools.elf.elffile import ELFFile

from otelgpu.engine.registry import with_records
from otelgpu.kernel.attach import PROBES, functions_of
from otelgpu.kernel.loader import read_image

TAIL_CALL: Final = struct.pack(
    "<BBHi", 0x85, 0, 0, 12
)  # BPF_JMP | BPF_CALL, helper 12: include/uapi/linux/bpf.h


@pytest.mark.parametrize("family", with_records())
def test_each_program_on_a_uprobe_keeps_its_own_stack(family: str) -> None:
    image = read_image(family)
    programs = {
        section.name: section.data()
        for section in ELFFile(io.BytesIO(image.data)).iter_sections()
        if section.name.partition("/")[0] in PROBES
    }
    places = functions_of(image) or family == "probe"  # whose places a user names
    assert bool(programs) == bool(places)
    assert [name for name, code in programs.items() if TAIL_CALL not in code] == []
