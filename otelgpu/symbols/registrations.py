"""A stripped program or library → which of its functions launches which kernel.

In: an image whose device code was made by nvcc or clang. Out: addresses of host stubs, relative to where the
image is loaded, and the mangled names of their kernels. Pure; never raises for what is in the code.

At load such a program says the runtime of each kernel::

    __cudaRegisterFunction(handle, stub, name, name, -1, 0, 0, 0, 0, 0)

(``crt/host_runtime.h`` of the toolkit, ``__cudaRegisterEntry``; ``clang/lib/CodeGen/CGCUDANV.cpp``). On
x86-64 the call sites are found by their fifth argument, ``mov r8d, -1``: a rare constant. Between one such
call and the next stand the addresses of stub and name, ``lea rsi`` and ``lea rdx`` or ``lea rcx`` (``mov``
where code is not position-independent), in any order.

A pair counts only if the function called is the one that registers most, the stub begins a function
(``.eh_frame_hdr``) and the fat binary has a kernel of that name: other code that looks alike gives nothing.
Where parts of the fat binary could not be read, its word is done without.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Iterator
from typing import Final

import numpy as np
from msgspec import Struct, field

from otelgpu.elf.image import ElfImage
from otelgpu.model.losses import Reasons
from otelgpu.symbols.fatbin import KernelNames, read_names

MAX_CODE_BYTES: Final = 512 << 20
MAX_ANCHORS: Final = 1 << 17
MAX_SITES: Final = 1 << 16
"""Of one file: libcusparse 12 registers 4,862 kernels."""

MAX_NAMES_BYTES: Final = 32 << 20
"""Of names while the code is read: they may overlap in a file that was made to do harm."""

# mov r8d, -1; or r8d, -1 (gcc -Os); push -1, pop r8 (clang -Oz)
_FIFTH: Final = (b"\x41\xb8\xff\xff\xff\xff", b"\x41\x83\xc8\xff", b"\x6a\xff\x41\x58")
_STUB: Final = re.compile(rb"\x48\x8d\x35(?=(....))", re.DOTALL)
_NAME: Final = re.compile(rb"\x48\x8d[\x15\x0d](?=(....))", re.DOTALL)
_STUB_ABSOLUTE: Final = re.compile(rb"\xbe(?=(....))|\x48\xc7\xc6(?=(....))", re.DOTALL)
_NAME_ABSOLUTE: Final = re.compile(rb"[\xba\xb9](?=(....))|\x48\xc7[\xc2\xc1](?=(....))", re.DOTALL)
_CALL: Final = re.compile(rb"(?:\xe8|\xff\x15)(?=(....))", re.DOTALL)
_IDENTIFIER: Final = re.compile(rb"[A-Za-z_$][\w$.]*")
_CHUNK_BYTES: Final = 1 << 20
_REACH: Final = 128  # bytes of code on either side of the constant; gcc's own blocks have 46 to 60
_FATBINS: Final = (".nv_fatbin", "__nv_relfatbin")  # linked, and what it was linked from

REASONS: Final = Reasons(
    "symbols",
    {
        "registration_ambiguous": "code of a stripped file that registers a kernel, but not clearly which",
        "registration_unconfirmed": "code of a stripped file that looks as if it registers a kernel; the "
        "file has no kernel of "
        "that name",
        "registration_machine": "a stripped file for another machine than x86-64: its code is not read",
    },
)
"""Beside those of the fat binary: keys of :attr:`Registrations.counters`."""


class Registrations(Struct):
    """Stub address → address of its kernel's name, and what was given up on the way."""

    stubs: dict[int, int] = field(default_factory=dict)
    counters: Counter[str] = field(default_factory=Counter)


class _Site(Struct, frozen=True):
    callee: int
    stub: int
    name_address: int
    name: bytes


def has_device_code(image: ElfImage) -> bool:
    """Whether the image carries a fat binary."""
    return any(image.section(name) is not None for name in _FATBINS)


def read_registrations(image: ElfImage) -> Registrations:
    """All kernels that the image's own code registers. Takes about a millisecond per megabyte of code.

    Raises :class:`otelgpu.elf.image.ElfError`.
    """
    result = Registrations()
    if image.machine != "x86-64":
        result.counters["registration_machine"] += 1
        return result
    sites = list(_sites(image, result))
    if not sites:
        return result
    kernels = _kernel_names(image, {site.name for site in sites})
    result.counters += kernels.counters
    callee = _registrar(sites, kernels)
    starts = _function_starts(image)
    named: dict[int, _Site] = {}
    clashing: set[int] = set()
    for site in sites:
        believed = site.callee == callee and (site.name in kernels.names or not kernels.complete)
        if not believed or (starts is not None and site.stub not in starts):
            result.counters["registration_unconfirmed"] += 1
        elif named.setdefault(site.stub, site) != site:
            clashing.add(site.stub)
    for stub in clashing:
        result.counters["registration_ambiguous"] += 1
        del named[stub]
    result.stubs = {stub: site.name_address for stub, site in named.items()}
    return result


def _registrar(sites: list[_Site], kernels: KernelNames) -> int | None:
    """The function that registers most of the kernels: an image is linked with one runtime."""
    votes = Counter(site.callee for site in sites if site.name in kernels.names)
    if not votes and not kernels.complete:
        votes = Counter(site.callee for site in sites)
    return votes.most_common(1)[0][0] if votes else None


def _kernel_names(image: ElfImage, wanted: set[bytes]) -> KernelNames:
    """The kernels of the device code, up to where it has all that are wanted."""
    found = KernelNames()
    for name in _FATBINS:
        section = image.section(name)
        if section is not None and not wanted <= found.names:
            part = read_names(section.content, wanted=wanted - found.names)
            found.names |= part.names
            found.complete &= part.complete
            found.counters += part.counters
    return found


def _sites(image: ElfImage, result: Registrations) -> Iterator[_Site]:
    absolute = min((load.address for load in image.loads), default=0) > 0
    left = MAX_CODE_BYTES
    for address, code in image.code():
        part = code[: max(left, 0)]
        left -= len(code)
        yield from _sites_in(_Code(image, address, part, absolute), result)


class _Code(Struct, frozen=True):
    """An executable segment and how addresses are written in it."""

    image: ElfImage
    address: int
    content: memoryview
    absolute: bool

    def addresses(
        self, low: int, high: int, relative: re.Pattern[bytes], absolute: re.Pattern[bytes] | None
    ) -> Iterator[tuple[int, int]]:
        """(place, address) of each operand in the code from ``low`` to ``high``."""
        window = bytes(self.content[low:high])
        for found in relative.finditer(window):
            (distance,) = struct.unpack("<i", found.group(1))
            yield low + found.start(), self.address + low + found.end() + 4 + distance
        if absolute is not None and self.absolute:
            for found in absolute.finditer(window):
                (value,) = struct.unpack("<I", found.group(1) or found.group(2))
                yield low + found.start(), value


def _sites_in(code: _Code, result: Registrations) -> Iterator[_Site]:
    """The call sites of one segment: first those that may be, then those that agree on whom they call."""
    anchors: list[tuple[int, list[tuple[int, int]]]] = []
    votes: Counter[int] = Counter()
    for anchor in _anchors(code.content):
        calls = [
            (place, callee)
            for place, callee in code.addresses(anchor, anchor + _REACH, _CALL, None)
            if _is_mapped(code.image, callee)
        ]
        before = max(anchor - _REACH, 0)
        if not calls or not any(True for _ in _texts(code, before, calls[-1][0])):
            continue
        anchors.append((anchor, calls))
        votes.update({callee for _, callee in calls})
        if len(anchors) >= MAX_SITES:
            break
    end = 0  # of the call before
    left = MAX_NAMES_BYTES
    for anchor, calls in anchors:
        # A displacement may look like a call: the real callee is called from many places.
        place, callee = max(calls, key=lambda call: (votes[call[1]], -call[0]))
        begin = max(end, anchor - _REACH, 0)
        stubs = [
            stub
            for _, stub in sorted(code.addresses(begin, place, _STUB, _STUB_ABSOLUTE))
            if code.image.offset_of(stub) is not None
        ]
        texts = sorted(_texts(code, begin, place))
        if not stubs or not texts:
            continue
        if begin == end and (len(set(stubs)) > 1 or len({text for _, _, text in texts}) > 1):
            result.counters["registration_ambiguous"] += 1  # nothing else stands between two calls
            continue
        # In front of the first call there may be other code: what is loaded last counts.
        _, address, name = texts[-1]
        left -= len(name)
        if left < 0:
            result.counters["registration_ambiguous"] += 1
            return
        end = place + 5
        yield _Site(callee, stubs[-1], address, name)


def _anchors(content: memoryview) -> list[int]:
    """Where the fifth argument is loaded, in order. By chunks: bytes are searched faster than a buffer."""
    places: list[int] = []
    for start in range(0, len(content), _CHUNK_BYTES):
        chunk = bytes(content[start : start + _CHUNK_BYTES + max(map(len, _FIFTH)) - 1])
        for pattern in _FIFTH:
            place = chunk.find(pattern)
            while 0 <= place < _CHUNK_BYTES and len(places) < MAX_ANCHORS:
                places.append(start + place)
                place = chunk.find(pattern, place + 1)
    return sorted(places)


def _texts(code: _Code, low: int, high: int) -> Iterator[tuple[int, int, bytes]]:
    """(place, address, identifier) of each one whose address is loaded between ``low`` and ``high``."""
    for place, address in code.addresses(low, high, _NAME, _NAME_ABSOLUTE):
        text = code.image.constant_text(address)
        if text and _IDENTIFIER.fullmatch(text):
            yield place, address, text


def _is_mapped(image: ElfImage, address: int) -> bool:
    return any(0 <= address - load.address < load.size for load in image.loads)


def _function_starts(image: ElfImage) -> frozenset[int] | None:
    """Where functions begin, by the search table for unwinding; None when the image has none.

    Linux Standard Base Core, "Exception Frame Header". Every linker writes the encodings that are read here:
    four bytes relative to the place (0x1b), plain count (0x03), table relative to the section (0x3b).
    """
    section = image.section(".eh_frame_hdr")
    if section is None or bytes(section.content[:4]) != b"\x01\x1b\x03\x3b" or len(section.content) < 12:
        return None
    (count,) = struct.unpack_from("<I", section.content, 8)
    count = min(count, (len(section.content) - 12) // 8)
    table = np.frombuffer(section.content[12 : 12 + 8 * count], np.dtype("<i4")).reshape(-1, 2)
    starts: list[int] = (table[:, 0].astype(np.int64) + section.address).tolist()
    return frozenset(starts)
