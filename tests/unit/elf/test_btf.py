"""BTF → dtypes: the built objects as the truth, and sections made by hand or damaged."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from otelgpu.elf.btf import Btf, BtfError
from otelgpu.kernel.loader import read_image, record_struct

BPF = Path(__file__).parents[3] / "bpf"
FAMILIES = ("cuda", "http", "process")
SECTIONS = {family: read_image(family).btf_section for family in FAMILIES}
HEADERS = {family: (BPF / family / f"{family}.h").read_text() for family in FAMILIES}
RECORD_H = (BPF / "lib" / "record.h").read_text()
DECL_TAG = 17
INT, PTR, ARRAY, STRUCT, UNION, ENUM, FWD, TYPEDEF, VOLATILE, CONST, ENUM64 = (
    1,
    2,
    3,
    4,
    5,
    6,
    7,
    8,
    9,
    10,
    19,
)
SIGNED, CHAR, BOOL = 1, 2, 4


class Section:
    """A BTF section, type by type; ids count from 1."""

    def __init__(self) -> None:
        self.strings = b"\0"
        self.types: list[bytes] = []

    def add(
        self, kind: int, name: str = "", size: int = 0, tail: bytes = b"", vlen: int = 0, flag: int = 0
    ) -> int:
        self.types.append(struct.pack("<III", self.text(name), flag << 31 | kind << 24 | vlen, size) + tail)
        return len(self.types)

    def text(self, value: str) -> int:
        if not value:
            return 0
        self.strings += value.encode() + b"\0"
        return len(self.strings) - len(value.encode()) - 1

    def integer(self, size: int, encoding: int = 0, name: str = "number") -> int:
        return self.add(INT, name, size, struct.pack("<I", encoding << 24 | size * 8))

    def array(self, element: int, count: int) -> int:
        return self.add(ARRAY, tail=struct.pack("<III", element, element, count))

    def struct(self, name: str, size: int, *members: tuple[str, int, int], flag: int = 0) -> int:
        tail = b"".join(struct.pack("<III", self.text(m), type_id, bits) for m, type_id, bits in members)
        return self.add(STRUCT, name, size, tail, vlen=len(members), flag=flag)

    def union(self, name: str, size: int, *members: tuple[str, int, int]) -> int:
        tail = b"".join(struct.pack("<III", self.text(m), type_id, bits) for m, type_id, bits in members)
        return self.add(UNION, name, size, tail, vlen=len(members))

    def enum(self, name: str, size: int, **values: int) -> int:
        tail = b"".join(struct.pack("<Ii", self.text(key), value) for key, value in values.items())
        return self.add(ENUM, name, size, tail, vlen=len(values))

    def build(self) -> bytes:
        types = b"".join(self.types)
        head = struct.pack("<HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(types), len(types), len(self.strings))
        return head + types + self.strings

    def btf(self) -> Btf:
        return Btf(self.build())


def fields(dtype: np.dtype) -> dict[str, tuple[np.dtype, int]]:
    return {name: (found[0], found[1]) for name, found in dtype.fields.items()}


# -- the built objects ------------------------------------------------------------------------------


def stated_sizes() -> list[tuple[str, str, int]]:
    """(family, struct, bytes) of each ``_Static_assert(sizeof(struct …) == …)``."""
    found = []
    for family, text in HEADERS.items():
        defines = dict(re.findall(r"#define (\w+) (\d+)", text))
        for name, size in re.findall(r"_Static_assert\(sizeof\(struct (\w+)\) == (\w+)", RECORD_H + text):
            found.append((family, name, int(defines.get(size, size))))
    return found


@pytest.mark.parametrize(("family", "name", "size"), stated_sizes())
def test_a_record_has_the_size_that_the_header_asserts(family: str, name: str, size: int) -> None:
    assert Btf(SECTIONS[family]).dtype(name).itemsize == size


def test_some_sizes_are_asserted_at_all() -> None:
    assert len(stated_sizes()) >= 7


def records(family: str) -> set[str]:
    btf = Btf(SECTIONS[family])
    return {record_struct(btf, family, kind) for kind in btf.enumerators(f"{family}_kind")}


def test_a_kind_without_a_struct_of_its_own_is_a_call_of_the_family() -> None:
    s = Section()
    s.struct("hip_name", 0)
    assert [record_struct(s.btf(), "hip", kind) for kind in ("HIP_NAME", "HIP_FREE")] == [
        "hip_name",
        "hip_call",
    ]
    assert records("cuda") == {"cuda_call", "cuda_name", "cuda_activity", "cuda_activity_name"}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_kind_has_its_struct_and_begins_with_the_head(family: str) -> None:
    btf = Btf(SECTIONS[family])
    for name in records(family):
        dtype = btf.dtype(name)
        while dtype.names[0] != "head":
            dtype, offset = fields(dtype)[dtype.names[0]]
            assert offset == 0
        assert fields(dtype)["head"] == (btf.dtype("record_head"), 0)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_records_fields_follow_one_another_without_holes(family: str) -> None:
    btf = Btf(SECTIONS[family])
    for record in records(family):
        dtype, end = btf.dtype(record), 0
        for name, (part, offset) in sorted(fields(dtype).items(), key=lambda field: field[1][1]):
            assert offset <= end, f"{record}.{name}"  # less: a member of a union
            end = max(end, offset + part.itemsize)
        assert end == dtype.itemsize


@pytest.mark.parametrize("family", FAMILIES)
def test_enumerators_are_those_of_the_header(family: str) -> None:
    btf = Btf(SECTIONS[family])
    for name, body in re.findall(r"enum (\w+) \{(.*?)\};", HEADERS[family], flags=re.DOTALL):
        if "#define" in body:
            continue  # made from a table: tests/unit/families/test_cuda_calls.py
        assert btf.enumerators(name) == written(body, btf.enumerators("counter"))


def test_who_changes_enumerators_changes_them_for_nobody_else() -> None:
    btf = Btf(SECTIONS["http"])
    btf.enumerators("http_role").clear()
    assert btf.enumerators("http_role")


def written(body: str, known: dict[str, int]) -> dict[str, int]:
    """What C makes of the text between an enum's braces; a value may be one of ``known``."""
    found: dict[str, int] = {}
    following = 0
    for item in re.sub(r"/\*.*?\*/", "", body, flags=re.DOTALL).split(","):
        name, _, value = map(str.strip, item.partition("="))
        if name:
            found[name] = following = known.get(value, following) if not value.isdigit() else int(value)
            following += 1
    return found


def test_the_members_of_a_call_share_bytes_where_no_kind_uses_both() -> None:
    call = fields(Btf(SECTIONS["cuda"]).dtype("cuda_call"))
    assert call["function"] == call["object"] == (np.dtype("<u8"), 64)
    assert call["grid"] == (np.dtype(("<u4", (3,))), 96)
    assert call["extra"] == (np.dtype("<u8"), 96)
    assert call["status"] == (np.dtype("<i4"), 120)
    assert call["device"] == (np.dtype("<i2"), 126)


def test_a_char_array_is_bytes() -> None:
    assert fields(Btf(SECTIONS["process"]).dtype("process_mapping"))["name"][0] == np.dtype("S64")


def test_a_kernel_pointer_cannot_be_part_of_a_record() -> None:
    with pytest.raises(BtfError, match="kind 2"):
        Btf(SECTIONS["http"]).dtype("file")


def test_what_is_not_there_says_how_to_anchor_it() -> None:
    btf = Btf(SECTIONS["cuda"])
    with pytest.raises(BtfError, match=r"RECORD\(cuda_new\)"):
        btf.dtype("cuda_new")
    with pytest.raises(BtfError, match=r"ENUM\(cuda_new\)"):
        btf.enumerators("cuda_new")
    assert (btf.has_struct("cuda_name"), btf.has_struct("cuda_new")) == (True, False)
    assert (btf.has_enum("cuda_api"), btf.has_enum("cuda_new")) == (True, False)


# -- sections made by hand --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "encoding", "expected"),
    [(1, 0, "u1"), (2, SIGNED, "<i2"), (4, 0, "<u4"), (8, SIGNED, "<i8"), (1, BOOL, "u1")],
)
def test_integers_keep_their_size_and_sign(size: int, encoding: int, expected: str) -> None:
    s = Section()
    s.struct("r", size, ("x", s.integer(size, encoding), 0))
    assert s.btf().dtype("r")["x"] == np.dtype(expected)


def test_typedefs_and_qualifiers_are_looked_through() -> None:
    s = Section()
    inner = s.add(CONST, size=s.add(VOLATILE, size=s.add(TYPEDEF, "u32", s.integer(4))))
    s.struct("r", 4, ("x", inner, 0))
    assert s.btf().dtype("r")["x"] == np.dtype("<u4")


def test_padding_that_the_compiler_put_in_is_kept() -> None:
    s = Section()
    byte, word = s.integer(1), s.integer(8)
    s.struct("r", 24, ("a", byte, 0), ("b", word, 64), ("c", byte, 128))
    dtype = s.btf().dtype("r")
    assert ([offset for _, offset in fields(dtype).values()], dtype.itemsize) == ([0, 8, 16], 24)


def test_nested_structs_and_arrays_of_arrays() -> None:
    s = Section()
    pair = s.struct("pair", 4, ("a", (half := s.integer(2)), 0), ("b", half, 16))
    s.struct("r", 24, ("grid", s.array(s.array(pair, 3), 2), 0))
    records = np.zeros(5, s.btf().dtype("r"))
    assert (records["grid"].shape, records["grid"]["b"].dtype) == ((5, 2, 3), np.dtype("<u2"))


def test_an_enum_member_is_an_integer_of_its_size() -> None:
    s = Section()
    s.struct("r", 4, ("kind", s.enum("kinds", 4, A=1, B=-1), 0))
    assert s.btf().dtype("r")["kind"] == np.dtype("<u4")
    assert s.btf().enumerators("kinds") == {"A": 1, "B": -1}


def test_members_of_a_nameless_union_or_struct_are_the_outer_struct_s_own() -> None:
    s = Section()
    half, word = s.integer(4), s.integer(8)
    inner = s.struct("", 8, ("low", half, 0), ("high", half, 32))
    s.struct("r", 16, ("a", word, 0), ("", s.union("", 8, ("whole", word, 0), ("", inner, 0)), 64))
    dtype = s.btf().dtype("r")
    assert {name: offset for name, (_, offset) in fields(dtype).items()} == {
        "a": 0,
        "whole": 8,
        "low": 8,
        "high": 12,
    }
    records = np.zeros(2, dtype)
    records["whole"] = 5 << 32 | 3
    assert (records["low"].tolist(), records["high"].tolist()) == ([3, 3], [5, 5])


def named_union(s: Section) -> None:
    s.struct("r", 4, ("u", s.union("u", 4, ("a", s.integer(4), 0)), 0))


def nameless_twins(s: Section) -> None:
    twin = s.struct("", 4, ("a", s.integer(4), 0))
    s.struct("r", 8, ("", twin, 0), ("", twin, 32))


def wide_enum(s: Section) -> None:
    s.add(ENUM64, "wide", 8, struct.pack("<III", s.text("X"), 1, 1), vlen=1)


def bit_field(s: Section) -> None:
    s.struct("r", 4, ("a", s.integer(4), 3))


def flagged_bit_field(s: Section) -> None:
    # kind_flag: the upper byte of a member's offset is the width of a bit-field
    s.struct("r", 4, ("a", s.integer(4), 8 << 24), flag=1)


def itself(s: Section) -> None:
    s.struct("r", 4, ("a", 1, 0))


def outside(s: Section) -> None:
    s.struct("r", 4, ("a", 77, 0))


def odd_integer(s: Section) -> None:
    s.struct("r", 16, ("a", s.integer(3), 0))


def no_integer(s: Section) -> None:
    s.struct("r", 16, ("a", s.integer(0), 0))


def odd_enum(s: Section) -> None:
    s.struct("r", 16, ("a", s.enum("e", 5, A=1), 0))


def too_small(s: Section) -> None:
    s.struct("r", 4, ("a", s.integer(8), 0))


def twice_the_name(s: Section) -> None:
    s.struct("r", 8, ("a", (word := s.integer(4)), 0), ("a", word, 32))


def huge_array(s: Section) -> None:
    s.struct("r", 8, ("a", s.array(s.array(s.integer(8), 0xFFFFFFFF), 0xFFFFFFFF), 0))


def huge_text(s: Section) -> None:
    s.struct("r", 8, ("a", s.array(s.integer(1, name="char"), 0xFFFFFFFF), 0))


def void_array(s: Section) -> None:
    s.struct("r", 8, ("a", s.array(0, 3), 0))


def forward(s: Section) -> None:
    s.struct("r", 8, ("a", s.add(FWD, "later"), 0))


def nameless_member_outside(s: Section) -> None:
    s.integer(4)
    s.add(STRUCT, "r", 4, struct.pack("<III", 0xFFFFFF, 1, 0), vlen=1)


def bad_utf8(s: Section) -> None:
    word, where = s.integer(4), len(s.strings)
    s.strings += b"\xff\xfe\0"
    s.add(STRUCT, "r", 4, struct.pack("<III", where, word, 0), vlen=1)


def exponential(s: Section) -> None:
    """Sixteen levels of a hundred zero-sized members each: small in bytes, endless if expanded naively."""
    inner = s.struct("leaf", 0)
    for level in range(15):
        inner = s.struct("r" if level == 14 else f"s{level}", 0, *((f"m{i}", inner, 0) for i in range(100)))


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "damage",
    [
        bit_field,
        flagged_bit_field,
        itself,
        outside,
        odd_integer,
        no_integer,
        odd_enum,
        too_small,
        twice_the_name,
        named_union,
        nameless_twins,
        huge_array,
        huge_text,
        void_array,
        forward,
        nameless_member_outside,
        bad_utf8,
    ],
)
def test_what_no_record_can_hold_is_a_btf_error(damage) -> None:  # type: ignore[no-untyped-def]
    s = Section()
    damage(s)
    with pytest.raises(BtfError):
        s.btf().dtype("r")


@pytest.mark.timeout(20)
def test_types_that_share_parts_are_expanded_once() -> None:
    s = Section()
    exponential(s)
    try:
        assert s.btf().dtype("r").itemsize == 0
    except BtfError:
        pass  # refusing is as good


def test_a_wide_enum_is_refused() -> None:
    s = Section()
    wide_enum(s)
    with pytest.raises(BtfError, match="64 bits"):
        s.btf().enumerators("wide")


# -- damage -----------------------------------------------------------------------------------------


def use_everything(section: bytes) -> None:
    """Ask a section all that can be asked; BtfError is an answer."""
    try:
        btf = Btf(section)
    except BtfError:
        return
    for name in list(btf._structs):
        try:
            btf.dtype(name)
        except BtfError:
            pass
    for name in list(btf._enums):
        try:
            btf.enumerators(name)
        except BtfError:
            pass


SMALL = Section()
SMALL.struct(
    "r", 32, ("n", (word := SMALL.integer(4)), 0), ("a", SMALL.array(word, 3), 32),
    ("e", SMALL.enum("e", 4, A=1, B=2), 128), ("s", SMALL.struct("s", 8, ("x", word, 0)), 160),
    ("t", SMALL.array(SMALL.integer(1, CHAR, "char"), 4), 224),
)  # fmt: skip
SMALL_BYTES = SMALL.build()


def test_a_section_cut_anywhere_is_a_btf_error() -> None:
    for length in range(len(SMALL_BYTES)):
        with pytest.raises(BtfError):
            Btf(SMALL_BYTES[:length])


@given(st.binary(max_size=200))
@example(b"")
def test_any_bytes_are_btf_or_a_btf_error(data: bytes) -> None:
    use_everything(data)
    use_everything(SMALL_BYTES[:24] + data)


@given(st.lists(st.tuples(st.integers(0, len(SMALL_BYTES) - 1), st.integers(0, 255)), min_size=1, max_size=4))
def test_changed_bytes_are_btf_or_a_btf_error(changes: list[tuple[int, int]]) -> None:
    data = bytearray(SMALL_BYTES)
    for position, value in changes:
        data[position] = value
    use_everything(bytes(data))


@given(st.data())
def test_changed_words_of_a_real_object_are_btf_or_a_btf_error(data: st.DataObject) -> None:
    section = bytearray(SECTIONS["cuda"])
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(0, len(section) // 4 - 1)) * 4
        struct.pack_into("<I", section, position, data.draw(st.integers(0, 2**32 - 1)))
    use_everything(bytes(section))


def test_variables_are_found_by_their_tags() -> None:
    assert read_image("sched").btf.tagged("by_processors") == {"turns"}
    assert not read_image("sched").btf.tagged("of nothing")
    section = Section()
    section.add(DECL_TAG, "tag", 99, bytes(4))  # of a type that is not there
    assert not Btf(section.build()).tagged("tag")
