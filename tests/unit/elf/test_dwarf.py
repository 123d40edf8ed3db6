"""Members of a struct in sections made by hand: what pyelftools does not read is damaged, and no more."""

from __future__ import annotations

import struct

import pytest

from otelgpu.elf.dwarf import struct_members
from otelgpu.elf.struct_member import Member

STRINGS = b"\0wanted\0member\0"
WANTED, MEMBER = STRINGS.index(b"wanted"), STRINGS.index(b"member")
STRP, DATA1, ADDR, REF4 = 0x0E, 0x0B, 0x01, 0x13
UNIT, STRUCT, TAG_MEMBER = 0x11, 0x13, 0x0D
SIBLING, NAME, SIZE, LOCATION = 0x01, 0x03, 0x0B, 0x38


def abbreviation(code: int, tag: int, *attributes: tuple[int, int], children: bool = True) -> bytes:
    words = bytes(byte for attribute in attributes for byte in attribute)
    return bytes([code, tag, children]) + words + b"\0\0"


def members(sibling_form: int, sibling: bytes) -> dict[str, Member] | None:
    """Of ``struct wanted { member; }`` whose member has children, and says where its sibling is."""
    abbreviations = (
        abbreviation(1, UNIT)
        + abbreviation(2, STRUCT, (NAME, STRP), (SIZE, DATA1))
        + abbreviation(3, TAG_MEMBER, (NAME, STRP), (LOCATION, DATA1), (SIBLING, sibling_form))
        + b"\0"
    )
    entries = b"\1\2" + struct.pack("<IB", WANTED, 16) + b"\3" + struct.pack("<IB", MEMBER, 8) + sibling
    entries += b"\0\0\0"
    unit = struct.pack("<HIB", 4, 0, 8) + entries
    return struct_members(struct.pack("<I", len(unit)) + unit, abbreviations, STRINGS, b"", "wanted")


def test_a_member_is_found() -> None:
    after = 11 + 2 + 5 + 1 + 5 + 4 + 1  # header, entries before, the member itself, the end of its children
    assert members(REF4, struct.pack("<I", after)) == {"member": Member(8, 1)}


@pytest.mark.parametrize(
    ("form", "sibling"),
    [
        pytest.param(ADDR, struct.pack("<Q", 1), id="an address"),
        pytest.param(REF4, struct.pack("<I", 0xFFFF_FFF0), id="outside"),
    ],
)
def test_a_sibling_that_cannot_be_gives_no_members(form: int, sibling: bytes) -> None:
    assert members(form, sibling) is None
