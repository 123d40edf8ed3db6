"""``.eh_frame``: where in a file it lies.

In: an image. Out: :class:`Frames`, by which the program that reads the section finds it
(:mod:`otelgpu.families.profiles.discover.unwinder`, ``otelgpu/unwinder``): nothing in it is looked at here. Opens
nothing.

Sources: Linux Standard Base Core 5.0, 10.6 (``.eh_frame``, ``.eh_frame_hdr``).
"""

from __future__ import annotations

import struct
from typing import Final

from msgspec import Struct

from otelgpu.elf.image import ElfError, ElfImage

MAX_BYTES: Final = 96 << 20
"""SECTION_LIMIT of frames.h; libtorch_cpu.so has 20 MB."""
PT_GNU_EH_FRAME: Final = 0x6474E550


class Frames(Struct, frozen=True, kw_only=True):
    """A section of ``size_bytes`` from ``offset`` of the file on, which is loaded at ``address`` of it."""

    offset: int
    size_bytes: int
    address: int


def find_frames(image: ElfImage) -> Frames:
    """Those of a file. Raises ElfError: it has none, or they cannot be read."""
    if image.machine != "x86-64":
        raise ElfError(f"stacks are unwound on x86-64 only, the file is for {image.machine}")
    section = image.section(".eh_frame")
    if section is not None:
        return _frames(section.offset, len(section.content), section.address)
    header = image.segment(PT_GNU_EH_FRAME)  # the section headers were cut off
    if header is None:
        raise ElfError("the file has no .eh_frame")
    address = _address_in(header.content, header.address)
    offset = image.data_offset_of(address)
    if offset is None:
        raise ElfError(f"damaged .eh_frame_hdr: there is no .eh_frame at {address:#x}")
    return _frames(offset, len(image.content_at(address)), address)


def _frames(offset: int, size_bytes: int, address: int) -> Frames:
    if not 0 < size_bytes <= MAX_BYTES:
        raise ElfError(f".eh_frame of {size_bytes} bytes: the limit is {MAX_BYTES}")
    if address >> 63:
        raise ElfError(f".eh_frame at {address:#x}: no file of user space has one there")
    return Frames(offset=offset, size_bytes=size_bytes, address=address)


def _address_in(header: memoryview, address: int) -> int:
    """Where ``.eh_frame`` is, by ``.eh_frame_hdr``: version, three encodings, pointer."""
    if len(header) < 8 or header[0] != 1 or header[1] not in (0x1B, 0x03):
        raise ElfError("damaged .eh_frame_hdr, or one of an unknown encoding")
    (value,) = struct.unpack_from("<i", header, 4)
    return int(value) + (address + 4 if header[1] == 0x1B else 0)
