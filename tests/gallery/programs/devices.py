"""Programs that wait for a device: one of the fake runtime, which does what it is asked at its own pace."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path

from tests.gallery.programs.steps import EVERY, STEPS, pause, work

_BYTES = 60_000_000
_BETWEEN = 3  # cudaMemcpyDeviceToDevice


class _Device:
    """Its calls; ``ask`` gives the device 120 ms of work."""

    def __init__(self) -> None:
        os.environ["FAKE_CUDART_COPY_GB_PER_S"] = "0.5"
        self.calls = ctypes.CDLL(str(Path(__file__).parents[3] / "build" / "fakes" / "libcudart.so.12"))
        self._from, self._to = self.allocate(), self.allocate()

    def allocate(self) -> ctypes.c_void_p:
        memory = ctypes.c_void_p()
        assert self.calls.cudaMalloc(ctypes.byref(memory), ctypes.c_size_t(_BYTES)) == 0
        return memory

    def ask(self) -> None:
        size = ctypes.c_size_t(_BYTES)
        assert self.calls.cudaMemcpyAsync(self._to, self._from, size, _BETWEEN, None) == 0


def _loop(in_fifth: Callable[[_Device], None]) -> None:
    device = _Device()
    for step in range(STEPS):
        work()
        pause()
        if step % EVERY == EVERY - 1:
            in_fifth(device)


def device_free(folder: Path) -> None:
    """A buffer is made anew each time: freeing it waits for all that the device has to do."""

    def evaluate(device: _Device) -> None:
        buffer = device.allocate()
        device.ask()
        assert device.calls.cudaFree(buffer) == 0

    _loop(evaluate)


def device_sync(folder: Path) -> None:
    """The loss is looked at."""

    def log_loss(device: _Device) -> None:
        device.ask()
        assert device.calls.cudaDeviceSynchronize() == 0

    _loop(log_loss)
