"""``.eh_frame``: from it a table by which stacks are unwound in the kernel.

In: the section's bytes and address. Out: :class:`UnwindTable`, rows of :data:`otelgpu.layout.frame_rules.ROW`
sorted by address. Opens nothing, keeps nothing of the bytes. Entries that make no sense are left out and counted; where
the section as a whole makes none, :class:`~otelgpu.layout.elf.ElfError` is raised.

Sources: Linux Standard Base Core 5.0, 10.6 (exception frames, ``.eh_frame_hdr``); DWARF 5, 6.4. Only x86-64.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from otelgpu.layout.elf import ElfError, ElfImage
from otelgpu.layout.frame_rules import ROW, Cfa, Flags, Ints, final_states, rows_of

MAX_BYTES: Final = 96 << 20
MAX_ROWS: Final = 1 << 24
MAX_SHARED: Final = 1 << 14  # CIEs: linkers merge equal ones; libraries have a handful
PT_GNU_EH_FRAME: Final = 0x6474E550

AT_ONCE: Final = 1 << 15  # functions: bounds the memory that is needed meanwhile

_ENTRY: Final = struct.Struct("<II")
_LONG: Final = 0xFFFFFFFF
_TAIL: Final = 32  # zeros behind the section: what reads beyond its end reads them
# DW_EH_PE_*: how an address is written
_OMITTED, _INDIRECT, _PC_RELATIVE = 0xFF, 0x80, 0x10
_SIZES: Final = {0: 8, 2: 2, 3: 4, 4: 8, 10: 2, 11: 4, 12: 8}
_SIGNED: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class UnwindTable:
    """How to unwind from any address of a file.

    ``rows``: shape (n,), :data:`~otelgpu.layout.frame_rules.ROW`, ascending by ``pc``; each holds up to the next,
    the last one is ``NONE``. ``functions`` were found; ``damaged`` of them are unknown from some place on, or left out.
    """

    rows: npt.NDArray[np.void]
    functions: int
    damaged: int


@dataclass(frozen=True, slots=True)
class _Shared:
    """A CIE: what functions have in common."""

    start: int  # its instructions
    end: int
    scale: int
    factor: int
    encoding: int
    augmented: bool
    signal: bool


def read_unwind_table(image: ElfImage) -> UnwindTable:
    """The table of a file. Raises ElfError: it has no ``.eh_frame``, or one that cannot be read."""
    if image.machine != "x86-64":
        raise ElfError(f"stacks are unwound on x86-64 only, the file is for {image.machine}")
    section = image.section(".eh_frame")
    if section is not None:
        return unwind_table(section.content, section.address)
    header = image.segment(PT_GNU_EH_FRAME)  # the section headers were cut off
    if header is None:
        raise ElfError("the file has no .eh_frame")
    address = _frames_of(header.content, header.address)
    content = image.content_at(address)
    if not len(content):
        raise ElfError(f"damaged .eh_frame_hdr: there is no .eh_frame at {address:#x}")
    return unwind_table(content, address)


def _frames_of(header: memoryview, address: int) -> int:
    """Where ``.eh_frame`` is, by ``.eh_frame_hdr``: version, three encodings, pointer."""
    if len(header) < 8 or header[0] != 1 or header[1] not in (0x1B, 0x03):
        raise ElfError("damaged .eh_frame_hdr, or one of an unknown encoding")
    (value,) = struct.unpack_from("<i", header, 4)
    return int(value) + (address + 4 if header[1] == 0x1B else 0)


def unwind_table(content: bytes | memoryview, address: int) -> UnwindTable:
    """The table of a section that is loaded at ``address`` of the file. Raises ElfError."""
    if len(content) > MAX_BYTES:
        raise ElfError(f".eh_frame of {len(content)} bytes: the limit is {MAX_BYTES}")
    data = np.zeros(len(content) + _TAIL, np.uint8)
    data[: len(content)] = np.frombuffer(content, np.uint8)
    shared_at, entries, damaged = _entries(content)
    shared: list[_Shared] = []
    number_of: dict[int, int] = {}
    for at, end in shared_at.items():
        try:
            found = _read_shared(content, at, end)
        except (IndexError, ValueError):
            damaged += 1
            continue
        number_of[at] = len(shared)
        shared.append(found)
    owners = np.fromiter((number_of.get(at, -1) for at in entries[:, 0].tolist()), np.int64, len(entries))
    damaged += int((owners < 0).sum())
    entries, owners = entries[owners >= 0], owners[owners >= 0]
    functions = _Functions(data, len(content), address, shared, entries, owners)
    parts, count = [np.zeros(0, ROW)], 0
    for part in functions.rows():
        parts.append(part)
        count += len(part)
        if count > MAX_ROWS:
            raise ElfError(f".eh_frame makes more than {MAX_ROWS} rows")
    rows = np.concatenate(parts)
    if (rows["pc"][1:] < rows["pc"][:-1]).any():  # functions overlap
        rows = rows[np.argsort(rows["pc"], kind="stable")]
    return UnwindTable(rows=rows, functions=functions.count, damaged=damaged + functions.damaged)


def _entries(content: bytes | memoryview) -> tuple[dict[int, int], Ints, int]:
    """CIEs (where, end), FDEs as rows (its CIE, body, end) and how many entries make no sense."""
    shared: dict[int, int] = {}
    found = array("q")
    at, size, damaged = 0, len(content), 0
    unpack = _ENTRY.unpack_from
    while at + 8 <= size:
        length, owner = unpack(content, at)
        body = at + 4
        if length == _LONG:
            if at + 16 > size:
                break
            (length, owner), body = struct.unpack_from("<QI", content, at + 4), at + 12
        elif not length:  # a terminator; linkers leave some in between
            at += 4
            continue
        end = body + length
        if length < 4 or end > size:
            damaged += 1  # where the next begins is not known
            break
        if owner:
            found.extend((body - owner, body + 4, end))
        elif len(shared) < MAX_SHARED:
            shared[at] = end
        else:
            damaged += 1
        at = end
    return shared, np.frombuffer(found, np.int64).reshape(-1, 3), damaged


def _read_leb(content: bytes | memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = content[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at
        if shift > 63:
            raise ValueError("too long a number")


def _read_signed(content: bytes | memoryview, at: int) -> tuple[int, int]:
    value, end = _read_leb(content, at)
    bits = 7 * (end - at)
    return (value - (1 << bits) if content[end - 1] & 0x40 else value), end


def _read_shared(content: bytes | memoryview, at: int, end: int) -> _Shared:
    """A CIE. IndexError or ValueError of one that cannot be read."""
    at += 16 if bytes(content[at : at + 4]) == b"\xff\xff\xff\xff" else 8
    version = content[at]
    if version not in (1, 3):
        raise ValueError("unknown version")
    stop = bytes(content[at + 1 : min(end, at + 17)]).index(0) + at + 1
    letters = bytes(content[at + 1 : stop]).decode("latin-1")
    scale, at = _read_leb(content, stop + 1)
    factor, at = _read_signed(content, at)
    register, at = (content[at], at + 1) if version == 1 else _read_leb(content, at)
    encoding, signal = 0, False
    if letters and letters[0] != "z":
        raise ValueError("unknown augmentation")
    if letters:
        size, at = _read_leb(content, at)
        here, at = at, at + size
        for letter in letters[1:]:
            if letter == "R":
                encoding, here = content[here], here + 1
            elif letter == "L":
                here += 1
            elif letter == "P":
                if content[here] & 0x70 not in (0, _PC_RELATIVE, 0x30):
                    raise ValueError("unknown encoding")
                here += 1 + _SIZES[content[here] & 0xF]
            elif letter == "S":
                signal = True
            else:
                break  # its data is passed over by its size
    if register != 16 or encoding & 0x70 not in (0, _PC_RELATIVE) or encoding & _INDIRECT or at > end:
        raise ValueError("unknown encoding")
    if encoding & 0xF not in _SIZES or not -1024 <= factor <= 1024 or not 0 < scale <= 1024:
        raise ValueError("unknown encoding")
    return _Shared(at, end, scale, factor, encoding, bool(letters), signal)


class _Functions:
    """The FDEs, in columns."""

    def __init__(
        self,
        data: npt.NDArray[np.uint8],
        size: int,
        address: int,
        shared: list[_Shared],
        entries: Ints,
        owners: Ints,
    ) -> None:
        self._data, self._shared = data, shared
        self.damaged = 0
        self._begin = np.zeros(len(entries), np.int64)
        self._length = np.zeros(len(entries), np.int64)
        self._code = np.zeros(len(entries), np.int64)
        self._code_end = np.minimum(entries[:, 2], size)
        self._owners = owners
        ways = [(owner.encoding, owner.augmented) for owner in shared]  # few, however many CIEs there are
        distinct = sorted(set(ways))
        way_of = np.array([distinct.index(way) for way in ways], np.int64)[owners]
        for number, way in enumerate(distinct):
            self._read(np.flatnonzero(way_of == number), *way, entries, address)
        good = (self._begin >= 0) & (self._length > 0) & (self._begin + self._length <= 0xFFFFFFFF)
        good &= self._code <= self._code_end
        self.count = len(good)
        self.damaged += int((~good).sum())
        self._choose(np.flatnonzero(good))

    def _choose(self, which: Ints) -> None:
        for name in ("_begin", "_length", "_code", "_code_end", "_owners"):
            setattr(self, name, getattr(self, name)[which])

    def _read(self, which: Ints, encoding: int, augmented: bool, entries: Ints, address: int) -> None:
        """Those whose CIEs say that addresses are written so."""
        at, size = entries[which, 1], _SIZES[encoding & 0xF]
        begin = self._numbers(at, size, signed=bool(encoding & _SIGNED))
        if encoding & 0x70 == _PC_RELATIVE:
            begin += at + address
        self._begin[which] = begin
        self._length[which] = self._numbers(at + size, size, signed=False)
        code = at + 2 * size
        if augmented:
            # The size of the augmentation's data, a ULEB128: of more than two bytes there is none.
            first = self._data[np.minimum(code, len(self._data) - 1)].astype(np.int64)
            second = self._data[np.minimum(code + 1, len(self._data) - 1)].astype(np.int64)
            long = first >= 0x80
            code = code + np.where(long, 2 + (first & 0x7F) + (second << 7), 1 + first)
        self._code[which] = code

    def _numbers(self, at: Ints, size: int, *, signed: bool) -> Ints:
        """Little-endian numbers of ``size`` bytes; of 8 bytes those beyond 62 bits are -1."""
        value = np.zeros(len(at), np.uint64)
        for i in range(size):
            value |= self._data[np.minimum(at + i, len(self._data) - 1)].astype(np.uint64) << np.uint64(8 * i)
        out: Ints = value.astype(np.int64)
        if size == 8:
            return np.where(abs(out) >> 40 == 0, out, -1 << 50)
        return out - ((out >> (8 * size - 1)) << (8 * size)) if signed else out

    def rows(self) -> Iterator[npt.NDArray[np.void]]:
        """Rows of some functions at a time, in order of address unless functions overlap."""
        shared = self._shared
        factors = np.array([each.factor for each in shared], np.int64)
        states, bad = final_states(
            self._data,
            np.array([each.start for each in shared], np.int64),
            np.array([each.end for each in shared], np.int64),
            factors,
        )
        if len(bad) and bad.any():
            self.damaged += int(bad[self._owners].sum())
            self._choose(np.flatnonzero(~bad[self._owners]))
        self._choose(np.argsort(self._begin, kind="stable"))
        scales = np.array([each.scale for each in shared], np.int64)
        signals = np.array([each.signal for each in shared], np.bool_)
        for first in range(0, len(self._begin), AT_ONCE):
            part = slice(first, first + AT_ONCE)
            owners, begin = self._owners[part], self._begin[part]
            function, pc, rows, damaged = rows_of(
                self._data,
                self._code[part],
                self._code_end[part],
                begin,
                scales[owners],
                factors[owners],
                {name: column[owners] for name, column in states.items()},
            )
            self.damaged += int(damaged.sum())
            rows["rule"][signals[owners][function]] = Cfa.SIGNAL
            stop = begin + self._length[part]
            inside = pc < stop[function]
            rows, pc = rows[inside], pc[inside]
            rows["pc"] = pc
            ends = np.zeros(len(owners), ROW)  # Cfa.NONE
            ends["pc"] = stop
            yield _sorted(np.concatenate([rows, ends]), np.repeat([False, True], [len(rows), len(ends)]))


def _sorted(rows: npt.NDArray[np.void], is_end: Flags) -> npt.NDArray[np.void]:
    """By address. Where several begin at one, the last that a function has; a function's begin before another's end."""
    # Rows of a function come in its order, so that a stable sort keeps it.
    order = np.argsort(rows["pc"].astype(np.int64) * 2 + ~is_end, kind="stable")
    rows = rows[order]
    if not len(rows):
        return rows
    last = np.append(rows["pc"][1:] != rows["pc"][:-1], True)
    rows = rows[last]
    rest = rows.view("<u8") >> np.uint64(32)
    changed = np.append(True, rest[1:] != rest[:-1])
    out: npt.NDArray[np.void] = rows[changed]
    return out
