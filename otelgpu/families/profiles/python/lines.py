"""Which line of its file an instruction of a code object belongs to: the line tables of CPython 3.9 to 3.14.

In: the bytes of ``co_lnotab`` (3.9) or ``co_linetable``, ``co_firstlineno``. Out: :class:`LineTable`. Damaged tables
give fewer ranges or strange lines, never an error.

Sources: Objects/lnotab_notes.txt (3.9; 3.10: the section on ``co_linetable``), Objects/locations.md (3.11; later
InternalDocs/code_objects.md).

Example: ``def f():`` on line 7 with ``return 1`` on line 8 has the ranges (0, 2, 7), (2, 6, 8) in 3.12.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Final

from msgspec import Struct

MAX_LINE: Final = (1 << 31) - 1
_NO_LINE: Final = -128  # 3.10: this line's delta says that there is none
_NO_LOCATION: Final = 15
_LONG: Final = 14
_NO_COLUMNS: Final = 13
_ONE_LINE: Final = 10  # and 11, 12: with this number of lines more
_MOST_SHIFT: Final = 30

Range = tuple[int, int, int | None]
"""(first byte, byte behind the last, line) as ``co_lines()`` gives them; None: code that is of no line."""


class LineTable(Struct, frozen=True):
    """Decoded. ``starts`` ascending; ``lines``: of each, the last known where a range has none."""

    first_line: int
    starts: tuple[int, ...]
    lines: tuple[int, ...]

    def line_at(self, offset: int) -> int:
        """The line of the instruction ``offset`` bytes into the code; negative: before the first one."""
        row = bisect_right(self.starts, offset) - 1
        return self.lines[row] if row >= 0 else self.first_line


def line_table(table: bytes, first_line: int, minor: int) -> LineTable:
    """``minor``: of the interpreter, 9 to 14."""
    starts: list[int] = []
    lines: list[int] = []
    last = first_line
    for start, end, line in ranges(table, first_line, minor):
        last = last if line is None else line
        if start == end:
            continue
        starts.append(start)
        lines.append(last if 0 <= last <= MAX_LINE else first_line)
    return LineTable(first_line, tuple(starts), tuple(lines))


def ranges(table: bytes, first_line: int, minor: int) -> Iterator[Range]:
    """As the table has them, not joined; the last of 3.9 reaches to no end: its end is its start plus 1."""
    if minor >= 11:
        return _locations(table, first_line)
    return _deltas(table, first_line) if minor == 10 else _line_numbers(table, first_line)


def _signed(byte: int) -> int:
    return byte - 256 if byte > 127 else byte


def _line_numbers(table: bytes, line: int) -> Iterator[Range]:
    """3.9: (more bytes, more lines); the bytes come before the line."""
    start = address = 0
    for at in range(0, len(table) - 1, 2):
        if table[at]:
            address += table[at]
        if table[at + 1]:
            if address > start:
                yield start, address, line
                start = address
            line += _signed(table[at + 1])
    yield start, max(address, start + 1), line


def _deltas(table: bytes, line: int) -> Iterator[Range]:
    """3.10: (bytes of this range, more lines before it)."""
    start = 0
    for at in range(0, len(table) - 1, 2):
        end, delta = start + table[at], _signed(table[at + 1])
        if delta != _NO_LINE:
            line += delta
        yield start, end, None if delta == _NO_LINE else line
        start = end


def _locations(table: bytes, line: int) -> Iterator[Range]:
    """3.11: entries whose first byte has bit 7: 4 bits of kind, 3 of (code units - 1)."""
    at = start = 0
    while at < len(table):
        first = table[at]
        at += 1
        kind, end = first >> 3 & 15, start + 2 * ((first & 7) + 1)
        if kind in (_NO_COLUMNS, _LONG):
            line += _zigzag(_number(table, at))
        elif _ONE_LINE <= kind < _NO_COLUMNS:
            line += kind - _ONE_LINE
        while at < len(table) and not table[at] & 0x80:
            at += 1
        yield start, end, None if kind == _NO_LOCATION else line
        start = end


def _number(table: bytes, at: int) -> int:
    """Six bits to a byte, the lowest first; bit 6: more follow."""
    number = 0
    for shift in range(0, _MOST_SHIFT + 6, 6):
        if at >= len(table):
            break
        number |= (table[at] & 0x3F) << shift
        if not table[at] & 0x40:
            break
        at += 1
    return number


def _zigzag(number: int) -> int:
    return -(number >> 1) if number & 1 else number >> 1
