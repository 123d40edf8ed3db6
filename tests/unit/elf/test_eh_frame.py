"""Unwind tables are what the sections say, those of real libraries and those that lie."""

from __future__ import annotations

import struct
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from elftools.dwarf.callframe import FDE
from elftools.elf.elffile import ELFFile
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.elf.image import ElfError, ElfImage
from tests.rig.examples import examples
from tests.rig.unwind_rows import Cfa, Rbp, UnwindTable, read_unwind_table, unwind_table
from tests.unit.families.profiles.python.frames import ADDRESS, NOP, Frames, advance, cfa_offset, saved

LINKER = Path("/lib64/ld-linux-x86-64.so.2")
LIBC = Path("/lib/x86_64-linux-gnu/libc.so.6")

RSP_8 = (Cfa.RSP, 8, Rbp.SAME, 0)


def rule_at(table: UnwindTable, pc: int) -> tuple[Cfa, int, Rbp, int]:
    """(how the CFA is found, offset, where rbp is, offset), offsets in bytes."""
    place = int(np.searchsorted(table.rows["pc"], pc, side="right")) - 1
    if place < 0:
        return (Cfa.NONE, 0, Rbp.SAME, 0)
    row = table.rows[place]
    return Cfa(row["rule"] & 15), int(row["cfa"]) * 8, Rbp(row["rule"] >> 4), int(row["rbp"]) * 8


def table_of(code: bytes, *, size: int = 64) -> UnwindTable:
    """Of one function at 0x1000."""
    return unwind_table(Frames().shared().function(0x1000, size, code).content, ADDRESS)


def test_a_function_with_a_frame_pointer_has_a_row_for_each_part_of_it() -> None:
    code = advance(1) + cfa_offset(16) + saved(6, 2) + advance(3) + bytes((0x0D, 6))
    code += advance(20) + bytes((0x0C, 7, 8)) + bytes((0xC0 | 6,))
    table = table_of(code)
    assert [rule_at(table, 0x1000 + at) for at in (0, 1, 3, 4, 23, 24, 63, 64)] == [
        RSP_8,
        (Cfa.RSP, 16, Rbp.AT_CFA, -16),
        (Cfa.RSP, 16, Rbp.AT_CFA, -16),
        (Cfa.RBP, 16, Rbp.AT_CFA, -16),
        (Cfa.RBP, 16, Rbp.AT_CFA, -16),
        RSP_8,
        RSP_8,
        (Cfa.NONE, 0, Rbp.SAME, 0),
    ]


def test_rows_come_by_address_whatever_the_order_of_the_functions() -> None:
    frames = Frames().shared().function(0x3000, 16).function(0x1000, 16).function(0x1010, 16, cfa_offset(24))
    table = unwind_table(frames.content, ADDRESS)
    assert table.rows["pc"].tolist() == [0x1000, 0x1010, 0x1020, 0x3000, 0x3010]


def test_what_is_remembered_is_what_is_restored() -> None:
    code = (
        cfa_offset(32)
        + saved(6, 2)
        + advance(4)
        + b"\x0a"
        + cfa_offset(8)
        + bytes((0xC0 | 6,))
        + advance(4)
        + b"\x0b"
    )
    table = table_of(code)
    assert rule_at(table, 0x1004) == RSP_8
    assert rule_at(table, 0x1008) == (Cfa.RSP, 32, Rbp.AT_CFA, -16)


@pytest.mark.parametrize(
    ("code", "rule"),
    [
        (
            bytes((0x0F, 11, 0x77, 8, 0x80, 0, 0x3F, 0x1A, 0x3B, 0x2A, 0x33, 0x24, 0x22)),
            (Cfa.PLT, 88, Rbp.SAME, 0),
        ),
        (bytes((0x0F, 3, 0x76, 0x78, 6)) + bytes((0x10, 6, 2, 0x76, 0)), (Cfa.AT_RBP, -8, Rbp.AT_RBP, 0)),
        (bytes((0x0F, 4, 0x76, 0x90, 0x7F, 6)), (Cfa.AT_RBP, -112, Rbp.SAME, 0)),
        (bytes((0x0F, 3, 0x76, 0x38, 6)), (Cfa.AT_RBP, 56, Rbp.SAME, 0)),
        (bytes((0x0F, 3, 0x76, 0x40, 6)), (Cfa.AT_RBP, -64, Rbp.SAME, 0)),
        (bytes((0x0F, 3, 0x77, 8, 6)), (Cfa.AT_RSP, 8, Rbp.SAME, 0)),
        (bytes((0x0F, 3, 0x70, 8, 6)), (Cfa.UNSUPPORTED, 0, Rbp.SAME, 0)),
        (bytes((7, 16)), (Cfa.END, 0, Rbp.SAME, 0)),
        (bytes((0x0C, 10, 0)), (Cfa.UNSUPPORTED, 0, Rbp.SAME, 0)),
        (bytes((0x0C, 10, 0, 0x0D, 7)), (Cfa.RSP, 0, Rbp.SAME, 0)),
        (bytes((0x0E, 0x84, 0x20)), (Cfa.UNSUPPORTED, 0, Rbp.SAME, 0)),  # not whole words
        (bytes((0x0E, 0x80, 0x80, 1)), (Cfa.RSP, 16384, Rbp.SAME, 0)),
        (bytes((0x0E, 0x80, 0x80, 0x40)), (Cfa.UNSUPPORTED, 0, Rbp.SAME, 0)),  # a frame of a megabyte
        (bytes((0x13, 0x70)), (Cfa.RSP, 128, Rbp.SAME, 0)),
        (bytes((0x12, 6, 0x7E)), (Cfa.RBP, 16, Rbp.SAME, 0)),
        (bytes((5, 6, 3)), (Cfa.RSP, 8, Rbp.AT_CFA, -24)),
        (bytes((0x11, 6, 0x7E)), (Cfa.RSP, 8, Rbp.AT_CFA, 16)),
        (bytes((9, 16, 2)), (Cfa.UNSUPPORTED, 0, Rbp.SAME, 0)),  # returns by another register
        (bytes((0x86, 2, 8, 6)), RSP_8),
        (bytes((0x2E, 0x10)), RSP_8),
        (bytes((0x83, 5, 0x8C, 4)), RSP_8),  # other registers do not matter
    ],
)
def test_each_rule_is_read(code: bytes, rule: tuple[Cfa, int, Rbp, int]) -> None:
    assert rule_at(table_of(code), 0x1000) == rule


def test_a_function_says_nothing_of_what_is_behind_it() -> None:
    table = table_of(cfa_offset(16) + advance(16) + cfa_offset(24) + advance(16) + cfa_offset(32), size=16)
    assert rule_at(table, 0x100F) == (Cfa.RSP, 16, Rbp.SAME, 0)
    assert [rule_at(table, pc)[0] for pc in (0x1010, 0x1020)] == [Cfa.NONE, Cfa.NONE]


def test_long_steps_are_taken() -> None:
    code = b"\2\x80" + cfa_offset(16) + b"\3" + struct.pack("<H", 300) + cfa_offset(24)
    code += b"\4" + struct.pack("<I", 70000) + cfa_offset(32)
    table = table_of(code, size=100000)
    assert [rule_at(table, 0x1000 + at)[1] for at in (127, 128, 427, 428, 70427, 70428)] == [
        8,
        16,
        16,
        24,
        24,
        32,
    ]


def test_a_frame_of_a_signal_is_known_as_one() -> None:
    frames = Frames().shared(letters=b"zRS").function(0x1000, 9, bytes((0x0F, 4, 0x77, 0xA0, 1, 6)))
    assert rule_at(unwind_table(frames.content, ADDRESS), 0x1000)[0] is Cfa.SIGNAL


def test_an_unknown_instruction_ends_what_is_known_of_its_function_only() -> None:
    frames = Frames().shared()
    frames.function(0x1000, 16, advance(4) + cfa_offset(16) + b"\x3f" + advance(4)).function(0x1010, 16)
    table = unwind_table(frames.content, ADDRESS)
    assert rule_at(table, 0x1000) == RSP_8
    assert rule_at(table, 0x1004)[0] is Cfa.UNSUPPORTED
    assert rule_at(table, 0x1010) == RSP_8
    assert table.damaged == 1


@pytest.mark.parametrize("code", [b"\x0b", b"\x0a" * 5, b"\1\0\0\0\0"])
def test_instructions_that_make_no_sense_are_counted(code: bytes) -> None:
    table = table_of(code)
    assert table.damaged == 1
    assert rule_at(table, 0x1000)[0] is Cfa.UNSUPPORTED


def test_entries_of_no_known_cie_are_left_out_and_counted() -> None:
    frames = Frames().shared(letters=b"zR", data=b"\x9b").function(0x1000, 16)  # an indirect address
    frames.shared().function(0x1100, 16)
    frames.content += struct.pack("<III", 12, 4000, 0) + bytes(4)
    table = unwind_table(frames.content, ADDRESS)
    assert (rule_at(table, 0x1000)[0], rule_at(table, 0x1100)) == (Cfa.NONE, RSP_8)
    assert table.damaged == 3


def test_a_long_entry_is_read() -> None:
    frames = Frames().shared()
    at = len(frames.content)
    body = struct.pack("<I", at + 12) + struct.pack("<iI", 0x1000 - (ADDRESS + at + 16), 16) + b"\0" + NOP * 3
    frames.content += b"\xff\xff\xff\xff" + struct.pack("<Q", len(body)) + body
    assert rule_at(unwind_table(frames.content, ADDRESS), 0x1000) == RSP_8


def test_entries_after_a_terminator_are_read() -> None:
    frames = Frames().shared().function(0x1000, 16)
    frames.content += bytes(4)
    frames.shared().function(0x1100, 16)
    assert rule_at(unwind_table(frames.content, ADDRESS), 0x1100) == RSP_8


@pytest.mark.parametrize("cut", [3, 8, 20, 27, 40, 55])
def test_a_section_that_is_cut_off_keeps_what_is_whole(cut: int) -> None:
    content = Frames().shared().function(0x1000, 16).content
    table = unwind_table(content[:cut], ADDRESS)
    assert len(table.rows) == (2 if cut >= len(content) else 0)


def test_functions_beyond_four_gigabytes_are_counted_and_left_out() -> None:
    content = Frames().shared(data=b"\0").content
    content += struct.pack("<IIQQ", 28, len(content) + 4, 1 << 33, 16) + bytes(8)
    table = unwind_table(content, ADDRESS)
    assert (len(table.rows), table.damaged) == (0, 1)


def test_overlapping_functions_leave_the_rows_in_order() -> None:
    frames = Frames().shared()
    for start in range(0x1000, 0x1100, 8):
        frames.function(start, 64, advance(3) + cfa_offset(16) + advance(13) + cfa_offset(24))
    table = unwind_table(frames.content, ADDRESS)
    assert (np.diff(table.rows["pc"].astype(np.int64)) >= 0).all()


def test_where_one_function_ends_another_goes_on() -> None:
    """They overlap: what is known of an address comes before that one ends there."""
    frames = Frames().shared().function(0x1000, 64, advance(16) + cfa_offset(16)).function(0x1000, 16)
    table = unwind_table(frames.content, ADDRESS)
    assert rule_at(table, 0x1010) == (Cfa.RSP, 16, Rbp.SAME, 0)
    assert rule_at(table, 0x1040)[0] is Cfa.NONE


@pytest.mark.parametrize("first", ["the outer", "the inner"])
def test_of_two_functions_the_one_that_begins_later_is_believed_whichever_comes_first(first: str) -> None:
    outer, inner = (0x1000, 64, advance(16) + cfa_offset(16)), (0x1010, 16, cfa_offset(32))
    frames = Frames().shared()
    for each in (outer, inner) if first == "the outer" else (inner, outer):
        frames.function(*each)
    assert rule_at(unwind_table(frames.content, ADDRESS), 0x1010) == (Cfa.RSP, 32, Rbp.SAME, 0)


def test_functions_of_a_cie_that_makes_no_sense_are_left_out_and_counted() -> None:
    frames = Frames().shared(code=b"\x3f").function(0x1000, 16).function(0x1010, 16)
    frames.shared().function(0x1020, 16)
    table = unwind_table(frames.content, ADDRESS)
    assert [rule_at(table, pc)[0] for pc in (0x1000, 0x1010, 0x1020)] == [Cfa.NONE, Cfa.NONE, Cfa.RSP]
    assert table.damaged == 2


def test_what_a_function_has_for_exceptions_is_passed_over() -> None:
    frames = Frames().shared(letters=b"zRL", data=b"\x1b\x1b")
    at = len(frames.content)
    body = struct.pack("<IiI", at + 4, 0x1000 - (ADDRESS + at + 8), 16) + b"\4" + cfa_offset(64) * 2
    body += cfa_offset(24) + NOP
    frames.content += struct.pack("<I", len(body)) + body
    assert rule_at(unwind_table(frames.content, ADDRESS), 0x1000) == (Cfa.RSP, 24, Rbp.SAME, 0)


def test_an_entry_that_is_longer_than_the_section_is_counted() -> None:
    content = Frames().shared().function(0x1000, 16).content + struct.pack("<II", 1000, 0)
    table = unwind_table(content, ADDRESS)
    assert (len(table.rows), table.damaged) == (2, 1)


@pytest.mark.parametrize("code", [b"\x0e", b"\x0e\xff", b"\4", b"\x0f\xff\xff\xff\xff\x0f", b"\x10\x06"])
def test_nothing_is_read_behind_the_section(code: bytes) -> None:
    """Which ends with its page: what is behind it is not there."""
    frames = Frames().shared()
    at = len(frames.content)
    body = struct.pack("<IiI", at + 4, 0x1000 - (ADDRESS + at + 8), 16) + b"\0"
    body = body.ljust(4096 - at - 4 - len(code), NOP) + code
    frames.content += struct.pack("<I", len(body)) + body
    assert len(frames.content) == 4096
    assert rule_at(unwind_table(frames.content, ADDRESS), 0x1010)[0] is Cfa.NONE


def test_a_row_that_says_what_the_one_before_says_is_left_out() -> None:
    assert table_of(advance(4) + cfa_offset(8) + advance(4)).rows["pc"].tolist() == [0x1000, 0x1040]


def test_a_row_that_differs_in_where_rbp_is_alone_is_kept() -> None:
    table = table_of(cfa_offset(32) + saved(6, 2) + advance(4) + saved(6, 3))
    assert [rule_at(table, pc) for pc in (0x1000, 0x1004)] == [
        (Cfa.RSP, 32, Rbp.AT_CFA, -16),
        (Cfa.RSP, 32, Rbp.AT_CFA, -24),
    ]


@cache
def library(path: Path) -> tuple[bytes, UnwindTable]:
    data = path.read_bytes()
    return data, read_unwind_table(ElfImage(data))


def test_without_section_headers_the_table_is_the_same() -> None:
    data, table = library(LINKER)
    stripped = bytearray(data)
    stripped[0x28:0x30] = bytes(8)
    stripped[0x3C:0x40] = bytes(4)
    found = read_unwind_table(ElfImage(bytes(stripped)))
    places = np.flatnonzero(table.rows["rule"] != Cfa.NONE)
    assert [rule_at(found, int(table.rows["pc"][place])) for place in places] == [
        rule_at(table, int(table.rows["pc"][place])) for place in places
    ]


def test_a_file_without_the_section_is_an_error() -> None:
    with pytest.raises(ElfError, match=r"no \.eh_frame"):
        read_unwind_table(ElfImage(_bare_image()))


def _bare_image() -> bytes:
    """An ELF header, and nothing else."""
    return (
        b"\x7fELF\2\1\1" + bytes(9) + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, 0, 0, 64, 56, 0, 64, 0, 0)
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "stride"), [(LINKER, 3), (LIBC, 41)], ids=lambda value: getattr(value, "name", "")
)
def test_real_libraries_have_the_rows_that_pyelftools_finds(path: Path, stride: int) -> None:
    if not path.exists():
        pytest.skip(f"this system has no {path}")
    _, table = library(path)
    compared = 0
    with path.open("rb") as stream:
        for entry in list(ELFFile(stream).get_dwarf_info(relocate_dwarf_sections=False).EH_CFI_entries())[
            ::stride
        ]:
            if not isinstance(entry, FDE) or entry.cie is None:
                continue
            try:
                lines = entry.get_decoded().table
            except (ValueError, AssertionError):
                continue  # GNU_args_size, which it does not know
            signal = b"S" in entry.cie.header.augmentation
            last_of = {line["pc"]: line for line in lines}
            end = entry.header.initial_location + entry.header.address_range
            for pc, line in last_of.items():
                if pc < end:
                    compared += 1
                    assert rule_at(table, pc) in _expected(line, signal), hex(pc)
    assert compared > 300


def _expected(line: dict[object, object], signal: bool) -> list[tuple[Cfa, int, Rbp, int]]:
    """The rules that a decoded line may be; several where it is an expression."""
    cfa, rbp, address = line["cfa"], line.get(6), line.get(16)
    nothing = [(kind, 0, Rbp.SAME, 0) for kind in (Cfa.UNSUPPORTED,)]
    if address is not None and address.type == "UNDEFINED":  # type: ignore[attr-defined]
        return [(Cfa.END, 0, Rbp.SAME, 0)]
    where = (Rbp.SAME, 0)
    if rbp is not None and rbp.type == "OFFSET":  # type: ignore[attr-defined]
        where = (Rbp.AT_CFA, rbp.arg)  # type: ignore[attr-defined]
    elif rbp is not None and rbp.type == "EXPRESSION":  # type: ignore[attr-defined]
        where = (Rbp.AT_RBP, 0)
    if cfa.expr is None:  # type: ignore[attr-defined]
        register, offset = cfa.reg, cfa.offset  # type: ignore[attr-defined]
        kinds = {7: Cfa.RSP, 6: Cfa.RBP}
        found = [(kinds[register], offset, *where)] if register in kinds else nothing
        return [(Cfa.SIGNAL, offset, *where)] if signal else found
    operand = cfa.expr[1]  # type: ignore[attr-defined]
    if signal:
        return [(Cfa.SIGNAL, offset, *each) for offset in range(512) for each in (where, (Rbp.SAME, 0))] + [
            (Cfa.SIGNAL, 0, Rbp.SAME, 0)
        ]
    signed = operand - 128 if operand >= 64 else operand
    return [
        *nothing,
        (Cfa.PLT, 88, *where),
        (Cfa.PLT, 80, *where),
        (Cfa.AT_RBP, signed, *where),
        (Cfa.AT_RSP, signed, *where),
    ]


@examples(300)
@given(st.binary(max_size=200))
def test_any_instructions_give_rows_or_are_counted(code: bytes) -> None:
    table = unwind_table(Frames().shared().function(0x1000, 64, code).function(0x2000, 16).content, ADDRESS)
    assert rule_at(table, 0x2000) == RSP_8
    assert (np.diff(table.rows["pc"].astype(np.int64)) >= 0).all()
    assert len(table.rows) <= len(code) + 4


@examples(300)
@given(st.binary(min_size=1, max_size=300), st.integers(0, 64), st.integers(0, 255))
def test_any_section_is_read(content: bytes, at: int, byte: int) -> None:
    unwind_table(content, ADDRESS)
    valid = bytearray(Frames().shared().function(0x1000, 64, advance(1) + cfa_offset(16)).content)
    valid[at % len(valid)] = byte
    unwind_table(bytes(valid), ADDRESS)
