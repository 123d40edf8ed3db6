"""The stubs of an ELF image's procedure linkage table: which function each of them jumps to.

In: an image. Out: addresses and the numbers of dynamic symbols. No symbol table names these stubs, and they take time
like other code: a loop of short calls into a library is sampled there.

A stub of x86-64 is 16 bytes, at most three instructions, with a jump through a word of the global offset table in its
first 11 bytes; the relocation of that word says for whom it is. Only linkers' usual forms are known: what does not
read like one has no name. The stubs of functions whose address is taken too (``.plt.got``; a few in a file) and
aarch64's are not read.

Sources: System V ABI, AMD64 supplement, "Procedure Linkage Table"; binutils, ``bfd/elfxx-x86.c`` (lazy, non-lazy,
IBT and BND forms).
"""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec import Struct

from otelgpu.elf.image import ElfError, ElfImage, Section
from otelgpu.elf.symbols import SYMBOL, U64, Strings
from otelgpu.elf.tls import RELOCATION

STUB_BYTES: Final = 16

_JUMP_SLOT: Final = 7  # R_X86_64_JUMP_SLOT
_SECTIONS: Final = (".plt", ".plt.sec")
_JUMP: Final = b"\xff\x25"  # jmp *distance(%rip)
_JUMPS_AT: Final = (0, 4, 1, 5)  # plain; behind endbr64; each with the prefix bnd
_MAX_STUBS: Final = 1 << 18  # libtorch_cpu has 20,000


class LinkageStubs(Struct, frozen=True):
    """``starts``: addresses of stubs, rising; ``symbols``: the number in ``.dynsym`` that each is for. Shape (n,)."""

    starts: U64
    symbols: U64

    def symbol_at(self, address: int) -> int | None:
        """For whom the stub is that holds ``address``."""
        row = int(np.searchsorted(self.starts, np.uint64(address), side="right")) - 1
        if row < 0 or address - int(self.starts[row]) >= STUB_BYTES:
            return None
        return int(self.symbols[row])


def read_stubs(image: ElfImage) -> LinkageStubs:
    """All of an image that have a name; none where the section headers were cut off.

    Raises :class:`~otelgpu.elf.image.ElfError` when the tables are damaged.
    """
    nothing = np.zeros(0, np.uint64)
    relocations = image.section(".rela.plt")
    if image.machine != "x86-64" or relocations is None:
        return LinkageStubs(nothing, nothing)
    if len(relocations.content) % RELOCATION.itemsize:
        raise ElfError(f"damaged ELF file: .rela.plt has {len(relocations.content)} bytes")
    rows = np.frombuffer(relocations.content, RELOCATION)[:_MAX_STUBS]
    rows = rows[(rows["info"] & np.uint64(0xFFFFFFFF)) == _JUMP_SLOT]
    rows = rows[np.argsort(rows["address"], kind="stable")]
    found = [_jumps(section) for name in _SECTIONS if (section := image.section(name)) is not None]
    starts = np.concatenate([nothing, *(starts for starts, _ in found)])
    words = np.concatenate([nothing, *(words for _, words in found)])
    if not len(rows) or not len(starts):
        return LinkageStubs(nothing, nothing)
    place = np.minimum(np.searchsorted(rows["address"], words), len(rows) - 1)
    known = rows["address"][place] == words
    starts, symbols = starts[known], rows["info"][place[known]] >> np.uint64(32)
    order = np.argsort(starts, kind="stable")
    return LinkageStubs(starts[order], symbols[order])


def _jumps(section: Section) -> tuple[U64, U64]:
    """(addresses of stubs, addresses of the words that they jump through)."""
    count = min(len(section.content) // STUB_BYTES, _MAX_STUBS)
    code = np.frombuffer(section.content, np.uint8, count * STUB_BYTES).reshape(count, STUB_BYTES)
    starts = np.uint64(section.address) + np.arange(count, dtype=np.uint64) * np.uint64(STUB_BYTES)
    words = np.zeros(count, np.uint64)
    for at in _JUMPS_AT:
        here = (code[:, at] == _JUMP[0]) & (code[:, at + 1] == _JUMP[1]) & (words == 0)
        distances = np.ascontiguousarray(code[:, at + 2 : at + 6]).view("<i4")[:, 0]
        words[here] = (starts + np.uint64(at + 6) + distances.astype(np.int64).astype(np.uint64))[here]
    return starts[words != 0], words[words != 0]


def stub_name(image: ElfImage, symbol: int) -> str:
    """What the linker calls the function with this number in ``.dynsym``, without a version; "" for none.

    Raises :class:`~otelgpu.elf.image.ElfError` when the tables are damaged.
    """
    symbols, names = image.section(".dynsym"), image.section(".dynstr")
    if symbols is None or names is None or (symbol + 1) * SYMBOL.itemsize > len(symbols.content):
        return ""
    row = np.frombuffer(symbols.content, SYMBOL, 1, symbol * SYMBOL.itemsize)[0]
    return Strings(names.content).text(int(row["name"]))
