r"""Protocol Buffers messages of which only few fields matter: bytes in, fields out, without a schema.

Format: https://protobuf.dev/programming-guides/encoding/. Groups (wire types 3 and 4) are not used by any
message read here and are refused. Example: ``b"\x0a\x02hi\x10\x05"`` gives ``(1, b"hi")``
and ``(2, 5)``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

_VARINT: Final = 0
_FIXED64: Final = 1
_LENGTH: Final = 2
_FIXED32: Final = 5
_MAX_VARINT_BYTES: Final = 10


class ProtobufError(ValueError):
    """The bytes are not a message."""


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield number and value of each field: an unsigned integer, or bytes. Raises ProtobufError."""
    position, end = 0, len(data)
    while position < end:
        key, position = _varint(data, position)
        number, wire_type = key >> 3, key & 7
        if wire_type == _VARINT:
            value, position = _varint(data, position)
            yield number, value
            continue
        if wire_type == _LENGTH:
            size, position = _varint(data, position)
        elif wire_type == _FIXED64:
            size = 8
        elif wire_type == _FIXED32:
            size = 4
        else:
            raise ProtobufError(f"wire type {wire_type}")
        if size > end - position:
            raise ProtobufError("field longer than its message")
        yield number, data[position : position + size]
        position += size


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 7 * _MAX_VARINT_BYTES, 7):
        if position >= len(data):
            break
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, position
    raise ProtobufError("varint without an end")
