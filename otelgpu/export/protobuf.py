"""The protobuf wire format, as far as OTLP attributes need it. Pure.

Values come in, bytes or columns of words go out. It must not know spans.
Source: https://protobuf.dev/programming-guides/encoding/ and opentelemetry/proto/common/v1/common.proto.
"""

from __future__ import annotations

from functools import lru_cache
from struct import pack
from typing import Any

import numpy as np
import numpy.typing as npt

from otelgpu.model.codes import bounds
from otelgpu.model.resource import AttributeValue

AnyArray = npt.NDArray[Any]

_u = np.uint64

# Tag bytes: field number << 3 | wire type (0 varint, 1 fixed64, 2 bytes, 5 fixed32).
KEY, VALUE = b"\x0a", b"\x12"  # of a KeyValue
ANY_STRING, ANY_BOOL, ANY_INT, ANY_DOUBLE, ANY_ARRAY = b"\x0a", b"\x10", b"\x18", b"\x21", b"\x2a"


@lru_cache(maxsize=4096)
def varint(value: int) -> bytes:
    """The shortest varint of a non-negative ``value``."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def utf8(text: str) -> bytes:
    """``text`` as valid UTF-8; what is not Unicode becomes "?"."""
    return text.encode("utf-8", "replace")


def delimited(tag: bytes, data: bytes) -> bytes:
    """A length-delimited field."""
    return tag + varint(len(data)) + data


def key_value(key: str, value: bytes) -> bytes:
    """A KeyValue message around an encoded AnyValue."""
    return delimited(KEY, utf8(key)) + delimited(VALUE, value)


def any_value(value: AttributeValue) -> bytes:
    """An AnyValue message (opentelemetry/proto/common/v1/common.proto)."""
    if isinstance(value, bool):
        return ANY_BOOL + bytes([value])
    if isinstance(value, int):
        return ANY_INT + varint(value & 0xFFFF_FFFF_FFFF_FFFF)
    if isinstance(value, float):
        return ANY_DOUBLE + pack("<d", value)
    if isinstance(value, str):
        return delimited(ANY_STRING, utf8(value))
    return delimited(ANY_ARRAY, b"".join(delimited(b"\x0a", any_value(entry)) for entry in value))


def varint_width(values: AnyArray) -> int:
    """The least of 1, 2, 4, 8 and 10 bytes that holds every integer of a column as 64 bits."""
    least, top = bounds(values)
    if least < 0:
        return 10
    return next((width for width in (1, 2, 4, 8) if top < 1 << (7 * width)), 10)


def word_formats(width: int) -> tuple[str, ...]:
    """dtypes of the words that hold a varint of ``width`` bytes."""
    return {1: ("u1",), 2: ("<u2",), 4: ("<u4",), 8: ("<u8",), 10: ("<u8", "<u2")}[width]


def varint_words(values: AnyArray, width: int) -> tuple[AnyArray, ...]:
    """Over-long varints of ``width`` bytes, as the little-endian words that hold them.

    Seven-bit groups are spread to eight bits apart by halves: 28+28, 14+14, 7+7; then each byte but the
    last gets its continuation bit. Width 10 takes a second word for bits 56..63. Narrow widths are worked out
    in narrow words. ``values`` are integers of any type that fit ``width``.
    """
    if width == 1:
        return (values.astype(np.uint8),)
    if width == 2:
        short = values.astype(np.uint16)
        return (((short & np.uint16(0x3F80)) << np.uint16(1)) | (short & np.uint16(0x7F)) | np.uint16(0x80),)
    if width == 4:
        y = values.astype(np.uint32)
        y = ((y & np.uint32(0x0FFF_C000)) << np.uint32(2)) | (y & np.uint32(0x0000_3FFF))
        y = ((y & np.uint32(0x3F80_3F80)) << np.uint32(1)) | (y & np.uint32(0x007F_007F))
        return (y | np.uint32(0x0080_8080),)
    x = values.astype(np.int64).view(np.uint64) if values.dtype.kind == "i" else values.astype(np.uint64)
    high = (x >> _u(56)) & _u(0x7F) | _u(0x80) | ((x >> _u(63)) << _u(8)) if width == 10 else x
    x = ((x & _u(0x00FF_FFFF_F000_0000)) << _u(4)) | (x & _u(0x0000_0000_0FFF_FFFF))
    x = ((x & _u(0x0FFF_C000_0FFF_C000)) << _u(2)) | (x & _u(0x0000_3FFF_0000_3FFF))
    x = ((x & _u(0x3F80_3F80_3F80_3F80)) << _u(1)) | (x & _u(0x007F_007F_007F_007F))
    if width == 10:
        return x | _u(0x8080_8080_8080_8080), high.astype("<u2")
    return (x | _u(0x0080_8080_8080_8080),)
