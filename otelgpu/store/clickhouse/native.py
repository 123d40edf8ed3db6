"""Answers in ClickHouse's format ``Native``: blocks of columns in, columns of numpy out. Pure.

A block is the number of its columns and of its rows, and for each column name, type and values; numbers are
little-endian, a text is its length and its bytes (https://clickhouse.com/docs/interfaces/formats/Native). Lengths are
base-128 varints. What comes over a network may be cut anywhere: nothing is read beyond its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np

Column = np.ndarray[Any, Any]

_NUMBERS: Final = {
    **{f"UInt{bits}": np.dtype(f"<u{bits // 8}") for bits in (8, 16, 32, 64)},
    **{f"Int{bits}": np.dtype(f"<i{bits // 8}") for bits in (8, 16, 32, 64)},
    "Bool": np.dtype("?"),
    "Float32": np.dtype("<f4"),
    "Float64": np.dtype("<f8"),
}
_TEXT, _CODED = "String", "LowCardinality("
_WORD: Final = np.dtype("<u8")
_CODES: Final = {width: np.dtype(f"<u{1 << width}") for width in range(4)}
_OWN_VALUES: Final = 0x200  # they are in the block
_LONGEST_VARINT: Final = 10


class Malformed(ValueError):
    """It is no answer in this format, or not all of one."""


class _Bytes:
    """Read from the beginning to the end."""

    def __init__(self, content: bytes) -> None:
        self._content, self._at = content, 0

    def __bool__(self) -> bool:
        return self._at < len(self._content)

    def take(self, size: int) -> bytes:
        end = self._at + size
        if end > len(self._content):
            raise Malformed(f"cut at byte {len(self._content)}")
        taken, self._at = self._content[self._at : end], end
        return taken

    def varint(self) -> int:
        value = 0
        for place in range(_LONGEST_VARINT):
            (byte,) = self.take(1)
            value |= (byte & 0x7F) << (7 * place)
            if byte < 0x80:
                return value
        raise Malformed("a length has no end")

    def text(self) -> str:
        return self.take(self.varint()).decode("utf-8", "replace")


def columns(ask: Callable[[str], bytes], query: str) -> dict[str, Column]:
    """Each column of the answer by its name; texts as objects. ``ask``: a query and its format in, its answer out.

    Raises `Malformed`, also for types that are not known.
    """
    found = decoded(ask(f"{query} FORMAT Native"))
    if found:
        return found
    described = decoded(ask(f"DESCRIBE TABLE ({query}) FORMAT Native"))  # an answer without rows has no block
    return {
        name: np.zeros(0, dtype=_NUMBERS.get(_inner(of_type), np.dtype(object)))
        for name, of_type in zip(described["name"].tolist(), described["type"].tolist(), strict=True)
    }


def decoded(content: bytes) -> dict[str, Column]:
    """The columns of the blocks; none of no block. Raises `Malformed`."""
    parts: dict[str, list[Column]] = {}
    for block in _blocks(_Bytes(content)):
        for name, values in block:
            parts.setdefault(name, []).append(values)
    if len({sum(map(len, values)) for values in parts.values()}) > 1:
        raise Malformed("columns of different lengths")
    return {name: np.concatenate(values) for name, values in parts.items()}


def _blocks(read: _Bytes) -> Iterator[list[tuple[str, Column]]]:
    while read:
        count, rows = read.varint(), read.varint()
        yield [_column(read, rows) for _ in range(count)]


def _column(read: _Bytes, rows: int) -> tuple[str, Column]:
    name, of_type = read.text(), read.text()
    inner = _inner(of_type)
    if inner not in (_TEXT, *_NUMBERS):
        raise Malformed(f"column {name!r} has type {of_type!r}, which is not read here")
    return name, _values(read, rows, inner) if inner == of_type else _coded(read, rows, inner)


def _inner(of_type: str) -> str:
    """Of values that are coded, the type of what the codes stand for."""
    return of_type.removeprefix(_CODED).removesuffix(")") if of_type.startswith(_CODED) else of_type


def _values(read: _Bytes, rows: int, of_type: str) -> Column:
    return _texts(read, rows) if of_type == _TEXT else _numbers(read, rows, _NUMBERS[of_type])


def _numbers(read: _Bytes, rows: int, dtype: np.dtype[Any]) -> Column:
    return np.frombuffer(read.take(rows * dtype.itemsize), dtype=dtype)


def _texts(read: _Bytes, rows: int) -> Column:
    texts = [read.text() for _ in range(rows)]
    found = np.empty(len(texts), dtype=object)
    found[:] = texts
    return found


def _coded(read: _Bytes, rows: int, of_type: str) -> Column:
    """A version, and of rows: flags with the width of the codes, the values, and a code for each row."""
    read.take(_WORD.itemsize)
    if not rows:
        return _values(read, 0, of_type)
    (flags,) = _numbers(read, 1, _WORD)
    width = int(flags) & 0xFF
    if width not in _CODES or not int(flags) & _OWN_VALUES:
        raise Malformed(f"coded values with flags {int(flags):#x}")
    values = _values(read, int(_numbers(read, 1, _WORD)[0]), of_type)
    codes = _numbers(read, int(_numbers(read, 1, _WORD)[0]), _CODES[width])
    if len(codes) != rows or int(codes.max()) >= len(values):
        raise Malformed("codes of values that are not there")
    return values[codes]
