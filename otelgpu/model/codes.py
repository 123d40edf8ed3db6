"""Columns as small dense codes, which are what fast joins, groups and sorts are made of. Pure.

In: integer columns of length n. Out: codes 0..k-1, one per distinct value or combination, in ascending order
of the values. Where the range of values allows, by a table look-up (a few ns a row); else by sorting. An
order by such codes is a radix sort, for numpy has one for 16-bit integers.

Example: tids 907, 904, 907 have the codes 1, 0, 1 of the values 904, 907; their stable order is 1, 0, 2.
Invariant: ``values[codes]`` is the column.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Codes = npt.NDArray[np.intp]

_TABLE: Final = 1 << 16
"""Look-up tables of this size are always worth it; larger ones when they are small next to the column."""


def all_of(mask: npt.NDArray[np.bool_]) -> bool:
    """``mask.all()``, at a fraction of its fixed cost, which says where columns are many and short."""
    return bool(np.count_nonzero(mask) == mask.size)


def bounds(column: npt.NDArray[Any]) -> tuple[int, int]:
    """The least and the greatest of an integer column; (0, -1) of none. Cheap as :func:`all_of`."""
    if not len(column):
        return 0, -1
    return int(np.minimum.reduce(column)), int(np.maximum.reduce(column))


def _fits(size: int, rows: int) -> bool:
    return size <= max(_TABLE, 8 * rows)


def _above(column: npt.NDArray[Any], low: int) -> Codes:
    """How far each value is above ``low``, the least: a difference that a narrow signed type may not hold."""
    above: Codes
    if column.dtype.kind == "u":
        above = (column - column.dtype.type(low)).astype(np.intp)
    else:
        above = column.astype(np.intp)
        above -= low
    return above


def dense(codes: Codes, size: int) -> tuple[Codes, int]:
    """Renumber ``codes`` (each in ``range(size)``) to 0..k-1, order kept; and k."""
    if not _fits(size, len(codes)):
        found, inverse = np.unique(codes, return_inverse=True)
        return inverse.reshape(-1), len(found)
    seen = np.zeros(size, dtype=np.bool_)
    seen[codes] = True
    found = np.flatnonzero(seen)
    if len(found) == size:
        return codes, size
    renumber = np.empty(size, dtype=np.intp)
    renumber[found] = np.arange(len(found))
    return renumber[codes], len(found)


def distinct(column: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], Codes]:
    """The distinct values of an integer column, ascending, and the code of each row."""
    if not len(column):
        return column[:0].copy(), np.zeros(0, dtype=np.intp)
    low, high = bounds(column)
    size = high - low + 1
    if not _fits(size, len(column)):
        values, codes = np.unique(column, return_inverse=True)
        return values, codes.reshape(-1)
    if size == 1:
        return column[:1].copy(), np.zeros(len(column), dtype=np.intp)
    codes = _above(column, low)
    seen = np.zeros(size, dtype=np.bool_)
    seen[codes] = True
    found = np.flatnonzero(seen)
    renumber = np.empty(size, dtype=np.intp)
    renumber[found] = np.arange(len(found))
    return found.astype(column.dtype) + column.dtype.type(low), renumber[codes]


def values_of(column: npt.NDArray[Any]) -> list[int]:
    """The distinct values of an integer column, ascending."""
    low, high = bounds(column)
    if low == high:
        return [low]
    if not _fits(high - low + 1, len(column)):
        values: list[int] = np.unique(column).tolist()
        return values
    seen = np.zeros(high - low + 1, dtype=np.bool_)
    seen[_above(column, low)] = True
    return [low + place for place in np.flatnonzero(seen).tolist()]


def mix(columns: Iterable[tuple[Codes, int]], rows: int) -> tuple[Codes, int]:
    """One code per combination of the columns' codes, and the size of its range, of which not all need occur.

    Each column comes with the size of its range; order is by the first column, then the second, and so on.
    The running product of sizes is renumbered whenever it outgrows a lookup table, so it never overflows.
    """
    code, size = np.zeros(rows, dtype=np.intp), 1
    for column, radix in columns:
        if radix <= 1:
            continue
        if size == 1:
            code, size = column, radix
            continue
        if not _fits(size * radix, rows):
            code, size = dense(code, size)
        code, size = code * radix + column, size * radix
    return code, size


def combine(columns: Iterable[tuple[Codes, int]], rows: int) -> tuple[Codes, int]:
    """The codes of :func:`mix` without gaps; and how many there are."""
    return dense(*mix(columns, rows))


def codes_of_bytes(column: npt.NDArray[Any]) -> tuple[Codes, int]:
    """The codes of a column of bytes, in their order, and how many there are: numpy would compare byte by byte.

    Each value is of whole words of 8 bytes: shape (n,) of ``S16``, or (n, 16) of ``u1``.
    """
    words = np.ascontiguousarray(column).reshape(-1).view(">u8").astype(np.uint64)
    each = len(words) // max(len(column), 1)
    columns = [distinct(np.ascontiguousarray(words[place::each])) for place in range(each)]
    return combine([(codes, len(values)) for values, codes in columns], len(column))


def order_of(codes: Codes, size: int) -> Codes:
    """The stable order of ``codes`` (each in ``range(size)``)."""
    narrow: npt.NDArray[Any] = codes
    if size <= 1 << 8:
        narrow = codes.astype(np.uint8)
    elif size <= 1 << 16:
        narrow = codes.astype(np.uint16)
    return narrow.argsort(kind="stable")


def examples(codes: Codes, size: int) -> Codes:
    """One row of each of the dense ``codes``: shape (size,)."""
    rows = np.empty(size, dtype=np.intp)
    rows[codes] = np.arange(len(codes))
    return rows
