"""Programs that use their GPU well: nothing is to be said of them."""

from __future__ import annotations

import ctypes
import threading
from pathlib import Path

from tests.gallery.programs.device import Device, says
from tests.gallery.programs.steps import STEPS, work


def device_bound(folder: Path) -> None:
    """The host waits for the device, and launches at once."""
    says(utilization=98)
    device = Device()
    for _ in range(2 * STEPS):
        device.launch()
        device.wait()


def looks_seldom(folder: Path) -> None:
    """A loss in every twentieth step."""
    says()
    device = Device()
    for step in range(3 * STEPS):
        device.launch()
        if step % 20 == 19:
            device.item()


def prefetched(folder: Path) -> None:
    """The next batch is made while the device works on this one, and copied without waiting."""
    says()
    device, host = Device(), ctypes.create_string_buffer(1_000_000)
    for _ in range(STEPS):
        device.copy_in_ahead(host)
        device.launch(kernels=20)
        work(0.01)
        device.wait()


def checkpoint_in_thread(folder: Path) -> None:
    """The model is written by another thread."""
    says()
    device = Device()
    state = bytes(20_000_000)
    writer = None
    for step in range(2 * STEPS):
        device.launch()
        device.wait()
        if step % 20 == 19:
            if writer is not None:
                writer.join()
            writer = threading.Thread(target=(folder / "model.pt").write_bytes, args=(state,))
            writer.start()
    if writer is not None:
        writer.join()
