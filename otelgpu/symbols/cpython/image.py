"""CPython in an ELF image: its version, where its state lies, and which code evaluates frames.

In: an image of a program or library. Out: :class:`Interpreter`, with addresses relative to where the image is
loaded, or the reason why there is none that could be followed. Opens nothing.

``_PyRuntime`` is exported by every build, and has a section of its own, ``.PyRuntime``, in many since 3.10. What is
at it in the file is what the process finds there when it starts: since 3.13 the interpreter's own offsets.
"""

from __future__ import annotations

import re
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from otelgpu.elf.eh_frame import PT_GNU_EH_FRAME
from otelgpu.elf.image import ElfImage, Load
from otelgpu.elf.symbols import SymbolTable
from otelgpu.elf.tls import RELOCATION
from otelgpu.symbols.cpython.layout import (
    PUBLISHED_BYTES,
    CPython,
    Version,
    listed,
    published,
    published_version,
)

Ranges = tuple[tuple[int, int], ...]
Words = npt.NDArray[np.uint64]

UNKNOWN_VERSION: Final = "interpreter_unknown_version"
FREE_THREADED: Final = "interpreter_free_threaded"
STRIPPED: Final = "interpreter_stripped"

_STT_OBJECT, _STT_FUNC = 1, 2
_RUNTIME, _VERSION, _CODE_TYPE = "_PyRuntime", "Py_Version", "PyCode_Type"
# With what compilers make of it: .cold, .part.0, .llvm.123, .lto_priv.0.
_EVALUATOR: Final = re.compile(r"_PyEval_EvalFrameDefault(\..*)?")
_EVALUATOR_HEAD: Final = np.uint64(int.from_bytes(b"_PyEval_", "little"))
# Optimisers may leave little of it under its name: 1.2 kB in Debian's 3.14, while the whole has 40 to 80 kB.
_SMALL_BYTES: Final = 8192
_TAIL_CALL: Final = re.compile(r"_TAIL_CALL_\w+(\..*)?")  # 3.14: functions of one instruction each
_TAIL_CALL_HEAD: Final = np.uint64(int.from_bytes(b"_TAIL_CA", "little"))
# The table of places that it jumps to: one for each opcode, those that are none to the same place.
_OPCODES: Final = 256
_MOST_IN_TABLE: Final = 300  # with other tables behind it
_LEAST_PLACES: Final = 180  # 3.12 has 200 and more
_R_RELATIVE: Final = 8
_SPLIT_SINCE: Final = 12
_MOST_PARTS: Final = 16  # of one function: more are functions of an instruction each
_MOST_EVALUATORS: Final = 1 << 10
_NAMED: Final = re.compile(r"(?:lib)?python3\.(\d{1,2})")
# PY_VERSION, which linkers also make the end of a longer text (".../versions/3.9.18"). Others that are linked in
# have such numbers too: OpenSSL 3.0.x, SQLite 3.4x.y.
_VERSION_TEXT: Final = re.compile(rb"(?<![\d.])3\.(\d{1,2})\.(\d{1,2})(?:(?:a|b|rc)\d{1,2})?\+?\x00")
_LIKELY_MINORS: Final = range(7, 31)  # those with a _PyRuntime


class Runtime(Struct, frozen=True, kw_only=True):
    """The state of an interpreter that an image holds. Addresses are relative to where the image is loaded."""

    version: Version
    layout: CPython
    address: int  # of _PyRuntime
    code_type: int | None  # PyCode_Type; None: not exported


class Interpreter(Struct, frozen=True, kw_only=True):
    """What an image holds.

    ``evaluators``: [start, end) of the evaluation function's parts, by address. ``has_tail_calls``: it calls a
    function for each instruction (3.14 may be built so), so that an evaluation is two native frames.
    """

    version: Version
    layout: CPython
    runtime: int
    code_type: int | None  # PyCode_Type; None: not exported
    evaluators: Ranges
    has_tail_calls: bool


def may_be_interpreter(name: str) -> bool:
    """Whether a file of that name is worth a look; a program may have any name."""
    return "python" in name.lower()


def find_interpreter(image: ElfImage, name: str) -> Interpreter | str | None:
    """``name``: of the file. A text is the reason why it cannot be followed; None: there is no interpreter in it.

    Raises :class:`~otelgpu.elf.image.ElfError`.
    """
    runtime = find_runtime(image, name)
    if not isinstance(runtime, Runtime):
        return runtime
    evaluators, has_tail_calls = _evaluators(image, runtime.version.minor)
    return Interpreter(
        version=runtime.version,
        layout=runtime.layout,
        runtime=runtime.address,
        code_type=runtime.code_type,
        evaluators=evaluators,
        has_tail_calls=has_tail_calls,
    )


def find_runtime(image: ElfImage, name: str) -> Runtime | str | None:
    """The same without what evaluates frames, which takes longest to find."""
    objects = _objects(image.symbol_tables, (_RUNTIME, _VERSION, _CODE_TYPE))
    address = objects.get(_RUNTIME)
    if address is None:
        section = image.section(".PyRuntime")
        if section is None:
            named = _NAMED.match(image.soname or name) is not None
            depends = any(_NAMED.match(library) for library in image.needed)
            return STRIPPED if named and not depends and image.is_stripped and not _may_extend(name) else None
        address = section.address
    content = bytes(image.content_at(address)[:PUBLISHED_BYTES])
    layout: CPython | None
    reported = published_version(content)
    if reported is not None:
        version, free_threaded = reported
        if free_threaded:
            return FREE_THREADED
        layout = published(content)
    else:
        found = _version_of(image, objects.get(_VERSION), name)
        if found is None:
            return UNKNOWN_VERSION
        version, layout = found, listed(found)
    if layout is None:
        return UNKNOWN_VERSION
    return Runtime(version=version, layout=layout, address=address, code_type=objects.get(_CODE_TYPE))


def _may_extend(name: str) -> bool:
    """Libraries that are called after the interpreter and are none: libpython3.so, python3.11's extensions."""
    return name == "libpython3.so" or ".cpython-" in name


def _objects(tables: tuple[SymbolTable, ...], names: tuple[str, ...]) -> dict[str, int]:
    """Addresses of variables, by their names."""
    found: dict[str, int] = {}
    for table in tables:
        symbols = table.symbols
        defined = ((symbols["info"] & 0xF) == _STT_OBJECT) & (symbols["section"] != 0)
        rows = np.flatnonzero(defined & (symbols["name"] < table.strings.size))
        places = symbols["name"][rows].astype(np.uint64)
        first = table.strings.words(places)
        for name in names:
            hits = table.strings.matches(places, first, name.encode())
            if len(hits):
                found.setdefault(name, int(symbols["value"][rows[hits[0]]]))
    return found


def _evaluators(image: ElfImage, minor: int) -> tuple[Ranges, bool]:
    """And whether instructions are functions of their own."""
    tables = image.symbol_tables
    found = _functions(tables, _EVALUATOR, _EVALUATOR_HEAD)
    if minor < _SPLIT_SINCE or sum(end - start for start, end in found) >= _SMALL_BYTES:
        return found, False
    others = _functions(tables, _TAIL_CALL, _TAIL_CALL_HEAD) or _jumped_to(image)
    if len(others) > _MOST_PARTS:
        return found, True
    return tuple(sorted({*found, *others})), False


def _functions(tables: tuple[SymbolTable, ...], names: re.Pattern[str], head: np.uint64) -> Ranges:
    """[start, end) of the functions whose names match; ``head``: the first eight bytes of such a name."""
    found: set[tuple[int, int]] = set()
    for table in tables:
        rows = table.functions(with_ifuncs=False)
        first = table.strings.words(table.symbols["name"][rows].astype(np.uint64))
        for row in rows[first == head][:_MOST_EVALUATORS]:
            symbol = table.symbols[row]
            if names.fullmatch(table.strings.text(int(symbol["name"])).partition("@")[0]):
                start = int(symbol["value"])
                found.add((start, start + max(int(symbol["size"]), 1)))
    return tuple(sorted(found))


# -- Without names ---------------------------------------------------------------------------------------------


def _jumped_to(image: ElfImage) -> Ranges:
    """The functions, or cold parts of one, that hold the places in the evaluator's table of opcodes."""
    starts = function_starts(image)
    best: Words = np.zeros(0, np.uint64)
    for load in image.loads:
        if load.executable or not len(starts):
            continue
        words = _words(image, load)
        into_code = np.zeros(len(words) + 2, np.int8)
        for address, content in image.code():
            into_code[1:-1] |= (words >= address) & (words < address + len(content))
        edges = np.flatnonzero(np.diff(into_code))
        for first, behind in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            if _OPCODES <= behind - first <= _MOST_IN_TABLE:
                places = np.unique(words[first:behind])
                best = places if len(places) > max(len(best), _LEAST_PLACES) else best
    rows = np.unique(np.searchsorted(starts, best, side="right"))
    rows = rows[(rows > 0) & (rows < len(starts))]
    return tuple((int(starts[row - 1]), int(starts[row])) for row in rows[:_MOST_EVALUATORS])


def _words(image: ElfImage, load: Load) -> Words:
    """A segment as words of 64 bits, as the dynamic linker leaves it at base 0."""
    words: Words = np.frombuffer(image.content_at(load.address)[: load.size // 8 * 8], "<u8").copy()
    section = image.section(".rela.dyn")
    if section is not None and load.writable:
        relocations = np.frombuffer(section.content[: len(section.content) // 24 * 24], RELOCATION)
        inside = (relocations["info"] & 0xFFFFFFFF) == _R_RELATIVE
        at = relocations["address"] - np.uint64(load.address)  # wraps where it lies before
        inside &= (at < 8 * len(words)) & (at % 8 == 0)
        words[at[inside] // 8] = relocations["addend"][inside].astype(np.uint64)
    return words


def function_starts(image: ElfImage) -> Words:
    """Where functions and their cold parts begin, ascending: the table of ``.eh_frame_hdr`` (LSB, chapter 10.6.2)."""
    header = image.segment(PT_GNU_EH_FRAME)
    if header is None or bytes(header.content[:4]) != b"\x01\x1b\x03\x3b":  # as all linkers write it
        return np.zeros(0, np.uint64)
    count = int.from_bytes(header.content[8:12], "little")
    table = np.frombuffer(header.content[12 : len(header.content) - (len(header.content) - 12) % 8], "<i4")
    starts: Words = np.sort(table[: 2 * count : 2].astype(np.int64) + header.address).astype(np.uint64)
    return starts


def _version_of(image: ElfImage, address: int | None, name: str) -> Version | None:
    """Of one that does not publish its layout: 3.12 and before."""
    if address is not None:
        number = int.from_bytes(image.content_at(address)[:8], "little")
        return Version.of(number) if number >> 32 == 0 and number >> 24 == 3 else None
    section = image.section(".rodata")
    constants = [section.content] if section is not None else []
    if not constants:
        constants = [image.content_at(load.address) for load in image.loads if not load.writable]
    versions: dict[int, int] = {}  # minor -> micro
    for content in constants:
        for match in _VERSION_TEXT.finditer(content):
            if int(match[1]) in _LIKELY_MINORS:
                versions[int(match[1])] = int(match[2])
    if len(versions) > 1:
        named = _NAMED.match(image.soname or name)
        versions = {
            minor: versions[minor] for minor in versions if named is not None and minor == int(named[1])
        }
    return Version(3, *next(iter(versions.items()))) if len(versions) == 1 else None
