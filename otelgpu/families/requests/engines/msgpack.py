r"""Reads MessagePack whose schema is known only in part, whole or cut off.

In: bytes. Out: the elements of an array, undecoded, and each one's kind; or None: not an array, or not all there.
Format: https://github.com/msgpack/msgpack/blob/master/spec.md. msgspec skips what is not asked for, in C, and
checks it meanwhile. Nothing here raises on any bytes.

Example: ``elements(b"\x93\xa1x\xc0\x91\x01")`` gives the raw bytes of ``"x"``, nil and ``[1]``;
``kinds`` of them is ``"sna"``.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

Buffer = bytes | bytearray | memoryview
NIL = msgspec.Raw(b"\xc0")
MALFORMED = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)
"""What msgspec raises on hostile bytes."""

_RUNS = (
    ("i", 0x80),  # positive fixint
    ("m", 0x90),  # fixmap
    ("a", 0xA0),  # fixarray
    ("s", 0xC0),  # fixstr
    ("n", 0xC1),
    ("?", 0xC2),  # never used
    ("b", 0xC4),
    ("y", 0xC7),  # bin 8, 16, 32
    ("x", 0xCA),  # ext 8, 16, 32
    ("f", 0xCC),
    ("i", 0xD4),  # uint and int of 8 to 64 bits
    ("x", 0xD9),  # fixext
    ("s", 0xDC),  # str 8, 16, 32
    ("a", 0xDE),
    ("m", 0xE0),
    ("i", 0x100),  # negative fixint
)
_STARTS = (0, *(end for _, end in _RUNS))
_KINDS = "".join(kind * (end - start) for (kind, end), start in zip(_RUNS, _STARTS, strict=False))
_ARRAYS = {0xDC: 2, 0xDD: 4}  # width of the length
_STRINGS = {0xD9: 1, 0xDA: 2, 0xDB: 4}

_elements = msgspec.msgpack.Decoder(list[msgspec.Raw])


def kind(value: msgspec.Raw) -> str:
    """Return nil as "n", bool "b", int "i", float "f", str "s", bin "y", array "a", map "m", ext "x"."""
    return _KINDS[memoryview(value)[0]]


def kinds(values: Sequence[msgspec.Raw]) -> str:
    """Return the :func:`kind` of each, in one string."""
    return "".join(map(kind, values))


def elements(data: bytes | bytearray | msgspec.Raw) -> list[msgspec.Raw] | None:
    """Return the elements of the array that ``data`` is, from its first to its last byte."""
    try:
        return _elements.decode(data)
    except MALFORMED:
        return None


def some_elements(data: bytes, count: int) -> list[msgspec.Raw] | None:
    """Return the ``count`` values that ``data`` is made of, if it is made of so many."""
    return elements(array_header(count) + data)


def array_header(count: int) -> bytes:
    """Return how an array of ``count`` elements begins."""
    return bytes([0x90 | count]) if count < 16 else b"\xdc" + count.to_bytes(2, "big")


def array_at(data: Buffer, at: int) -> tuple[int, int] | None:
    """Return the number of elements of an array that begins there, and where its first one begins."""
    if at >= len(data):
        return None
    first = data[at]
    if 0x90 <= first <= 0x9F:
        return first & 0x0F, at + 1
    width = _ARRAYS.get(first)
    if width is None or at + 1 + width > len(data):
        return None
    return int.from_bytes(data[at + 1 : at + 1 + width], "big"), at + 1 + width


def string_at(data: Buffer, at: int) -> tuple[str, int] | None:
    """Return a string that begins there, and where it ends."""
    if at >= len(data):
        return None
    first = data[at]
    width = 0 if 0xA0 <= first <= 0xBF else _STRINGS.get(first)
    if width is None or at + 1 + width > len(data):
        return None
    start = at + 1 + width
    size = int.from_bytes(data[at + 1 : start], "big") if width else first & 0x1F
    if start + size > len(data):
        return None
    try:
        return str(data[start : start + size], "utf-8"), start + size
    except UnicodeDecodeError:
        return None
