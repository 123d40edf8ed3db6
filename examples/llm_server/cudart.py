"""The CUDA runtime through ctypes, as an engine written in Python would bind it.

In: where the library is. Out: one method per function that the engine needs, raising `CudaError` for a result
other than cudaSuccess. Every call is noted in a `CallLog`, so that the server can say what it did.
Types and prototypes are those of cuda_runtime_api.h, driver_types.h and vector_types.h (CUDA 12 and 13).
"""

from __future__ import annotations

import ctypes
import enum
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

STAND_IN_HINT = "Without a GPU use the fake: make -C tests/fakes; LLM_CUDART=build/fakes/libcudart.so.12"
LIBRARY_NAMES = ("libcudart.so.12", "libcudart.so.13", "libcudart.so")


class CudaLibraryError(RuntimeError):
    """No usable libcudart was found; the message says what was tried and what to do."""


class CudaError(RuntimeError):
    """A CUDA call failed. `function` is its name, `status` its cudaError_t, `name` that one's enumerator."""

    def __init__(self, function: str, status: int, name: str) -> None:
        super().__init__(f"{function}: {name} ({status})")
        self.function = function
        self.status = status
        self.name = name


class CopyKind(enum.IntEnum):
    """Direction of a copy: enum cudaMemcpyKind of driver_types.h."""

    HOST_TO_DEVICE = 1
    DEVICE_TO_HOST = 2


class Dim3(ctypes.Structure):
    """struct dim3 of vector_types.h; passed by value."""

    _fields_ = [("x", ctypes.c_uint), ("y", ctypes.c_uint), ("z", ctypes.c_uint)]


@dataclass(slots=True)
class CallLog:
    """What one request called: `counts` by function and, if `keep_times`, (function, start in ns) pairs."""

    keep_times: bool = False
    counts: dict[str, int] = field(default_factory=dict)
    times: list[tuple[str, int]] = field(default_factory=list)


_PROTOTYPES: dict[str, tuple[type[Any], ...]] = {
    "cudaGetDeviceCount": (ctypes.c_void_p,),
    "cudaMalloc": (ctypes.c_void_p, ctypes.c_size_t),
    "cudaFree": (ctypes.c_void_p,),
    "cudaMemcpyAsync": (
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_void_p,
    ),
    "cudaLaunchKernel": (
        ctypes.c_void_p,
        Dim3,
        Dim3,
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_void_p,
    ),
    "cudaStreamCreate": (ctypes.c_void_p,),
    "cudaStreamDestroy": (ctypes.c_void_p,),
    "cudaStreamSynchronize": (ctypes.c_void_p,),
}


def open_library(path: str | None = None) -> ctypes.CDLL:
    """Open libcudart: `path` if given, else the first of LIBRARY_NAMES that the loader finds.

    Raises `CudaLibraryError`.
    """
    tried = []
    for name in (path,) if path else LIBRARY_NAMES:
        try:
            return ctypes.CDLL(name)
        except OSError as error:
            tried.append(str(error))
    raise CudaLibraryError(
        f"no CUDA runtime: {'; '.join(tried)}. Set LLM_CUDART to a libcudart.so. {STAND_IN_HINT}"
    )


class Cudart:
    """One opened libcudart. The methods may be called from several threads at a time."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._functions: dict[str, Callable[..., int]] = {}
        for name, parameters in _PROTOTYPES.items():
            function = getattr(library, name)
            function.argtypes = parameters
            function.restype = ctypes.c_int
            self._functions[name] = function
        self._error_name = library.cudaGetErrorName
        self._error_name.argtypes = (ctypes.c_int,)
        self._error_name.restype = ctypes.c_char_p
        self.path: str = library._name

    @classmethod
    def from_environment(cls) -> Cudart:
        """The library of LLM_CUDART, or the loader's. Raises `CudaLibraryError`."""
        return cls(open_library(os.environ.get("LLM_CUDART")))

    def _call(self, log: CallLog, function: str, *arguments: object) -> None:
        log.counts[function] = log.counts.get(function, 0) + 1
        if log.keep_times:
            log.times.append((function, time.monotonic_ns()))
        status = self._functions[function](*arguments)
        if status:
            log.counts["cudaGetErrorName"] = log.counts.get("cudaGetErrorName", 0) + 1
            if log.keep_times:
                log.times.append(("cudaGetErrorName", time.monotonic_ns()))
            raise CudaError(function, status, self._error_name(status).decode())

    def device_count(self, log: CallLog) -> int:
        """How many devices there are."""
        count = ctypes.c_int()
        self._call(log, "cudaGetDeviceCount", ctypes.addressof(count))
        return count.value

    def malloc(self, log: CallLog, size_bytes: int) -> int:
        """Device address of `size_bytes` new bytes."""
        pointer = ctypes.c_void_p()
        self._call(log, "cudaMalloc", ctypes.addressof(pointer), size_bytes)
        return pointer.value or 0

    def free(self, log: CallLog, pointer: int) -> None:
        """Give back what `malloc` gave."""
        self._call(log, "cudaFree", pointer)

    def memcpy_async(
        self, log: CallLog, destination: int, source: int, size_bytes: int, kind: CopyKind, stream: int
    ) -> None:
        """Queue a copy between two addresses."""
        self._call(log, "cudaMemcpyAsync", destination, source, size_bytes, int(kind), stream)

    def launch(
        self,
        log: CallLog,
        kernel: int,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_bytes: int,
        stream: int,
    ) -> None:
        """Queue the kernel whose host stub is at address `kernel`."""
        self._call(log, "cudaLaunchKernel", kernel, Dim3(*grid), Dim3(*block), None, shared_bytes, stream)

    def stream_create(self, log: CallLog) -> int:
        """Handle of a new stream."""
        stream = ctypes.c_void_p()
        self._call(log, "cudaStreamCreate", ctypes.addressof(stream))
        return stream.value or 0

    def stream_destroy(self, log: CallLog, stream: int) -> None:
        """Give a stream back."""
        self._call(log, "cudaStreamDestroy", stream)

    def stream_synchronize(self, log: CallLog, stream: int) -> None:
        """Wait until all that was queued on `stream` is done."""
        self._call(log, "cudaStreamSynchronize", stream)
