"""File offset → function name, for one image: symbols, else debugging symbols, else kernel registrations.

Pure: what has to be opened is opened by the caller. Caching of answers is the caller's too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import numpy as np

from otelgpu.elf.image import ElfError, ElfImage, Symbol
from otelgpu.elf.plt import LinkageStubs, read_stubs, stub_name
from otelgpu.elf.symbols import U64
from otelgpu.model.losses import Reasons
from otelgpu.symbols.debuginfo import embedded_symbols
from otelgpu.symbols.demangle import demangle

REASONS: Final = Reasons(
    "symbols",
    {
        "debuginfo_damaged": "a file's separate symbols (`.gnu_debugdata`, `/usr/lib/debug`) are damaged",
        "device_code_damaged": "a stripped file's headers of device code are damaged",
        "device_code_not_read": "a stripped file's code took too long to look through for the kernels that it "
        "registers, or its owner had spent his share of that: they have no names",
    },
)
"""Beside those of :mod:`otelgpu.symbols.registrations`: keys of :attr:`FunctionTable.counters`."""

if TYPE_CHECKING:
    from otelgpu.symbols.registrations import Registrations

_NO_STUBS: Final = (np.zeros(0, np.uint64), np.zeros(0, np.uint64))


class FunctionTable:
    """The functions of one ELF file.

    ``module`` stands for the file in the names of what it has no symbol for: its base name. A stripped file
    has its functions' names in up to three other places, looked at when the first of them is wanted: xz in
    a section of its own, a file of debugging symbols (``find_symbols`` gives it, or None), and, for host
    stubs, its code that says the CUDA runtime of them. ``demangle``, ``registrations``: for a file of an observed
    process, such as return whatever is in it; the second may raise OSError where there is no answer.
    """

    def __init__(
        self,
        image: ElfImage,
        module: str,
        *,
        find_symbols: Callable[[], ElfImage | None] | None = None,
        demangle: Callable[[str], str] = demangle,
        registrations: Callable[[], Registrations] | None = None,
    ) -> None:
        self.counters: Counter[str] = Counter()
        self._demangle = demangle
        self._image = image
        self._module = module
        self._find_symbols = find_symbols
        self._registrations = registrations
        self._symbols_complete = not image.is_stripped
        self._linkage: LinkageStubs | None = None
        self._stubs: tuple[U64, U64] | None = None  # addresses of stubs, in order, and of their names
        self._has_read_code = False

    def name_at(self, file_offset: int) -> tuple[str, bool]:
        """(demangled name, True) of the function that holds ``file_offset``, else (``module+0xoffset``, False).

        Raises :class:`otelgpu.elf.image.ElfError` when the file's symbol tables are damaged.
        """
        function = self.function_at(file_offset)
        if function is not None:
            return function[0], True
        kernel = self._kernel_at(file_offset)
        if kernel:
            return self._demangle(kernel.decode("ascii", "backslashreplace")), True
        return unknown_name(self._module, file_offset), False

    def function_at(self, file_offset: int) -> tuple[str, str] | None:
        """(demangled name, linker's name) of the function that holds ``file_offset``; None where no symbol does.

        A stub of the linkage table is named after the function that it jumps to: ``memset@plt``.
        Raises :class:`otelgpu.elf.image.ElfError` when the file's symbol tables are damaged.
        """
        symbol = self._symbol_at(file_offset)
        if symbol is not None:
            return self._demangle(symbol.name), symbol.name
        name = self._linked_at(file_offset)
        return (f"{self._demangle(name)}@plt", f"{name}@plt") if name else None

    def place_at(self, file_offset: int) -> tuple[str, bool]:
        """Where the call returns to that was made right before ``file_offset``: ``function+0xoffset``.

        The call may be a function's last instruction: what counts is where the byte before lies. Unknown
        places and errors are as of :meth:`name_at`.
        """
        symbol = self._symbol_at(file_offset - 1)
        if symbol is None:
            return unknown_name(self._module, file_offset), False
        return unknown_name(self._demangle(symbol.name), file_offset - symbol.file_offset), True

    @property
    def held_bytes(self) -> int:
        """Memory that is kept to name functions quickly: 28 bytes for each, and unpacked debugging symbols."""
        columns: list[U64] = [*(self._stubs or ())]
        if self._linkage is not None:
            columns += [self._linkage.starts, self._linkage.symbols]
        return self._image.held_bytes + sum(column.nbytes for column in columns)

    def forget(self) -> None:
        """Give that back; the file is read again when a function is asked for."""
        self._image.forget_symbols()
        self._symbols_complete = not self._image.is_stripped
        self._linkage = self._stubs = None

    def has_read_code(self) -> bool:
        """Whether much of the file was read since the last time of asking."""
        has_read, self._has_read_code = self._has_read_code, False
        return has_read

    def _symbol_at(self, file_offset: int) -> Symbol | None:
        symbol = self._image.symbol_at(file_offset)
        if (symbol is None or not symbol.name) and not self._symbols_complete:
            self._symbols_complete = True
            self._add_symbols()
            symbol = self._image.symbol_at(file_offset)
        return symbol if symbol is not None and symbol.name else None

    def _add_symbols(self) -> None:
        for find in (lambda: embedded_symbols(self._image), self._find_symbols):
            try:
                found = find() if find is not None else None
                if found is not None:
                    self._image.add_symbols(found)
            except ElfError:
                self.counters["debuginfo_damaged"] += 1

    def _linked_at(self, file_offset: int) -> str:
        """The function that the linkage table's stub there is for; "" where there is none."""
        address = self._image.address_of(file_offset)
        if address is None:
            return ""
        if self._linkage is None:
            self._linkage = read_stubs(self._image)
        number = self._linkage.symbol_at(address)
        return stub_name(self._image, number) if number is not None else ""

    def _kernel_at(self, file_offset: int) -> bytes | None:
        """The mangled name of the kernel whose host stub begins there."""
        if self._stubs is None:
            try:
                self._stubs = self._read_stubs()
            except ElfError:
                self.counters["device_code_damaged"] += 1
                self._stubs = _NO_STUBS
        address = self._image.address_of(file_offset)
        stubs, names = self._stubs
        if address is None or not len(stubs):
            return None
        row = int(np.searchsorted(stubs, np.uint64(address)))
        if row >= len(stubs) or int(stubs[row]) != address:
            return None
        return self._image.constant_text(int(names[row]))

    def _read_stubs(self) -> tuple[U64, U64]:
        # Imported when a stripped file is met: most processes have none with device code.
        from otelgpu.symbols.registrations import has_device_code, read_registrations

        if not has_device_code(self._image):
            return _NO_STUBS
        self._has_read_code = True
        try:
            found = (
                self._registrations() if self._registrations is not None else read_registrations(self._image)
            )
        except OSError:
            self.counters["device_code_not_read"] += 1
            return _NO_STUBS
        self.counters.update(found.counters)
        pairs = np.array(sorted(found.stubs.items()), np.uint64).reshape(-1, 2)
        return pairs[:, 0].copy(), pairs[:, 1].copy()


def unknown_name(module: str, offset: int) -> str:
    """How a place without a name is written: ``libfoo.so+0x1a2b``."""
    return f"{module}+{offset:#x}"


def unknown_place(name: str) -> tuple[str, int]:
    """The file and the offset in it that :func:`unknown_name` was given; ("", 0) of a place in no file."""
    module, _, offset = name.rpartition("+0x")
    return ("", 0) if module.startswith("[") else (module, int(offset, 16))
