"""Fat binaries, which carry a program's device code → the names of the kernels in them.

In: the bytes of a ``.nv_fatbin`` section. Out: mangled names. Pure. What is damaged, unknown or too large is
skipped and counted; nothing is decompressed beyond the bound that is passed.

The format is not published. Sources: ``fatbinary_section.h`` of the CUDA toolkit (the wrapper); the headers
in n-eiling/cuda-fatbin-decompression (``fatbin-decompress.h``), Datadog's agent (``pkg/gpu/cuda/fatbin.go``)
and GrigoryEvko/nvopen-tools (``fatbin/FORMAT_SPECIFICATION.md``). Checked against the output of nvcc 13.5 in
each of its compression modes, and against libcurand 10.3, libcusparse 12 and libnccl 2.32. What several
pieces in one entry (nvcc ``--concat``) look like was found out from that output alone. A section is a row of
containers, 8-byte aligned:

    container   magic 0xBA55ED50, u16 version, u16 header bytes (16), u64 bytes of all entries
    entry       u16 kind (1 PTX, 2 cubin, 256 several), u16 version, u32 header bytes (64 and more), u64 payload
                bytes with padding, u32 compressed bytes, … u32 architecture at 28, u64 flags at 40
                (0x2000 LZ4 block, 0x8000 Zstandard), u64 uncompressed bytes at 56
    several     behind the first 64 bytes of such an entry's header: u32 members, u32 bytes of what follows; for
                each 64 bytes: u16 kind, u16 version, u32 offset in the (uncompressed) payload, u32 bytes
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Set
from functools import cache
from itertools import islice
from typing import Final

from msgspec import Struct, field

from otelgpu.model.losses import Reasons
from otelgpu.symbols.cubin import MAX_KERNELS, CubinError, kernel_names, ptx_entries

MAX_PAYLOAD_BYTES: Final = 64 << 20
"""Of one entry, uncompressed. libnccl 2.32 has linked cubins of 38 MB (sm_60) to 134 MB (sm_100)."""

MAX_TOTAL_BYTES: Final = 256 << 20
"""Uncompressed, of one file: half a second of Zstandard."""

DECOMPRESSORS: Final = ("lz4", "zstandard")
"""Packages of the extra ``names``; without one, what is compressed with it is left out."""

DECOMPRESSOR_MODULES: Final = ("lz4.block", "zstandard")
"""What is imported of them."""

_NEXT: Final = re.compile(re.escape(struct.pack("<I", 0xBA55ED50)))
_CONTAINER: Final = struct.Struct("<4sHHQ")
_ENTRY: Final = struct.Struct("<HHIQI8xI8xQ8xQ")
_MEMBER: Final = struct.Struct("<HHII52x")
_PTX, _CUBIN, _SEVERAL = 1, 2, 256
_LZ4, _ZSTD = 0x2000, 0x8000
_MAX_CONTAINERS: Final = 1 << 14  # of one section: nvopen-tools counts 2,775 in libcublasLt.so.13
_MAX_ENTRIES: Final = 1 << 17
_MAX_MEMBERS: Final = 64

Decompress = Callable[[memoryview, int], bytes]

REASONS: Final = Reasons(
    "symbols",
    {
        "fatbin_damaged": "device code of a stripped file that is damaged; it is not read",
        "fatbin_kind_unknown": "device code of a stripped file in a form that is not known",
        "fatbin_too_large": "device code of a stripped file beyond what is decompressed",
        "fatbin_not_decompressed": "device code of a stripped file that cannot be decompressed",
        "decompressor_missing": "device code of a stripped file is compressed; install `otelgpu[names]`",
    },
    unavailable=("decompressor_missing",),
)
"""Why an entry gave no names: the keys of :attr:`KernelNames.counters`."""


class Entry(Struct, frozen=True, kw_only=True):
    """One piece of device code, as it lies in the file. ``architecture`` is 90 for sm_90; sizes in bytes."""

    kind: int
    architecture: int
    payload: memoryview
    compression: int  # 0, _LZ4 or _ZSTD
    size_bytes: int  # uncompressed
    members: tuple[tuple[int, int, int], ...]  # (kind, offset, bytes) of a piece that is several


class KernelNames(Struct):
    """The names of a fat binary's kernels. ``complete`` unless something had to be left unread."""

    names: set[bytes] = field(default_factory=set)
    complete: bool = True
    counters: Counter[str] = field(default_factory=Counter)

    def leave_out(self, reason: str) -> None:
        """Count an entry that was not read."""
        self.counters[reason] += 1
        self.complete = False


def read_names(
    section: memoryview, *, wanted: Set[bytes] | None = None, max_bytes: int = MAX_TOTAL_BYTES
) -> KernelNames:
    """The names of the kernels in a section; of enough of them if it is known which are ``wanted``.

    The same kernels are in a container once per architecture, but for the few that only some architectures
    have. So of each container the pieces for one of them are read, the one with the fewest bytes; the others,
    small ones first, only while something that is wanted is missing.
    """
    result = KernelNames()
    left = max_bytes
    others: list[Entry] = []

    def read(pieces: Iterable[Entry]) -> bool:
        """Whether there is reason to go on."""
        nonlocal left
        for entry in pieces:
            if wanted is not None and wanted <= result.names:
                return False
            if entry.size_bytes > min(MAX_PAYLOAD_BYTES, left) or len(result.names) >= MAX_KERNELS:
                result.leave_out("fatbin_too_large")
                continue
            left -= entry.size_bytes
            _read_entry(entry, result)
        return True

    entries_left = _MAX_ENTRIES
    for number, container in enumerate(containers(section)):
        if number >= _MAX_CONTAINERS or entries_left <= 0:
            result.leave_out("fatbin_too_large")
            break
        found = list(islice(entries(container, result), entries_left))
        entries_left -= len(found)
        cheapest, rest = _by_cost(found, result)
        others += rest
        if not read(cheapest):
            return result
    if wanted is not None:
        read(sorted(others, key=lambda entry: (entry.kind == _PTX, entry.size_bytes)))
    return result


def containers(section: memoryview) -> Iterator[memoryview]:
    """The entries of each container of a section, headers and payloads; what lies between is skipped.

    Each is looked for behind the one before: a section has hundreds of megabytes, and a page that is not
    touched takes no memory.
    """
    place = 0
    while (found := _NEXT.search(section, place)) is not None:
        start = found.start()
        place = start + 4
        if start + _CONTAINER.size > len(section):
            return
        _, _, header_bytes, size = _CONTAINER.unpack_from(section, start)
        end = start + header_bytes + size
        if header_bytes >= _CONTAINER.size and end <= len(section):
            yield section[start + header_bytes : end]
            place = end


def entries(container: memoryview, result: KernelNames) -> Iterator[Entry]:
    """The entries of a container, up to the first damaged one, which is counted."""
    place = 0
    while place + _ENTRY.size <= len(container):
        kind, _, header_bytes, padded, compressed, arch, flags, size = _ENTRY.unpack_from(container, place)
        start, end = place + header_bytes, place + header_bytes + padded
        if header_bytes < _ENTRY.size or end > len(container) or compressed > padded:
            result.leave_out("fatbin_damaged")
            return
        compression = flags & (_LZ4 | _ZSTD)
        stored = compressed if compression and compressed else padded
        yield Entry(
            kind=kind,
            architecture=arch,
            payload=container[start : start + stored],
            compression=compression,
            size_bytes=size if compression else padded,
            members=tuple(_members(container[place + _ENTRY.size : start])) if kind == _SEVERAL else (),
        )
        place = end


def _members(extension: memoryview) -> Iterator[tuple[int, int, int]]:
    if len(extension) < 8:
        return
    count, _ = struct.unpack_from("<II", extension)
    for number in range(min(count, _MAX_MEMBERS, (len(extension) - 8) // _MEMBER.size)):
        kind, _, offset, size = _MEMBER.unpack_from(extension, 8 + number * _MEMBER.size)
        yield kind, offset, size


def _by_cost(found: Iterable[Entry], result: KernelNames) -> tuple[list[Entry], list[Entry]]:
    """The entries of the architecture with the fewest bytes, and those of the others."""
    by_architecture: dict[tuple[bool, int], list[Entry]] = {}
    for entry in found:
        if entry.kind in (_PTX, _CUBIN, _SEVERAL):
            by_architecture.setdefault((entry.kind == _PTX, entry.architecture), []).append(entry)
        else:
            result.leave_out("fatbin_kind_unknown")
    # PTX only where there is nothing else: as text it is larger than it looks.
    groups = sorted(
        by_architecture.items(), key=lambda item: (item[0][0], sum(entry.size_bytes for entry in item[1]))
    )
    return (groups[0][1] if groups else []), [entry for _, group in groups[1:] for entry in group]


def _read_entry(entry: Entry, result: KernelNames) -> None:
    content: memoryview = entry.payload
    if entry.compression:
        try:
            decompress = _decompressor(entry.compression)
        except ImportError:
            result.leave_out("decompressor_missing")
            return
        try:
            content = memoryview(decompress(entry.payload, entry.size_bytes))
        except ValueError:
            result.leave_out("fatbin_not_decompressed")
            return
    members = entry.members or ((entry.kind, 0, len(content)),)
    left = len(content)
    for kind, offset, size in members:
        piece = content[offset : offset + size]
        left -= len(piece)
        if left < 0:  # they lie over one another: as often as there are members, the same would be read
            result.leave_out("fatbin_damaged")
            return
        try:
            result.names |= ptx_entries(piece) if kind == _PTX else kernel_names(piece)
        except CubinError:
            result.leave_out("fatbin_damaged")


@cache
def _decompressor(compression: int) -> Decompress:
    """Takes the payload and the size it is said to have; raises ValueError when it has not.

    Raises ImportError where the package is missing: both come with the extra ``names``.
    """
    if compression == _LZ4:
        import lz4.block

        def decompress_lz4(payload: memoryview, size: int) -> bytes:
            try:
                plain: bytes = lz4.block.decompress(payload, uncompressed_size=size)
            except lz4.block.LZ4BlockError as error:
                raise ValueError("a damaged LZ4 block") from error
            return plain

        return decompress_lz4

    import zstandard

    # The frame's own idea of its window is bounded too, else it alone could claim gigabytes.
    reader = zstandard.ZstdDecompressor(max_window_size=2 * MAX_PAYLOAD_BYTES)

    def decompress_zstd(payload: memoryview, size: int) -> bytes:
        try:
            stream = reader.stream_reader(payload)
            plain: bytes = stream.read(size)
        except zstandard.ZstdError as error:
            raise ValueError("a damaged Zstandard frame") from error
        if len(plain) != size:
            raise ValueError("a Zstandard frame shorter than it is said to be")
        return plain

    return decompress_zstd
