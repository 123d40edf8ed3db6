"""Where the members of a struct lie, from a library's debugging information (DWARF 4 and 5). Opens nothing.

In: the sections ``.debug_info``, ``.debug_abbrev``, ``.debug_str`` and ``.debug_line_str``. Out: :class:`Member`.
A library's debugging information has a hundred thousand entries and more: the struct's is found by the place of its
name in the strings, so that only the compilation unit around it is looked at, and of that only the members.

Source: DWARF Debugging Information Format, version 5, sections 7.5 (entries) and 5.7 (structures).
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from typing import Any, Final

from elftools.common.exceptions import DWARFError, ELFParseError
from elftools.dwarf.compileunit import CompileUnit
from elftools.dwarf.die import DIE
from elftools.dwarf.dwarfinfo import DebugSectionDescriptor, DwarfConfig, DWARFInfo

from otelgpu.elf.struct_member import Member

Content = bytes | memoryview

_STRUCT_TAGS: Final = ("DW_TAG_structure_type", "DW_TAG_class_type")
_LONGEST_CODE: Final = 3  # bytes of an entry's abbreviation code before its first attribute
_DAMAGED: Final = (
    *(DWARFError, ELFParseError, KeyError, IndexError, ValueError, TypeError, AttributeError, AssertionError),
    *(struct.error, RecursionError, NotImplementedError, OverflowError),
)
"""What pyelftools raises on entries that are none."""

_TRIES: Final = 4096  # mentions of the name that are looked at
_MEMBERS: Final = 4096


def struct_members(
    info: Content, abbreviations: Content, strings: Content, line_strings: Content, name: str
) -> dict[str, Member] | None:
    """The members of the first complete struct of that name, by their own; None where there is none.

    Damaged sections give None, or members as they say.
    """
    texts = bytes(strings)
    data = bytes(info)
    sections = _sections(data, bytes(abbreviations), texts, bytes(line_strings))
    # The linker may have laid the name into the end of a longer one.
    for at in _places(texts, name.encode() + b"\0"):
        for place in _places(data, struct.pack("<I", at)):
            for length in range(1, _LONGEST_CODE + 1):
                try:
                    found = _members_at(sections, place - length, name)
                except _DAMAGED:
                    continue
                if found is not None:
                    return found
    return None


def _places(data: bytes, wanted: bytes) -> Iterator[int]:
    place = -1
    for _ in range(_TRIES):
        place = data.find(wanted, place + 1)
        if place < 0:
            return
        yield place


def _members_at(sections: DWARFInfo, start: int, name: str) -> dict[str, Member] | None:
    """Of the entry that begins at ``start``, if that is where one begins, and it is the struct's.

    An entry begins with its abbreviation's code, of one to three bytes. What was read from a byte too far gives no
    members in order.
    """
    unit: CompileUnit = sections.get_CU_containing(start)
    if start < unit.cu_die_offset:
        return None
    assert sections.debug_info_sec is not None, "it is what start is in"
    entry = DIE(cu=unit, stream=sections.debug_info_sec.stream, offset=start)
    size = entry.attributes.get("DW_AT_byte_size")
    if entry.tag not in _STRUCT_TAGS or size is None or _text(entry) != name:
        return None
    found = dict(_members(entry))
    offsets = [member.offset for member in found.values()]
    ordered = offsets == sorted(offsets) and all(found) and len(offsets) > 0
    return found if ordered and offsets[-1] < size.value else None


def _text(entry: DIE) -> str:
    attribute = entry.attributes.get("DW_AT_name")
    value: Any = attribute.value if attribute is not None else b""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""


def _members(entry: DIE) -> Iterator[tuple[str, Member]]:
    for count, child in enumerate(entry.cu.iter_DIE_children(entry)):
        if count >= _MEMBERS:
            return
        offset = child.attributes.get("DW_AT_data_member_location")
        if child.tag == "DW_TAG_member" and offset is not None and isinstance(offset.value, int):
            yield _text(child), Member(offset.value, _elements(child))


def _elements(member: DIE) -> int:
    kind = member.get_DIE_from_attribute("DW_AT_type") if "DW_AT_type" in member.attributes else None
    if kind is None or kind.tag != "DW_TAG_array_type":
        return 1
    found = 1
    for child in kind.cu.iter_DIE_children(kind):
        bound = child.attributes.get("DW_AT_upper_bound")
        count = child.attributes.get("DW_AT_count")
        if bound is not None and isinstance(bound.value, int):
            found *= bound.value + 1
        elif count is not None and isinstance(count.value, int):
            found *= count.value
    return found


def _sections(info: bytes, abbreviations: bytes, strings: bytes, line_strings: bytes) -> DWARFInfo:
    def section(name: str, content: bytes) -> DebugSectionDescriptor:
        return DebugSectionDescriptor(
            stream=io.BytesIO(content), name=name, global_offset=0, size=len(content), address=0
        )

    return DWARFInfo(
        config=DwarfConfig(little_endian=True, machine_arch="x64", default_address_size=8),
        debug_info_sec=section(".debug_info", info),
        debug_aranges_sec=None,
        debug_abbrev_sec=section(".debug_abbrev", abbreviations),
        debug_frame_sec=None,
        eh_frame_sec=None,
        debug_str_sec=section(".debug_str", strings),
        debug_loc_sec=None,
        debug_ranges_sec=None,
        debug_line_sec=None,
        debug_pubtypes_sec=None,
        debug_pubnames_sec=None,
        debug_addr_sec=None,
        debug_str_offsets_sec=None,
        debug_line_str_sec=section(".debug_line_str", line_strings),
        debug_loclists_sec=None,
        debug_rnglists_sec=None,
        debug_sup_sec=None,
        gnu_debugaltlink_sec=None,
        debug_types_sec=None,
    )
