"""CUDA's runtime and NCCL through ctypes, as far as training needs them.

In: arguments as Python has them. Out: handles; an error is a `LibraryError`. Prototypes are those of
cuda_runtime_api.h (CUDA 12, 13) and nccl.h (2.18 and later).
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

SIZE, POINTER, INT = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int
HOST_TO_DEVICE, DEVICE_TO_HOST = 1, 2  # enum cudaMemcpyKind
NON_BLOCKING, NO_TIMING = 1, 2  # cudaStreamNonBlocking, cudaEventDisableTiming
FLOAT32, AVERAGE = 7, 4  # ncclDataType_t, ncclRedOp_t
FLOAT_BYTES = 4
KERNEL = "_Z9gemm_bf16PK13__nv_bfloat16S1_PS_iii"  # a host stub of tests/fakes' libllmkernels.so


class LibraryError(RuntimeError):
    """A call failed, or a library is not there."""


class Dim3(ctypes.Structure):
    """struct dim3 of vector_types.h; passed by value."""

    _fields_ = [("x", ctypes.c_uint), ("y", ctypes.c_uint), ("z", ctypes.c_uint)]


class UniqueId(ctypes.Structure):
    """ncclUniqueId; passed by value."""

    _fields_ = [("internal", ctypes.c_char * 128)]


def _open(names: tuple[str, ...]) -> ctypes.CDLL:
    tried = []
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError as error:
            tried.append(str(error))
    raise LibraryError(f"{'; '.join(tried)}: without a GPU, make -C tests/fakes builds fakes")


class _Library:
    """Calls functions by name, and raises when they do not answer 0."""

    def __init__(self, names: tuple[str, ...], prototypes: dict[str, tuple[Any, ...]]) -> None:
        library = _open(names)
        self._functions = {}
        for name, parameters in prototypes.items():
            function = getattr(library, name)
            function.argtypes, function.restype = parameters, INT
            self._functions[name] = function

    def call(self, name: str, *arguments: Any) -> None:
        if status := self._functions[name](*arguments):
            raise LibraryError(f"{name}: error {status}")

    def made(self, name: str, *arguments: Any) -> int:
        """What the function stores where its first parameter points."""
        handle = POINTER()
        self.call(name, ctypes.byref(handle), *arguments)
        return handle.value or 0


class Cuda(_Library):
    """One device."""

    def __init__(self, device: int) -> None:
        prototypes = {
            "cudaGetDeviceCount": (POINTER,),
            "cudaSetDevice": (INT,),
            "cudaMalloc": (POINTER, SIZE),
            "cudaMallocHost": (POINTER, SIZE),
            "cudaMemcpyAsync": (POINTER, POINTER, SIZE, INT, POINTER),
            "cudaMemsetAsync": (POINTER, INT, SIZE, POINTER),
            "cudaLaunchKernel": (POINTER, Dim3, Dim3, POINTER, SIZE, POINTER),
            "cudaStreamCreateWithFlags": (POINTER, ctypes.c_uint),
            "cudaStreamSynchronize": (POINTER,),
            "cudaEventCreateWithFlags": (POINTER, ctypes.c_uint),
            "cudaEventRecord": (POINTER, POINTER),
            "cudaStreamWaitEvent": (POINTER, POINTER, ctypes.c_uint),
        }
        super().__init__(("libcudart.so.12", "libcudart.so.13", "libcudart.so"), prototypes)
        count = INT()
        self.call("cudaGetDeviceCount", ctypes.byref(count))
        self.call("cudaSetDevice", device % count.value)
        kernels = os.environ.get("TRAINING_KERNELS")
        self._kernel = ctypes.cast(ctypes.CDLL(kernels)[KERNEL], POINTER) if kernels else None

    def compute(self, memory: int, size_bytes: int, stream: int) -> None:
        """Something for the device to do: a kernel where there is a library of them, else a memset."""
        if self._kernel is None:
            self.call("cudaMemsetAsync", memory, 0, size_bytes, stream)
            return
        arguments = (POINTER * 6)()
        self.call("cudaLaunchKernel", self._kernel, Dim3(64, 1, 1), Dim3(128, 1, 1), arguments, 0, stream)


class Nccl(_Library):
    """NCCL; one communicator at a time."""

    def __init__(self) -> None:
        prototypes = {
            "ncclGetUniqueId": (POINTER,),
            "ncclCommInitRank": (POINTER, INT, UniqueId, INT),
            "ncclAllReduce": (POINTER, POINTER, SIZE, INT, INT, POINTER, POINTER),
            "ncclCommDestroy": (POINTER,),
        }
        super().__init__(("libnccl.so.2",), prototypes)
        self._communicator = 0

    def unique_id(self) -> bytes:
        """A new id, for one rank to make and all to have."""
        identity = UniqueId()
        self.call("ncclGetUniqueId", ctypes.byref(identity))
        return bytes(identity)

    def join(self, identity: bytes, ranks: int, rank: int) -> None:
        """Meet the other ranks."""
        self._communicator = self.made("ncclCommInitRank", ranks, UniqueId.from_buffer_copy(identity), rank)

    def average(self, memory: int, floats: int, stream: int) -> None:
        """Let `memory` hold the mean of all ranks', once their streams have come here too."""
        self.call("ncclAllReduce", memory, memory, floats, FLOAT32, AVERAGE, self._communicator, stream)

    def leave(self) -> None:
        """Give the communicator back."""
        self.call("ncclCommDestroy", self._communicator)
