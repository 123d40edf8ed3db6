"""Kernel addresses → frames: ``/proc/kallsyms``, read when the first kernel frame is to be named.

Addresses themselves are never reported: where the kernel is loaded is its secret. What has no name is "[kernel]".
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from otelgpu.kernel.heap import give_back
from otelgpu.model.profiles import FrameType
from otelgpu.model.samples import Frame
from otelgpu.symbols.kernel_symbols import KernelSymbols

_AGAIN_S: Final = 60.0  # a module was loaded, perhaps
_MAX_FRAMES: Final = 16_384  # that are remembered by address

REASONS: Final[Mapping[str, str]] = {
    "kernel_symbols_hidden": "a kernel frame without a name: kernel.kptr_restrict hides addresses from this program",
    "kernel_symbols_unreadable": "/proc/kallsyms could not be read: kernel frames have no names",
    "kernel_symbol_missing": "a kernel frame in no function that /proc/kallsyms names",
}
"""What is counted, and what one count means."""

UNKNOWN: Final = Frame(type=FrameType.KERNEL, name="[kernel]", file="[kernel]")


class KernelFunctions:
    """Frames of the running kernel by address. Never raises for what it finds."""

    def __init__(self, *, path: Path = Path("/proc/kallsyms")) -> None:
        self.counters: Counter[str] = Counter(dict.fromkeys(REASONS, 0))
        self._path = path
        self._symbols: KernelSymbols | None = None
        self._read_s = 0.0
        self._frames: dict[int, Frame] = {}

    def frame(self, address: int) -> Frame:
        """The function that holds ``address``; of a return address ask for the byte before."""
        frame = self._frames.get(address)
        if frame is None:
            frame = self._named(address)
            if len(self._frames) >= _MAX_FRAMES:
                self._frames.clear()
            if frame is not UNKNOWN:
                self._frames[address] = frame
        return frame

    def _named(self, address: int) -> Frame:
        symbols = self._symbols
        found = symbols.name_at(address) if symbols is not None else None
        if found is None and (symbols is None or time.monotonic() - self._read_s >= _AGAIN_S):
            symbols = self._read()
            found = symbols.name_at(address)
        if found is None:
            assert symbols is not None
            self.counters["kernel_symbols_hidden" if symbols.is_hidden else "kernel_symbol_missing"] += 1
            return UNKNOWN
        name, module = found
        return Frame(type=FrameType.KERNEL, name=name, file=f"[{module}]")

    def _read(self) -> KernelSymbols:
        self._read_s = time.monotonic()
        try:
            found = KernelSymbols(self._path.read_bytes())
        except OSError:
            self.counters["kernel_symbols_unreadable"] += 1
            found = KernelSymbols(b"")
        if self._symbols is None or len(found):
            self._symbols = found
            self._frames.clear()
        give_back()  # the text was read in many times the memory that is kept of it
        return self._symbols
