"""What parses bytes that others wrote, each as a function that raises nothing but what it says it does.

A target takes any bytes. Its seeds are valid input: what a fuzzer starts from, and what a test without one runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from otelgpu.discover.maps import parse_maps
from otelgpu.layout.elf import ElfError, ElfImage
from otelgpu.symbols.cubin import CubinError, kernel_names, ptx_entries
from otelgpu.symbols.debuginfo import embedded_symbols
from otelgpu.symbols.demangle import demangle, short_name
from otelgpu.symbols.fatbin import read_names
from otelgpu.symbols.registrations import read_registrations

_DATA = Path(__file__).parents[1] / "unit" / "symbols" / "data"
_MAX_BYTES = 1 << 20  # decompressed: enough for what a fuzzer makes, and quick


@dataclass(frozen=True)
class Target:
    """``run`` on ``seeds``, files or bytes."""

    run: Callable[[bytes], None]
    seeds: tuple[Path | bytes, ...]

    def read_seeds(self) -> list[bytes]:
        return [seed.read_bytes() if isinstance(seed, Path) else seed for seed in self.seeds]


def fatbin(data: bytes) -> None:
    names = read_names(memoryview(data), max_bytes=_MAX_BYTES).names
    assert all(len(name) <= 4096 for name in names)


def cubin(data: bytes) -> None:
    ptx_entries(data)
    try:
        names = kernel_names(data)
    except CubinError:
        return
    assert all(len(name) <= 4096 for name in names)


def elf(data: bytes) -> None:
    try:
        image = ElfImage(data)
        offsets = image.function_offsets(["main", "plain", "cudaLaunchKernel"])
        for place in (0, 0x1000, len(data) - 1, *offsets.values()):
            image.symbol_at(place)
            image.address_of(place)
            image.constant_text(place)
        image.code()
        embedded_symbols(image)
        image.add_symbols(ElfImage(data, symbols_only=True))
        image.symbol_at(0x1000)
    except ElfError:
        pass


def registrations(data: bytes) -> None:
    try:
        image = ElfImage(data)
        found = read_registrations(image)
    except ElfError:
        return
    names = (image.constant_text(address) or b"" for address in found.stubs.values())
    assert all(name.decode("ascii").isprintable() for name in names)


def names(data: bytes) -> None:
    text = data.decode("utf-8", "backslashreplace")
    full = demangle(text)
    assert len(full) <= 4096
    assert short_name(full) or not full


def maps(data: bytes) -> None:
    for mapping in parse_maps(data):
        mapping.file_offset(mapping.start)


TARGETS = {
    "fatbin": Target(fatbin, tuple(sorted(_DATA.glob("*.fatbin")))),
    "cubin": Target(cubin, (_DATA / "kernels.cubin", b".version 8.0\n.visible .entry k(\n")),
    "elf": Target(elf, (_DATA / "stripped.program",)),
    "registrations": Target(registrations, (_DATA / "stripped.program",)),
    "names": Target(
        names,
        (
            b"_ZN5model5scaleILi3EfEEvPT0_",
            b"_Z21__device_stub__Z1fPfS_",
            b"__nv_static_25__f05f2698_4_k_cu_c1bc4f3f__Z5quietPd",
            b"void f<(a < b)>::operator()(int (*)(char)) const::{lambda(auto:1)#2}::operator()<int>(int)",
        ),
    ),
    "maps": Target(
        maps, (b"55d0-55d1 r-xp 00001000 08:01 42    /app/axpy (deleted)\n7f00-7f01 rw-p 0 0:0 0\n",)
    ),
}
