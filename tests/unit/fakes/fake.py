"""The fake libcudart in this process, and what ELF files export."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import time
from pathlib import Path
from typing import Any
from unittest import mock

from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerDefSection, GNUVerSymSection
from elftools.elf.sections import SymbolTableSection

from tests.rig import fake_cudart_path

SUCCESS, INVALID_VALUE, OUT_OF_MEMORY, INVALID_CONFIGURATION = 0, 1, 2, 9
BAD_DIRECTION, NO_CONFIGURATION, BAD_FUNCTION, BAD_HANDLE = 21, 52, 98, 400
CAPTURE_UNSUPPORTED = 900
HOST_TO_HOST, HOST_TO_DEVICE, DEVICE_TO_HOST = 0, 1, 2
KERNEL_NS = (
    200_000  # ten times the default, so that a busy machine does not hide what waits and what does not
)
STUB = 0x1234  # any address: the fake never calls a kernel

REPEATABLE = (
    "cudaLaunchKernel",
    "cudaLaunchKernelExC",
    "cudaGraphLaunch",
    "cudaMalloc",
    "cudaFree",
    "cudaMemcpy",
    "cudaMemcpyAsync",
    "cudaStreamSynchronize",
    "cudaDeviceSynchronize",
    "cudaEventSynchronize",
)


class Dim3(ctypes.Structure):
    _fields_ = [("x", ctypes.c_uint), ("y", ctypes.c_uint), ("z", ctypes.c_uint)]


class Device:
    """The fake in this process; statuses come back as they are."""

    def __init__(self) -> None:
        with mock.patch.dict(os.environ, {"FAKE_CUDART_KERNEL_US": str(KERNEL_NS // 1000)}):
            self.lib = ctypes.CDLL(str(fake_cudart_path()))  # reads its settings when it is loaded first
        for name in ("cudaGetErrorName", "cudaGetErrorString"):
            getattr(self.lib, name).restype = ctypes.c_char_p

    def malloc(self, size_bytes: int) -> tuple[int, int]:
        pointer = ctypes.c_void_p()
        status = self.lib.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(size_bytes))
        return status, pointer.value or 0

    def free(self, pointer: int) -> int:
        return int(self.lib.cudaFree(ctypes.c_void_p(pointer)))

    def launch(
        self,
        stream: int = 0,
        *,
        function: int = STUB,
        grid: tuple[int, int, int] = (1, 1, 1),
        block: tuple[int, int, int] = (32, 1, 1),
    ) -> int:
        status = self.lib.cudaLaunchKernel(
            ctypes.c_void_p(function),
            Dim3(*grid),
            Dim3(*block),
            None,
            ctypes.c_size_t(0),
            ctypes.c_void_p(stream),
        )
        return int(status)

    def create(self, function: str, *arguments: Any) -> int:
        handle = ctypes.c_void_p()
        assert getattr(self.lib, function)(ctypes.byref(handle), *arguments) == SUCCESS
        return handle.value or 0

    def timed(self, function: str, *arguments: int) -> int:
        start_ns = time.monotonic_ns()
        assert getattr(self.lib, function)(*map(ctypes.c_void_p, arguments)) == SUCCESS
        return time.monotonic_ns() - start_ns


def real_cudart() -> Path:
    spec = importlib.util.find_spec("nvidia.cuda_runtime")
    assert spec is not None and spec.submodule_search_locations, "pip install nvidia-cuda-runtime-cu12"
    return Path(next(iter(spec.submodule_search_locations)), "lib", "libcudart.so.12")


def exported_versions(path: Path) -> dict[str, str]:
    """Exported function → version node."""
    with path.open("rb") as file:
        elf = ELFFile(file)
        symbols, indexes = elf.get_section_by_name(".dynsym"), elf.get_section_by_name(".gnu.version")
        definitions = elf.get_section_by_name(".gnu.version_d")
        assert isinstance(symbols, SymbolTableSection)
        assert isinstance(indexes, GNUVerSymSection) and isinstance(definitions, GNUVerDefSection)
        nodes = {verdef["vd_ndx"]: next(names).name for verdef, names in definitions.iter_versions()}
        return {
            symbol.name: nodes[indexes.get_symbol(index)["ndx"] & 0x7FFF]
            for index, symbol in enumerate(symbols.iter_symbols())
            if symbol["st_shndx"] != "SHN_UNDEF" and symbol["st_info"]["type"] == "STT_FUNC"
        }
