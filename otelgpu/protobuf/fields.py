r"""Walks messages of which only few fields matter: bytes in, fields out, without a schema. Pure.

For what passes on connections that are observed: it may be anything, and is another version's tomorrow.

Format: https://protobuf.dev/programming-guides/encoding/. Groups (wire types 3 and 4) are not used by any
message read here and are refused. Example: ``b"\x0a\x02hi\x10\x05"`` gives ``(1, b"hi")``
and ``(2, 5)``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

_VARINT: Final = 0
_LENGTH: Final = 2
_FIXED_BYTES: Final = {1: 8, 5: 4}
_MAX_VARINT_BYTES: Final = 10


class ProtobufError(ValueError):
    """The bytes are not a message."""


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield number and value of each field. Raises ProtobufError.

    A value is bytes where the field has a length, and else an unsigned integer: a double's is that of its bits.
    """
    position, end = 0, len(data)
    while position < end:
        key, position = _varint(data, position)
        number, wire_type = key >> 3, key & 7
        if not number:
            raise ProtobufError("field number 0")
        if wire_type == _VARINT:
            value, position = _varint(data, position)
            yield number, value
            continue
        if wire_type == _LENGTH:
            size, position = _varint(data, position)
        elif wire_type in _FIXED_BYTES:
            size = _FIXED_BYTES[wire_type]
        else:
            raise ProtobufError(f"wire type {wire_type}")
        if size > end - position:
            raise ProtobufError("field longer than its message")
        content = data[position : position + size]
        yield number, content if wire_type == _LENGTH else int.from_bytes(content, "little")
        position += size


def messages(data: bytes, wanted: int) -> Iterator[bytes]:
    """Yield the bytes of a field, as often as it is there. Raises ProtobufError, also where it is a number."""
    for number, value in fields(data):
        if number == wanted:
            if isinstance(value, int):
                raise ProtobufError(f"field {number} has no length")
            yield value


def integer(data: bytes, wanted: int) -> int:
    """An integer field; 0, which is not sent, without it. Raises ProtobufError, also where it has a length."""
    for number, value in fields(data):
        if number == wanted:
            if isinstance(value, bytes):
                raise ProtobufError(f"field {number} is no number")
            return value
    return 0


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 7 * _MAX_VARINT_BYTES, 7):
        if position >= len(data):
            break
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, position
    raise ProtobufError("varint without an end")
