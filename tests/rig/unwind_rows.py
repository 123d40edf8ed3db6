"""Unwind tables as the program makes them (``otelgpu/unwinder``), to be looked into."""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np
import numpy.typing as npt

from otelgpu.elf.eh_frame import Frames, find_frames
from otelgpu.elf.image import ElfImage
from otelgpu.families.profiles.discover.unwinder import Unwinder

ROW: Final = np.dtype([("pc", "<u4"), ("cfa", "<i2"), ("rule", "u1"), ("rbp", "i1")])
"""struct unwind_row; a test compares it, and the numbers below, with the BPF programs' own."""


class Cfa(IntEnum):
    """``enum unwind_cfa``: how the address above the return address is found."""

    NONE = 0
    RSP = 1
    RBP = 2
    PLT = 3
    AT_RBP = 4
    AT_RSP = 5
    SIGNAL = 6
    END = 7
    UNSUPPORTED = 8


class Rbp(IntEnum):
    """``enum unwind_rbp``: where the caller's rbp is."""

    SAME = 0
    AT_CFA = 1
    AT_RBP = 2


@dataclass(frozen=True, slots=True)
class UnwindTable:
    """``rows``: shape (n,), :data:`ROW`, ascending by ``pc``."""

    rows: npt.NDArray[np.void]
    damaged: int


def table_of(descriptor: int, frames: Frames) -> UnwindTable:
    """Of an open file. Raises `UnwinderError`."""
    with Unwinder().rows(descriptor, frames) as rows:
        return UnwindTable(np.frombuffer(b"".join(rows.parts(1)), ROW), rows.damaged)


def unwind_table(content: bytes, address: int) -> UnwindTable:
    """Of a section that is loaded at ``address``."""
    descriptor = os.memfd_create("section")
    try:
        os.write(descriptor, content)
        return table_of(descriptor, Frames(offset=0, size_bytes=len(content), address=address))
    finally:
        os.close(descriptor)


def read_unwind_table(image: ElfImage) -> UnwindTable:
    """Of a file. Raises `ElfError`: it has none."""
    frames = find_frames(image)
    content = bytes(image.buffer[frames.offset : frames.offset + frames.size_bytes])
    return unwind_table(content, frames.address)
