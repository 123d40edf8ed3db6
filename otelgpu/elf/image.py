"""ELF images: where a function lies in the file, which function lies at a file offset, what ld.so reads.

In: the bytes of an ELF file (a ``memoryview`` of an mmap does). Out: file offsets, symbols and the strings
of the dynamic section. Opens nothing, reads no clock, keeps the buffer as long as it lives.

Sources: System V ABI (https://refspecs.linuxfoundation.org/elf/gabi4+/contents.html), chapters "Sections",
"Symbol Table", "Program Header", "Dynamic Section"; ``/usr/include/elf.h`` for the GNU additions.

Every table is a numpy structured array straight over the buffer: a million symbols are searched in tenths
of a second, and each extent is checked against the file's size before it is read. Whatever is wrong with
a file ends in :class:`ElfError`.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Collection, Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from otelgpu.elf.symbols import MAX_NAME_BYTES, STB_LOCAL, SYMBOL, FunctionIndex, Strings, SymbolTable
from otelgpu.errors import OtelgpuError

Table = npt.NDArray[np.void]

HEADER: Final = np.dtype(
    [
        ("magic", "<u4"),
        ("file_class", "u1"),
        ("data", "u1"),
        ("ident", "u1", 10),
        ("type", "<u2"),
        ("machine", "<u2"),
        ("version", "<u4"),
        ("entry", "<u8"),
        ("segments_at", "<u8"),
        ("sections_at", "<u8"),
        ("flags", "<u4"),
        ("header_size", "<u2"),
        ("segment_size", "<u2"),
        ("segment_count", "<u2"),
        ("section_size", "<u2"),
        ("section_count", "<u2"),
        ("names_section", "<u2"),
    ]
)
"""Elf64_Ehdr, 64 bytes."""

SEGMENT: Final = np.dtype(
    [(name, "<u4") for name in ("type", "flags")]
    + [(name, "<u8") for name in ("offset", "address", "physical", "file_size", "memory_size", "align")]
)
"""Elf64_Phdr, 56 bytes."""

SECTION: Final = np.dtype(
    [
        ("name", "<u4"),
        ("type", "<u4"),
        ("flags", "<u8"),
        ("address", "<u8"),
        ("offset", "<u8"),
        ("size", "<u8"),
        ("link", "<u4"),
        ("info", "<u4"),
        ("align", "<u8"),
        ("entry_size", "<u8"),
    ]
)
"""Elf64_Shdr, 64 bytes."""

DYNAMIC: Final = np.dtype([("tag", "<i8"), ("value", "<u8")])
"""Elf64_Dyn, 16 bytes."""

MACHINES: Final = {62: "x86-64", 183: "aarch64"}

_MAGIC: Final = int.from_bytes(b"\x7fELF", "little")
_PT_LOAD, _PT_DYNAMIC, _PT_INTERP, _PT_NOTE = 1, 2, 3, 4
PT_TLS: Final = 7
_PF_X, _PF_W = 1, 2
_SHT_SYMTAB, _SHT_NOTE, _SHT_NOBITS, _SHT_DYNSYM, _SHT_VERSYM = 2, 7, 8, 11, 0x6FFFFFFF
_SHF_EXECINSTR: Final = 4
_DT_NEEDED, _DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ = 1, 4, 5, 6, 10
_DT_SONAME, _DT_RPATH, _DT_RUNPATH, _DT_GNU_HASH, _DT_FLAGS_1 = 14, 15, 29, 0x6FFFFEF5, 0x6FFFFFFB
_DF_1_PIE: Final = 0x08000000

# Bounds on what a file may ask for. Linked images have a few dozen sections and a handful of segments;
# libtorch_cuda.so has about a million symbols. Two million cost less than 200 MB while the index is made.
MAX_SECTIONS: Final = 1 << 17
MAX_SEGMENTS: Final = 1 << 10
MAX_SYMBOLS: Final = 2_000_000
_MAX_DYNAMIC: Final = 1 << 14
_MAX_NEEDED: Final = 1 << 10
_MAX_ALIASES: Final = 1 << 6
_MAX_NOTE_BYTES: Final = 1 << 16


class ElfError(OtelgpuError):
    """The bytes are not an ELF image that this program can read: foreign, truncated or inconsistent."""


class Symbol(Struct, frozen=True, kw_only=True):
    """A function of an image.

    ``name`` is as in the symbol table, without a version (``@@VERS_1``). ``file_offset`` is where its code
    begins in the file, ``size_bytes`` its length, 0 when the table gives none. ``is_local`` is STB_LOCAL.
    """

    name: str
    file_offset: int
    size_bytes: int
    is_local: bool


class Load(Struct, frozen=True):
    """A PT_LOAD segment: ``size`` bytes from ``offset`` of the file on lie at ``address``."""

    address: int
    offset: int
    size: int
    executable: bool
    writable: bool


class ThreadLocals(Struct, frozen=True):
    """The PT_TLS segment: what each thread has a copy of, ``size`` bytes of it."""

    address: int
    size: int
    align: int


class Section(Struct, frozen=True):
    """A section's address in memory, relative to where the image is loaded, its bytes, and their place in the file."""

    address: int
    content: memoryview
    offset: int


class ElfImage:
    """One 64-bit little-endian x86-64 or aarch64 file.

    Building it reads the headers and the dynamic section (about 0.1 ms); symbols are read when asked for.

    Raises :class:`ElfError` from the constructor and from both lookups, and nothing else.
    """

    needed: tuple[str, ...]
    """DT_NEEDED, in order."""
    soname: str | None
    rpath: tuple[str, ...]
    """DT_RPATH, split at colons, ``$ORIGIN`` unexpanded."""
    runpath: tuple[str, ...]
    """DT_RUNPATH, likewise."""
    interpreter: str | None
    """PT_INTERP: the dynamic linker that the kernel starts."""
    machine: str
    """``x86-64`` or ``aarch64``."""
    build_id: str | None
    """NT_GNU_BUILD_ID in hex."""
    is_dynamic: bool
    """Loads, or is, a shared library. False for a static program, also a position-independent one."""
    is_stripped: bool
    """Has no ``.symtab``: functions that are not exported have no name."""
    is_go: bool
    """Built by the Go toolchain, whose stacks move: return probes would corrupt them."""

    def __init__(self, buffer: bytes | bytearray | memoryview, *, symbols_only: bool = False) -> None:
        """``symbols_only`` reads a file of debugging symbols: its segments describe another file."""
        self._data = memoryview(buffer).cast("B")
        self._header = header = self._read_header()
        self._sections = self._read_sections(header)
        self._segments = np.zeros(0, SEGMENT) if symbols_only else self._read_segments(header)
        self._loads = self._read_loads()
        self._dynamic = self._read_dynamic()
        self._describe()
        self._tables: tuple[SymbolTable, ...] | None = None
        self._index: FunctionIndex | None = None
        self._added_bytes = 0

    # -- Lookups ---------------------------------------------------------------------------------------

    def function_offsets(self, names: Collection[str]) -> dict[str, int]:
        """File offsets for uprobes, of those ``names`` that are defined functions in executable segments.

        Exported symbols (``.dynsym``) come before ``.symtab``; of several versions of one name the default
        (``name@@VERSION``) counts; global symbols come before weak and local ones. An STT_GNU_IFUNC is left
        out: at its address is the resolver, which runs once and is not the function.
        """
        offsets: dict[str, int] = {}
        for table in reversed(self._symbol_tables()):
            missing = {name.encode("utf-8", "surrogateescape"): name for name in names if name not in offsets}
            missing.pop(b"", None)
            for encoded, numbers in table.named(list(missing)):
                for value in table.symbols["value"][numbers[:_MAX_ALIASES]].tolist():
                    place = self._offset_of(value, executable=True)
                    if place is not None:
                        offsets[missing[encoded]] = place[0]
                        break
        return offsets

    def symbol_at(self, file_offset: int) -> Symbol | None:
        """The function whose code holds ``file_offset``, or None.

        A symbol without a size reaches to the next symbol or the end of its section (in a stripped file it
        holds its first byte only), and counts only where no sized one does. Of several symbols at one
        address a global one comes before a local one, and ``.symtab`` before ``.dynsym``. From the first
        call on 28 bytes per function are kept.
        """
        for load in self._loads:
            if load.executable and 0 <= file_offset - load.offset < load.size:
                break
        else:
            return None
        tables = self._symbol_tables()
        if self._index is None:
            self._index = FunctionIndex(tables, [] if self.is_stripped else self._code_extents())
        number = self._index.find(file_offset - load.offset + load.address)
        if number is None:
            return None
        table, *others = tables
        while number >= len(table.symbols):
            number, table = number - len(table.symbols), others.pop(0)
        symbol = table.symbols[number]
        start = self._offset_of(int(symbol["value"]), executable=True)
        if start is None:
            return None
        return Symbol(
            name=table.strings.text(int(symbol["name"])).partition("@")[0],
            file_offset=start[0],
            size_bytes=int(symbol["size"]),
            is_local=int(symbol["info"]) >> 4 == STB_LOCAL,
        )

    def add_symbols(self, debug: ElfImage) -> None:
        """Look functions up in ``debug`` too: the symbols that were stripped from this file.

        It was opened with ``symbols_only``. Raises :class:`ElfError`.
        """
        extra = tuple(table for table in debug._symbol_tables() if len(table.symbols))
        self._tables = (*self._symbol_tables(), *extra)
        self._index = None
        if isinstance(debug.buffer.obj, bytes):  # else a file's, whose pages are the kernel's to take back
            self._added_bytes += len(debug.buffer)

    @property
    def held_bytes(self) -> int:
        """Memory that is kept for :meth:`symbol_at`: the index, and what was added of no file."""
        return self._added_bytes + (self._index.size_bytes if self._index is not None else 0)

    def forget_symbols(self) -> None:
        """Give that back: the index is made again when it is wanted again, and what was added is not there."""
        self._tables = self._index = None
        self._added_bytes = 0

    # -- Places ----------------------------------------------------------------------------------------

    @property
    def buffer(self) -> memoryview:
        """The bytes that the image is made of."""
        return self._data

    @property
    def loads(self) -> tuple[Load, ...]:
        """The PT_LOAD segments, in the order of the file."""
        return tuple(self._loads)

    @property
    def thread_locals(self) -> ThreadLocals | None:
        """What of the image is thread-local; None when nothing is."""
        found = self._segments[self._segments["type"] == PT_TLS]
        if not len(found):
            return None
        address, size, align = (int(found[0][name]) for name in ("address", "memory_size", "align"))
        return ThreadLocals(address, size, max(align, 1))

    @property
    def dynamic(self) -> dict[int, int]:
        """The dynamic section by tag; the first of each counts, as in ld.so."""
        return dict(reversed(self._dynamic))

    @property
    def symbol_tables(self) -> tuple[SymbolTable, ...]:
        """``.symtab`` and ``.dynsym``, those that there are. Raises :class:`ElfError`."""
        return self._symbol_tables()

    def content_at(self, address: int) -> memoryview:
        """The file's bytes from ``address`` to the end of its segment; none where the file has none."""
        place = self._offset_of(address)
        return self._data[place[0] : place[0] + place[1]] if place else self._data[:0]

    def address_of(self, file_offset: int) -> int | None:
        """Where the code at ``file_offset`` lies in memory, relative to where the image is loaded."""
        for load in self._loads:
            if load.executable and 0 <= file_offset - load.offset < load.size:
                return file_offset - load.offset + load.address
        return None

    def offset_of(self, address: int) -> int | None:
        """The inverse of :meth:`address_of`."""
        place = self._offset_of(address, executable=True)
        return place[0] if place else None

    def data_offset_of(self, address: int) -> int | None:
        """Where in the file what is at ``address`` comes from, code or not."""
        place = self._offset_of(address)
        return place[0] if place else None

    def code(self) -> list[tuple[int, memoryview]]:
        """(address, bytes) of what is code: sections, or segments where the section headers were cut off.

        A segment with code may hold hundreds of megabytes of constants too.
        """
        found = []
        for address, size in self._code_extents():
            place = self._offset_of(address, executable=True)
            if place is not None:
                found.append((address, self._data[place[0] : place[0] + min(size, place[1])]))
        return found

    def constant_text(self, address: int) -> bytes | None:
        """The zero-terminated string at ``address`` of a segment that cannot be written to, or None."""
        for load in self._loads:
            if not load.writable and 0 <= address - load.address < load.size:
                start = load.offset + address - load.address
                text = bytes(self._data[start : min(start + MAX_NAME_BYTES, load.offset + load.size)])
                return text.partition(b"\0")[0] if b"\0" in text else None
        return None

    def section(self, name: str) -> Section | None:
        """The first section of that name; None when it is missing, empty or not in the file."""
        found = self._named(name.encode())
        found = found[(found["type"] != _SHT_NOBITS) & (found["size"] > 0)]
        if not len(found):
            return None
        row = found[0]
        content = self._slice(int(row["offset"]), int(row["size"]), f"section {name}")
        return Section(int(row["address"]), content, int(row["offset"]))

    def segment(self, kind: int) -> Section | None:
        """The first segment of a kind (``PT_…``) that lies in the file; None when there is none."""
        found = self._segments[(self._segments["type"] == kind) & (self._segments["file_size"] > 0)]
        if not len(found):
            return None
        row = found[0]
        content = self._slice(int(row["offset"]), int(row["file_size"]), "segment")
        return Section(int(row["address"]), content, int(row["offset"]))

    # -- Tables ----------------------------------------------------------------------------------------

    def _slice(self, offset: int, size: int, what: str) -> memoryview:
        if offset + size > len(self._data):
            raise ElfError(
                f"truncated or damaged ELF file: its {what} would end at byte {offset + size} "
                f"of {len(self._data)}"
            )
        return self._data[offset : offset + size]

    def _array(self, dtype: np.dtype[np.void], offset: int, count: int, what: str) -> Table:
        return np.frombuffer(self._slice(offset, count * dtype.itemsize, what), dtype)

    def _read_header(self) -> np.void:
        if len(self._data) < HEADER.itemsize or bytes(self._data[:4]) != b"\x7fELF":
            raise ElfError("not an ELF file")
        header: np.void = self._array(HEADER, 0, 1, "header")[0]
        if header["file_class"] != 2 or header["data"] != 1 or int(header["machine"]) not in MACHINES:
            raise ElfError(
                f"unsupported ELF file: class {header['file_class']}, data encoding {header['data']}, machine "
                f"{header['machine']}; only 64-bit little-endian x86-64 and aarch64 are supported"
            )
        return header

    def _read_sections(self, header: np.void) -> Table:
        at, count = int(header["sections_at"]), int(header["section_count"])
        if not at:
            return np.zeros(0, SECTION)
        if header["section_size"] != SECTION.itemsize:
            raise ElfError(f"damaged ELF file: section headers of {header['section_size']} bytes")
        if not count:  # 0xff00 and more: the first header holds the number
            count = int(self._array(SECTION, at, 1, "section headers")[0]["size"])
        if count > MAX_SECTIONS:
            raise ElfError(f"damaged ELF file: {count} sections")
        return self._array(SECTION, at, count, "section headers")

    def _read_segments(self, header: np.void) -> Table:
        at, count = int(header["segments_at"]), int(header["segment_count"])
        if not at or not count:
            return np.zeros(0, SEGMENT)
        if header["segment_size"] != SEGMENT.itemsize:
            raise ElfError(f"damaged ELF file: program headers of {header['segment_size']} bytes")
        if count > MAX_SEGMENTS:
            raise ElfError(f"damaged ELF file: {count} segments")
        return self._array(SEGMENT, at, count, "program headers")

    def _read_loads(self) -> list[Load]:
        loads = []
        for segment in self._segments[self._segments["type"] == _PT_LOAD]:
            address, offset, size = (int(segment[name]) for name in ("address", "offset", "file_size"))
            if offset + size > len(self._data) or address + size > 1 << 64:
                raise ElfError(
                    f"truncated or damaged ELF file: a segment reaches beyond its {len(self._data)} bytes"
                )
            flags = int(segment["flags"])
            loads.append(Load(address, offset, size, bool(flags & _PF_X), bool(flags & _PF_W)))
        return loads

    def _read_dynamic(self) -> list[tuple[int, int]]:
        """(tag, value) pairs before DT_NULL."""
        found = self._segments[self._segments["type"] == _PT_DYNAMIC]
        if not len(found):
            return []
        count = min(int(found[0]["file_size"]) // DYNAMIC.itemsize, _MAX_DYNAMIC)
        entries = self._array(DYNAMIC, int(found[0]["offset"]), count, "dynamic entries")
        ends = np.flatnonzero(entries["tag"] == 0)
        pairs: list[tuple[int, int]] = entries[: ends[0] if len(ends) else count].tolist()
        return pairs

    def _offset_of(self, address: int, *, executable: bool = False) -> tuple[int, int] | None:
        """(file offset, bytes left in the segment) of an address, in any segment or in those of code."""
        for load in self._loads:
            if 0 <= address - load.address < load.size and (load.executable or not executable):
                inside = address - load.address
                return load.offset + inside, load.size - inside
        return None

    def _describe(self) -> None:
        tags = self.dynamic
        strings = self._dynamic_strings(tags)

        def text(tag: int) -> str | None:
            return strings.text(tags[tag]) if strings and tag in tags else None

        self.machine = MACHINES[int(self._header["machine"])]
        wanted = [value for tag, value in self._dynamic if tag == _DT_NEEDED][:_MAX_NEEDED]
        self.needed = tuple(strings.text(value) for value in wanted) if strings else ()
        self.soname = text(_DT_SONAME)
        self.rpath = tuple((text(_DT_RPATH) or "").split(":")) if _DT_RPATH in tags else ()
        self.runpath = tuple((text(_DT_RUNPATH) or "").split(":")) if _DT_RUNPATH in tags else ()
        self.interpreter = None
        found = self._segments[self._segments["type"] == _PT_INTERP]
        if len(found):
            size = min(int(found[0]["file_size"]), MAX_NAME_BYTES)
            raw = bytes(self._slice(int(found[0]["offset"]), size, "interpreter's name"))
            self.interpreter = raw.partition(b"\0")[0].decode("utf-8", "surrogateescape")
        static_pie = self.interpreter is None and bool(tags.get(_DT_FLAGS_1, 0) & _DF_1_PIE)
        self.is_dynamic = bool(self._dynamic) and not static_pie
        self.is_stripped = not bool(np.any(self._sections["type"] == _SHT_SYMTAB))
        notes = dict(reversed(list(self._notes())))
        build_id = notes.get((b"GNU", 3))  # NT_GNU_BUILD_ID
        self.build_id = build_id.hex() if build_id else None
        self.is_go = (b"Go", 4) in notes or bool(len(self._named(b".go.buildinfo")))

    def _dynamic_strings(self, tags: dict[int, int]) -> Strings | None:
        place = self._offset_of(tags[_DT_STRTAB]) if _DT_STRTAB in tags else None
        if place is None:
            return None
        size = min(tags.get(_DT_STRSZ, 0), place[1])
        return Strings(self._slice(place[0], size, "dynamic string table"))

    def _named(self, name: bytes) -> Table:
        """The sections of that name, which may be stored as the end of another's."""
        number = int(self._header["names_section"])
        if number == 0xFFFF and len(self._sections):  # SHN_XINDEX
            number = int(self._sections[0]["link"])
        if not 0 < number < len(self._sections):
            return self._sections[:0]
        names = self._sections[number]
        data = bytes(self._slice(int(names["offset"]), min(int(names["size"]), 1 << 22), "section names"))
        places = [found.start() for found in re.finditer(re.escape(name + b"\0"), data)]
        return self._sections[np.isin(self._sections["name"], places)]

    def _notes(self) -> Iterator[tuple[tuple[bytes, int], bytes]]:
        """((owner, type), description) of each note, from segments and sections."""
        kinds = ((self._segments, _PT_NOTE, "file_size"), (self._sections, _SHT_NOTE, "size"))
        for table, kind, size_name in kinds:
            for extent in table[table["type"] == kind][:16]:
                align = 8 if extent["align"] == 8 else 4
                size = min(int(extent[size_name]), _MAX_NOTE_BYTES)
                data = bytes(self._slice(int(extent["offset"]), size, "note"))
                place = 0
                while place + 12 <= len(data):
                    owner_size, size, number = struct.unpack_from("<3I", data, place)
                    body = place + 12 + -(-owner_size // 4) * 4
                    if align == 8:
                        body = -(-body // 8) * 8
                    owner = data[place + 12 : place + 12 + owner_size].rstrip(b"\0")
                    yield (owner, number), data[body : body + size]
                    place = -(-(body + size) // align) * align

    # -- Symbols ---------------------------------------------------------------------------------------

    def _symbol_tables(self) -> tuple[SymbolTable, ...]:
        """``.symtab`` and ``.dynsym``, those that there are, in this order."""
        if self._tables is None:
            tables = [self._table_of_section(kind) for kind in (_SHT_SYMTAB, _SHT_DYNSYM)]
            if not len(self._sections):
                tables.append(self._table_of_dynamic())
            found = tuple(table for table in tables if table is not None)
            total = sum(len(table.symbols) for table in found)
            if total > MAX_SYMBOLS:
                raise ElfError(f"ELF file with {total} symbols; at most {MAX_SYMBOLS} are read")
            self._tables = found
        return self._tables

    def _table_of_section(self, kind: int) -> SymbolTable | None:
        found = self._sections[self._sections["type"] == kind]
        if not len(found):
            return None
        section = found[0]
        link = int(section["link"])
        if section["entry_size"] != SYMBOL.itemsize or not 0 < link < len(self._sections):
            raise ElfError("damaged ELF file: a symbol table with wrong entries or no strings")
        count = int(section["size"]) // SYMBOL.itemsize
        symbols = self._array(SYMBOL, int(section["offset"]), count, "symbols")
        names = self._sections[link]
        if names["type"] == _SHT_NOBITS:
            raise ElfError("damaged ELF file: a symbol table whose strings are not in the file")
        strings = Strings(self._slice(int(names["offset"]), int(names["size"]), "string table"))
        versions = self._sections[self._sections["type"] == _SHT_VERSYM]
        column = None
        if kind == _SHT_DYNSYM and len(versions) and int(versions[0]["size"]) >= 2 * count:
            raw = self._slice(int(versions[0]["offset"]), 2 * count, "symbol versions")
            column = np.frombuffer(raw, np.dtype("<u2"))
        return SymbolTable(symbols, strings, column)

    def _table_of_dynamic(self) -> SymbolTable | None:
        """The exported symbols of a file whose section headers were cut off: what ld.so itself uses."""
        tags = self.dynamic
        strings = self._dynamic_strings(tags)
        place = self._offset_of(tags.get(_DT_SYMTAB, 0))
        if strings is None or place is None:
            return None
        count = min(self._count_dynamic(tags), place[1] // SYMBOL.itemsize)
        return SymbolTable(self._array(SYMBOL, place[0], count, "symbols"), strings, None)

    def _count_dynamic(self, tags: dict[int, int]) -> int:
        """How many symbols the hash table reaches (gABI "Hash Table"; GNU: the last chain's odd hash)."""

        def words(address: int) -> npt.NDArray[np.uint32]:
            place = self._offset_of(address)
            if place is None:
                return np.zeros(0, np.uint32)
            size = min(place[1], 4 * (MAX_SYMBOLS + (1 << 20)))
            return np.frombuffer(self._slice(place[0], size // 4 * 4, "symbol hash table"), np.dtype("<u4"))

        if _DT_HASH in tags:
            table = words(tags[_DT_HASH])
            return int(table[1]) if len(table) > 1 else 0
        table = words(tags.get(_DT_GNU_HASH, 0))
        if len(table) < 4:
            return 0
        bucket_count, first, bloom_count = (int(word) for word in table[:3])
        buckets = table[4 + 2 * bloom_count :][:bucket_count]
        chains = table[4 + 2 * bloom_count + bucket_count :]
        last = int(buckets.max()) if len(buckets) else 0
        if last < first:
            return first
        ends = np.flatnonzero(chains[last - first :] & 1)
        return last + int(ends[0]) + 1 if len(ends) else 0

    def _code_extents(self) -> list[tuple[int, int]]:
        """(address, bytes) of the code sections."""
        code = self._sections[(self._sections["flags"] & _SHF_EXECINSTR) != 0][:MAX_SEGMENTS]
        extents = [(int(section["address"]), int(section["size"])) for section in code]
        return extents or [(load.address, load.size) for load in self._loads if load.executable]
