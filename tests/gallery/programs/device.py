"""A device of the fake runtime, and what the fake NVML is to say of it, for programs of the gallery."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

FAKES: Final = Path(__file__).parents[3] / "build" / "fakes"
BLOCK_US: Final = 10
"""Of a block of the fake device, whose kernels take so long for each of theirs."""
MODEL: Final = "NVIDIA H100 80GB HBM3"
GIB: Final = 1 << 30


class _Dim3(ctypes.Structure):
    _fields_ = [("x", ctypes.c_uint), ("y", ctypes.c_uint), ("z", ctypes.c_uint)]


class Device:
    """What a framework does of CUDA, by ctypes."""

    def __init__(self) -> None:
        self._runtime: Any = ctypes.CDLL(str(FAKES / "libcudart.so.12"))
        self._scalar = ctypes.create_string_buffer(64)
        self.memory = self.allocate(1 << 20)
        self._stub = ctypes.c_void_p(ctypes.addressof(self._scalar))

    def _call(self, function: str, *arguments: object) -> None:
        status = getattr(self._runtime, function)(*arguments)
        if status:
            raise SystemExit(f"{function}: error {status}")

    def allocate(self, size: int) -> ctypes.c_void_p:
        """cudaMalloc."""
        pointer = ctypes.c_void_p()
        self._call("cudaMalloc", ctypes.byref(pointer), ctypes.c_size_t(size))
        return pointer

    def free(self, pointer: ctypes.c_void_p) -> None:
        """cudaFree."""
        self._call("cudaFree", pointer)

    def launch(self, kernels: int = 10, blocks: int = 200) -> None:
        """So many kernels, one after the other; each takes ``BLOCK_US`` for a block."""
        grid, block = _Dim3(blocks, 1, 1), _Dim3(256, 1, 1)
        for _ in range(kernels):
            self._call("cudaLaunchKernel", self._stub, grid, block, None, ctypes.c_size_t(0), None)

    def wait(self) -> None:
        """torch.cuda.synchronize."""
        self._call("cudaDeviceSynchronize")

    def item(self) -> None:
        """A scalar of the device: tensor.item()."""
        self._call("cudaMemcpyAsync", self._scalar, self.memory, ctypes.c_size_t(4), 2, None)
        self._call("cudaStreamSynchronize", None)

    def copy_in(self, host: ctypes.Array[ctypes.c_char]) -> None:
        """Of memory that is not pinned: the call blocks."""
        self._call("cudaMemcpy", self.memory, host, ctypes.c_size_t(len(host)), 1)

    def copy_in_ahead(self, host: ctypes.Array[ctypes.c_char]) -> None:
        """The same without waiting."""
        self._call("cudaMemcpyAsync", self.memory, host, ctypes.c_size_t(len(host)), 1, None)


def nvml(devices: int, used: int, utilization: int | None = None) -> str:
    """What the fake NVML answers: GPUs, of which the first has memory in use."""
    lines = ["driver 570.86.10"]
    for index in range(devices):
        lines += [
            f"set {index} uuid GPU-{index:08d}-0000-0000-0000-000000000000",
            f"set {index} name {MODEL}",
            f"set {index} memory_total {80 * GIB}",
            f"set {index} memory_used {used if index == 0 else 0}",
        ]
        if utilization is not None:
            lines += [f"set {index} utilization {utilization}", f"set {index} memory_utilization 10"]
    return "\n".join(lines) + "\n"


def says(
    devices: int = 1,
    used: int = 60 * GIB,
    utilization: int | None = None,
    *,
    holds: bool = True,
    **others: int,
) -> None:
    """What NVML answers from now on. ``holds``: this process has the memory; ``others``: percent of the device's time
    of other processes, by ``p<PID>``.
    """
    path = os.environ.get("FAKE_NVML")
    if path is None:
        return
    shares: Mapping[int, int] = {int(name[1:]): share for name, share in others.items()}
    lines = [nvml(devices, used, utilization)]
    stamp = time.time_ns() // 1000
    if holds:
        lines.append(f"process 0 {os.getpid()} {used} {utilization or 0} 0 0 {stamp}\n")
    lines += [f"process 0 {pid} {GIB} {share} 0 0 {stamp}\n" for pid, share in shares.items()]
    new = Path(f"{path}.new")
    new.write_text("".join(lines))
    new.replace(path)


def keeps_saying(**said: Any) -> None:
    """The same, with a new time stamp again and again, as a driver has it."""

    def repeat() -> None:
        while True:
            says(**said)
            time.sleep(0.2)

    says(**said)
    threading.Thread(target=repeat, name="driver", daemon=True).start()
