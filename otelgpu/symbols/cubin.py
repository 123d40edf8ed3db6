"""Device code → the names of its kernels: cubins (ELF images for the GPU) and PTX text.

In: bytes. Out: mangled names. Pure; hostile input gives fewer names or :class:`CubinError`, nothing else.

Sources: System V ABI for the ELF part; the CUDA part is not published. A kernel is a function symbol whose
``st_other`` has STO_CUDA_ENTRY (0x10), as in cuda-gdb (``cuda_elf_make_msymbol_special``); each also has a
constant bank, section ``.nv.constant0.NAME`` (as read by Datadog's agent, ``pkg/gpu/cuda/cubin.go``). PTX:
"Parallel Thread Execution ISA", ".entry".
"""

from __future__ import annotations

import re
from typing import Final

import numpy as np
import numpy.typing as npt

from otelgpu.elf.image import HEADER, SECTION
from otelgpu.elf.symbols import SYMBOL
from otelgpu.errors import OtelgpuError

MAX_KERNELS: Final = 1 << 16
MAX_NAME_BYTES: Final = 4096
MAX_NAMES_BYTES: Final = 16 << 20
"""Of one cubin's names together: in a damaged one they may overlap."""


_EM_CUDA: Final = 190
_SHT_SYMTAB: Final = 2
_STT_FUNC: Final = 2
_STO_CUDA_ENTRY: Final = 0x10
_MAX_SECTIONS: Final = 1 << 17
_MAX_SYMBOLS: Final = 1 << 20
_CONSTANTS: Final = b".nv.constant0."
_ENTRY: Final = re.compile(rb"\.entry\s+([A-Za-z_$%][\w$]{0,4095})")

Table = npt.NDArray[np.void]


class CubinError(OtelgpuError):
    """The bytes are no device image that this program can read."""


def kernel_names(image: bytes | memoryview) -> set[bytes]:
    """The mangled names of the kernels of one cubin.

    From its symbols; from its sections' names when the symbols are stripped. Raises :class:`CubinError`.
    """
    data = memoryview(image)
    if len(data) < HEADER.itemsize or bytes(data[:4]) != b"\x7fELF":
        raise CubinError("not a cubin: no ELF header")
    header = np.frombuffer(data[: HEADER.itemsize], HEADER)[0]
    if header["file_class"] != 2 or header["data"] != 1 or int(header["machine"]) != _EM_CUDA:
        raise CubinError(f"not a cubin: an ELF file for machine {int(header['machine'])}")
    if header["section_size"] != SECTION.itemsize or int(header["section_count"]) > _MAX_SECTIONS:
        raise CubinError("a damaged cubin: odd section headers")
    sections = _table(data, int(header["sections_at"]), int(header["section_count"]), SECTION)
    tables = sections[sections["type"] == _SHT_SYMTAB]
    if len(tables):
        names = _from_symbols(data, sections, tables[0])
        if names:
            return names
    number = int(header["names_section"])
    if number >= len(sections):
        return set()
    texts = _extent(data, sections[number])
    places = sections["name"].tolist()[:MAX_KERNELS]
    found = _texts(texts, places)
    return {text.removeprefix(_CONSTANTS) for text in found if text.startswith(_CONSTANTS)}


def ptx_entries(text: bytes | memoryview) -> set[bytes]:
    """The mangled names behind ``.entry`` in PTX text."""
    names: set[bytes] = set()
    for found in _ENTRY.finditer(text):
        names.add(found.group(1))
        if len(names) >= MAX_KERNELS:
            break
    return names


def _from_symbols(data: memoryview, sections: Table, table: np.void) -> set[bytes]:
    link = int(table["link"])
    if table["entry_size"] != SYMBOL.itemsize or link >= len(sections):
        raise CubinError("a damaged cubin: a symbol table with wrong entries or no strings")
    count = min(int(table["size"]) // SYMBOL.itemsize, _MAX_SYMBOLS)
    symbols = _table(data, int(table["offset"]), count, SYMBOL)
    kernels = (symbols["info"] & 0xF == _STT_FUNC) & (symbols["other"] & _STO_CUDA_ENTRY != 0)
    texts = _extent(data, sections[link])
    return _texts(texts, symbols["name"][kernels][:MAX_KERNELS].tolist()) - {b""}


def _table(data: memoryview, offset: int, count: int, dtype: np.dtype[np.void]) -> Table:
    if offset + count * dtype.itemsize > len(data):
        raise CubinError(f"a truncated cubin: a table of it would end behind its {len(data)} bytes")
    return np.frombuffer(data[offset : offset + count * dtype.itemsize], dtype)


def _extent(data: memoryview, section: np.void) -> memoryview:
    offset, size = int(section["offset"]), int(section["size"])
    if offset + size > len(data):
        raise CubinError(f"a truncated cubin: its strings would end behind its {len(data)} bytes")
    return data[offset : offset + size]


def _texts(texts: memoryview, places: list[int]) -> set[bytes]:
    found: set[bytes] = set()
    left = MAX_NAMES_BYTES
    for place in places:
        text = bytes(texts[place : place + MAX_NAME_BYTES]).partition(b"\0")[0]
        left -= len(text)
        if left < 0:
            raise CubinError(f"a damaged cubin: names of more than {MAX_NAMES_BYTES} bytes")
        found.add(text)
    return found
