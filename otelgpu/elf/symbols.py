"""ELF symbol tables in columns: names looked for in all symbols at once, functions found by address.

In: the bytes of a symbol table and of its strings. Out: symbol numbers. Knows nothing of files or segments
(that is :mod:`otelgpu.elf.image`) and raises nothing: a place outside a table reads as zeros.

Source: System V ABI, chapter "Symbol Table", and ``/usr/include/elf.h``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct

U64 = npt.NDArray[np.uint64]
Rows = npt.NDArray[np.intp]

SYMBOL: Final = np.dtype(
    [("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<u8"), ("size", "<u8")]
)
"""Elf64_Sym, 24 bytes."""

STB_LOCAL: Final = 0
MAX_NAME_BYTES: Final = 4096

_STB_WEAK: Final = 2
_STT_FUNC, _STT_GNU_IFUNC = 2, 10
_HIDDEN_VERSION: Final = 0x8000  # in .gnu.version: not the default one of its name
_AT: Final = np.uint64(ord("@"))
_BYTE: Final = np.uint64(0xFF)
_LAST: Final = np.uint64(0xFFFFFFFFFFFFFFFF)

# Rows that are matched at a time: 2 MB a column, so that a million symbols need no gigabyte.
_CHUNK_ROWS: Final = 1 << 18
# Functions that hold one another and the address: real ones nest once or twice.
_MAX_NESTING: Final = 1 << 10


class Strings:
    """A string table, and eight-byte reads at any number of places in it at once."""

    def __init__(self, data: memoryview) -> None:
        self._data = data if len(data) >= 8 else memoryview(bytes(data).ljust(8, b"\0"))
        self.size = len(self._data)
        # Overlapping: word i starts at byte i.
        self._words: U64 = np.ndarray((self.size - 7,), "<u8", self._data, 0, (1,))

    def words(self, places: U64) -> U64:
        """The eight bytes from each place on, little-endian; zeros behind the table's end."""
        inside = np.minimum(places, np.uint64(self.size - 8))
        beyond = places - inside
        read: U64 = self._words[inside] >> (np.minimum(beyond, np.uint64(7)) * np.uint64(8))
        read[beyond >= 8] = 0
        return read

    def text(self, place: int) -> str:
        """The string at ``place``, at most MAX_NAME_BYTES of it; empty when it is outside the table."""
        raw = bytes(self._data[place : place + MAX_NAME_BYTES]).partition(b"\0")[0]
        return raw.decode("utf-8", "backslashreplace")

    def matches(self, places: U64, first: U64, wanted: bytes) -> Rows:
        """Which of the strings that start at ``places`` are ``wanted``, alone or before a version (``@``).

        ``first`` is ``words(places)``, computed once for all names that are looked for.
        """
        length = len(wanted)
        head = np.uint64(int.from_bytes(wanted[:8], "little"))
        if length < 8:
            first = first & np.uint64((1 << 8 * length) - 1)
        hits: Rows = np.flatnonzero(first == head)
        for place in [*range(8, length - 8, 8), *([length - 8] if length > 8 else [])]:
            if not len(hits):
                return hits
            word = np.uint64(int.from_bytes(wanted[place : place + 8], "little"))
            hits = hits[self.words(places[hits] + np.uint64(place)) == word]
        behind = self.words(places[hits] + np.uint64(length)) & _BYTE
        kept: Rows = hits[(behind == 0) | (behind == _AT)]
        return kept


class SymbolTable(Struct, frozen=True):
    """One of a file's symbol tables. ``versions`` is its ``.gnu.version``, a word per symbol, or None."""

    symbols: npt.NDArray[np.void]  # SYMBOL
    strings: Strings
    versions: npt.NDArray[np.uint16] | None

    def functions(self, *, with_ifuncs: bool) -> Rows:
        """The numbers of the symbols that are defined functions and have a name."""
        kind = self.symbols["info"] & 0xF
        chosen = kind == _STT_FUNC
        if with_ifuncs:
            chosen |= kind == _STT_GNU_IFUNC
        chosen &= self.symbols["section"] != 0
        chosen &= self.symbols["value"] != 0
        chosen &= self.symbols["name"] < self.strings.size
        rows: Rows = np.flatnonzero(chosen)
        return rows

    def named(self, wanted: list[bytes]) -> Iterator[tuple[bytes, Rows]]:
        """(name, symbol numbers) for each wanted function that occurs, best first; a name may come twice.

        An STT_GNU_IFUNC does not count: at its value is the resolver, not the function.
        """
        found: dict[bytes, list[Rows]] = {}
        by_head: dict[int, list[bytes]] = {}  # by the first eight bytes
        for name in wanted:
            if len(name) >= 8:
                by_head.setdefault(int.from_bytes(name[:8], "little"), []).append(name)
        heads = np.array(list(by_head), np.uint64)
        short = [name for name in wanted if len(name) < 8]
        rows = self.functions(with_ifuncs=False)
        for start in range(0, len(rows), _CHUNK_ROWS):
            chunk = rows[start : start + _CHUNK_ROWS]
            places = self.symbols["name"][chunk].astype(np.uint64)
            first = self.strings.words(places)
            self._match(short, chunk, places, first, found)
            likely = np.flatnonzero(np.isin(first, heads))
            if not len(likely):
                continue  # most files, and as many names as there may be
            likely = likely[np.argsort(first[likely], kind="stable")]
            begins = np.searchsorted(first[likely], heads)
            ends = np.searchsorted(first[likely], heads, side="right")
            for names, begin, end in zip(by_head.values(), begins, ends, strict=True):
                if begin < end:
                    alike = likely[begin:end]
                    self._match(names, chunk[alike], places[alike], first[alike], found)
        for name, parts in found.items():
            numbers = np.concatenate(parts)
            yield name, numbers[np.argsort(self._rank(numbers, len(name)), kind="stable")]

    def _match(
        self, wanted: list[bytes], rows: Rows, places: U64, first: U64, found: dict[bytes, list[Rows]]
    ) -> None:
        """Add to ``found`` which of ``rows`` are called like one of ``wanted``."""
        for name in wanted:
            hits = self.strings.matches(places, first, name)
            if len(hits):
                found.setdefault(name, []).append(rows[hits])

    def _rank(self, numbers: Rows, length: int) -> npt.NDArray[np.uint8]:
        """Lower is better: the default version before others, then global before weak before local."""
        rank = binding_rank(self.symbols["info"][numbers])
        suffix = self.strings.words(self.symbols["name"][numbers].astype(np.uint64) + np.uint64(length))
        hidden = ((suffix & _BYTE) == _AT) & (((suffix >> np.uint64(8)) & _BYTE) != _AT)
        if self.versions is not None:
            hidden |= (self.versions[numbers] & _HIDDEN_VERSION) != 0
        rank[hidden] += 4
        return rank


def binding_rank(info: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Of ``st_info``: 0 for STB_GLOBAL and STB_GNU_UNIQUE, 1 for STB_WEAK, 2 for STB_LOCAL."""
    binding = info >> 4
    return np.where(binding == STB_LOCAL, 2, np.where(binding == _STB_WEAK, 1, 0)).astype(np.uint8)


class _Spans(Struct, frozen=True):
    """The best symbol for each distinct start, sorted by start."""

    starts: U64
    ends: U64  # exclusive
    reach: U64  # the furthest end so far: stops the walk back over functions that hold others
    numbers: npt.NDArray[np.uint32]

    def find(self, address: int) -> int | None:
        row = int(np.searchsorted(self.starts, np.uint64(address), side="right")) - 1
        for candidate in range(row, max(-1, row - _MAX_NESTING), -1):
            if int(self.reach[candidate]) <= address:
                return None
            if int(self.ends[candidate]) > address:
                return int(self.numbers[candidate])
        return None


class FunctionIndex:
    """Functions by address, over the symbol tables of one file; 28 bytes per function.

    Symbol numbers run through all ``tables`` in their order. ``extents`` are (address, bytes) of the code
    sections: a symbol without a size reaches to the next symbol or to the end of its extent. Without
    extents it holds its first byte only: in a stripped file what follows may be anybody's.
    """

    def __init__(self, tables: tuple[SymbolTable, ...], extents: list[tuple[int, int]]) -> None:
        before = 0
        numbers, starts, sizes, ranks = [], [], [], []
        for order, table in enumerate(tables):
            rows = table.functions(with_ifuncs=True)
            numbers.append((rows + before).astype(np.uint32))
            starts.append(table.symbols["value"][rows])
            sizes.append(table.symbols["size"][rows])
            ranks.append(binding_rank(table.symbols["info"][rows]) * np.uint8(2) + np.uint8(order))
            before += len(table.symbols)
            del rows
        start = np.concatenate([*starts, np.zeros(0, np.uint64)])
        size = np.concatenate([*sizes, np.zeros(0, np.uint64)])
        rank = np.concatenate([*ranks, np.zeros(0, np.uint8)])
        number = np.concatenate([*numbers, np.zeros(0, np.uint32)])
        del starts, sizes, ranks, numbers

        sized = size > 0
        inner, inner_size = start[sized], size[sized]
        del size
        ends = inner + np.minimum(inner_size, _LAST - inner)
        del inner_size
        self._sized = _spans(inner, ends, rank[sized], number[sized])
        del inner, ends
        points = start[~sized]
        ceilings = _ceilings(points, start, extents) if extents else points + np.uint64(1)
        self._unsized = _spans(points, ceilings, rank[~sized], number[~sized])

    @property
    def size_bytes(self) -> int:
        """Of its columns."""
        spans = (self._sized, self._unsized)
        return sum(each.nbytes for one in spans for each in (one.starts, one.ends, one.reach, one.numbers))

    def find(self, address: int) -> int | None:
        """The number of the innermost function whose code holds ``address``; a sized one if there is one."""
        found = self._sized.find(address)
        return self._unsized.find(address) if found is None else found


def _spans(starts: U64, ends: U64, ranks: npt.NDArray[np.uint8], numbers: npt.NDArray[np.uint32]) -> _Spans:
    order = np.argsort(ranks, kind="stable")  # of bytes: a radix sort
    order = order[np.argsort(starts[order], kind="stable")]
    ordered = starts[order]
    best = np.ones(len(ordered), dtype=bool)
    best[1:] = ordered[1:] != ordered[:-1]
    order = order[best]
    ends = ends[order]
    return _Spans(ordered[best], ends, np.maximum.accumulate(ends), numbers[order])


def _ceilings(points: U64, starts: U64, extents: list[tuple[int, int]]) -> U64:
    """For each point the next larger start, or the end of its extent if that is nearer."""
    ordered = np.sort(starts)  # np.unique would take ten times as long
    following = np.searchsorted(ordered, points, side="right")
    ceilings: U64 = np.append(ordered, _LAST)[following]
    for address, size in extents:
        inside = (points >= address) & (points - np.uint64(address) < size)
        ceilings[inside] = np.minimum(ceilings[inside], np.uint64(min(address + size, int(_LAST))))
    return ceilings
