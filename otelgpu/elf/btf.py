"""BTF → numpy dtypes and enumerators: the C struct is the only place where a record is declared.

In: the bytes of a ``.BTF`` section. Out: :class:`Btf`, which answers struct and enum names. Format:
https://docs.kernel.org/bpf/btf.html, section 2 (type encoding). Only what a record can hold is
understood: integers, arrays of integers, enums, nested structs, and unions without a name, whose members
become fields that share their bytes; anything else is an error.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import numpy as np
from msgspec import Struct

from otelgpu.errors import OtelgpuError

_MAGIC: Final = 0xEB9F
_HEADER: Final = struct.Struct("<HBBIIIII")
_TYPE: Final = struct.Struct("<III")

_INT, _ARRAY, _STRUCT, _UNION, _ENUM, _TYPEDEF, _VOLATILE, _CONST = 1, 3, 4, 5, 6, 8, 9, 10
_DECL_TAG: Final = 17
_ENUM64: Final = 19
# Bytes that follow struct btf_type, per kind: (fixed, per vlen).
_TAIL: Final = {
    1: (4, 0),
    2: (0, 0),
    3: (12, 0),
    4: (0, 12),
    5: (0, 12),
    6: (0, 8),
    7: (0, 0),
    8: (0, 0),
    9: (0, 0),
    10: (0, 0),
    11: (0, 0),
    12: (0, 0),
    13: (0, 8),
    14: (4, 0),
    15: (0, 12),
    16: (0, 0),
    17: (4, 0),
    18: (0, 0),
    19: (0, 12),
}


class BtfError(OtelgpuError):
    """The section is not BTF, or describes something that a record cannot hold."""


class _Type(Struct, frozen=True):
    kind: int
    name: str
    vlen: int
    flagged: bool  # kind_flag: in a struct, the upper byte of a member's offset is a bit-field's width
    size_or_type: int
    tail: bytes


class Btf:
    """The types of one BPF object.

    Raises :class:`BtfError` on a section that is not well-formed BTF.
    """

    def __init__(self, section: bytes) -> None:
        try:
            self._strings, self._types = _parse(section)
        except (struct.error, ValueError, KeyError) as error:
            raise BtfError(f"malformed BTF section of {len(section)} bytes: {error}") from error
        self._structs = {t.name: i for i, t in enumerate(self._types) if t.kind == _STRUCT and t.name}
        self._enums = {t.name: t for t in self._types if t.kind in (_ENUM, _ENUM64) and t.name}
        self._made: dict[int, np.dtype[np.void]] = {}  # by type id: a type used often is expanded once
        self._read: dict[str, dict[str, int]] = {}  # enumerators by the enum's name, likewise

    def dtype(self, name: str) -> np.dtype[np.void]:
        """The numpy dtype of ``struct name``, with the compiler's offsets and size.

        Raises :class:`BtfError` when the struct is not there or holds what no record can.
        """
        if name not in self._structs:
            raise BtfError(f"struct {name} is not in the object's BTF: anchor it with RECORD({name})")
        try:
            return self._dtype(self._structs[name], 0)
        except (ValueError, TypeError, OverflowError) as error:  # numpy's, of sizes and names in bad BTF
            raise BtfError(f"struct {name} is no record: {error}") from error

    def has_struct(self, name: str) -> bool:
        """Whether ``struct name`` is described."""
        return name in self._structs

    def has_enum(self, name: str) -> bool:
        """Whether ``enum name`` is described."""
        return name in self._enums

    def enumerators(self, name: str) -> dict[str, int]:
        """Enumerator → value of ``enum name``, in the order of declaration."""
        if name not in self._read:
            self._read[name] = self._read_enumerators(name)
        return self._read[name].copy()

    def tagged(self, tag: str) -> frozenset[str]:
        """Names of the variables that are declared with ``btf_decl_tag(tag)``."""
        found = [t.size_or_type for t in self._types if t.kind == _DECL_TAG and t.name == tag]
        return frozenset(self._types[each].name for each in found if each < len(self._types))

    def _read_enumerators(self, name: str) -> dict[str, int]:
        if name not in self._enums:
            raise BtfError(f"enum {name} is not in the object's BTF: anchor it with ENUM({name})")
        enum = self._enums[name]
        if enum.kind == _ENUM64:
            raise BtfError(f"enum {name} is 64 bits wide, which no record needs")
        pairs = struct.iter_unpack("<Ii", enum.tail)
        try:
            return {_text(self._strings, offset): value for offset, value in pairs}
        except ValueError as error:
            raise BtfError(f"enum {name} has an enumerator without a name: {error}") from error

    def _dtype(self, index: int, depth: int) -> np.dtype[np.void]:
        if depth > 16 or index >= len(self._types):
            raise BtfError("BTF types nest too deep or refer outside the section")
        if index not in self._made:
            self._made[index] = self._make(self._types[index], depth)
        return self._made[index]

    def _make(self, t: _Type, depth: int) -> np.dtype[np.void]:
        if t.kind in (_TYPEDEF, _VOLATILE, _CONST):
            return self._dtype(t.size_or_type, depth + 1)
        if t.kind == _INT:
            encoding = struct.unpack("<I", t.tail)[0] >> 24
            sign = "i" if encoding & 1 else "u"
            return np.dtype(f"<{sign}{t.size_or_type}")
        if t.kind == _ENUM:
            return np.dtype(f"<u{t.size_or_type}")
        if t.kind == _ARRAY:
            element, _, count = struct.unpack("<III", t.tail)
            inner = self._dtype(element, depth + 1)
            if self._types[element].kind == _INT and self._types[element].name == "char":
                return np.dtype(f"S{count}")
            return np.dtype((inner, (count,)))
        if t.kind == _STRUCT or (t.kind == _UNION and not t.name):
            return self._make_struct(t, depth)
        raise BtfError(f"BTF kind {t.kind} ({t.name or 'anonymous'}) cannot be part of a record")

    def _make_struct(self, t: _Type, depth: int) -> np.dtype[np.void]:
        """A member without a name is not there as such: its own members are (C11, 6.7.2.1)."""
        fields: dict[str, tuple[np.dtype[Any], int]] = {}
        for name_offset, member, bit_offset in struct.iter_unpack("<III", t.tail):
            if bit_offset % 8 or (t.flagged and bit_offset >> 24):
                raise BtfError(f"struct {t.name} has bit-fields, which records must not")
            dtype, offset, name = (
                self._dtype(member, depth + 1),
                bit_offset // 8,
                _text(self._strings, name_offset),
            )
            inner = {name: (dtype, 0)} if name else {n: (f[0], f[1]) for n, f in (dtype.fields or {}).items()}
            for inner_name, (inner_dtype, inner_offset) in inner.items():
                if inner_name in fields:
                    raise BtfError(f"struct {t.name} has two members {inner_name}")
                fields[inner_name] = inner_dtype, offset + inner_offset
        return np.dtype(
            {
                "names": list(fields),
                "formats": [dtype for dtype, _ in fields.values()],
                "offsets": [offset for _, offset in fields.values()],
                "itemsize": t.size_or_type,
            }
        )


def _text(strings: bytes, offset: int) -> str:
    return strings[offset : strings.index(b"\0", offset)].decode()


def _parse(section: bytes) -> tuple[bytes, list[_Type]]:
    """The string section, and the types by id (id 0 is void)."""
    magic, _, _, header_bytes, type_offset, type_bytes, string_offset, string_bytes = _HEADER.unpack_from(
        section
    )
    if magic != _MAGIC:
        raise ValueError(f"magic {magic:#x} is not {_MAGIC:#x}")
    strings = section[header_bytes + string_offset :][:string_bytes]
    position = header_bytes + type_offset
    end = position + type_bytes
    types = [_Type(0, "void", 0, False, 0, b"")]
    while position < end:
        name, info, size_or_type = _TYPE.unpack_from(section, position)
        kind, vlen = (info >> 24) & 0x1F, info & 0xFFFF
        fixed, each = _TAIL[kind]
        position += _TYPE.size
        tail = section[position : position + fixed + each * vlen]
        if len(tail) != fixed + each * vlen:
            raise ValueError("a type runs past the end")
        position += len(tail)
        types.append(_Type(kind, _text(strings, name), vlen, bool(info >> 31), size_or_type, tail))
    return strings, types
