"""Programs that use little of their GPU: the name is the cause."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import shutil
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

from tests.gallery.programs.device import FAKES, GIB, Device, keeps_saying, says
from tests.gallery.programs.steps import EVERY, STEPS, work

_STATE = bytes(80_000_000)


def interactive_kernel(folder: Path) -> None:
    """A notebook's kernel: a cell now and then."""
    script = folder / "ipykernel_launcher.py"
    script.write_text(
        "import time\n"
        "from tests.gallery.programs.device import Device, says\n"
        "says(used=20 << 30)\ndevice = Device()\n"
        "for cell in range(3):\n"
        "    device.launch()\n    device.item()\n    time.sleep(2)\n"
    )
    os.execv(sys.executable, [sys.executable, str(script)])


def unused_devices(folder: Path) -> None:
    """It has four devices, and uses one."""
    says(devices=4)
    if "CUDA_VISIBLE_DEVICES" not in os.environ:
        os.environ["CUDA_VISIBLE_DEVICES"] = "0,1,2,3"
        os.execv(sys.executable, sys.orig_argv)
    device = Device()
    for _ in range(3 * STEPS):
        device.launch()
        device.wait()


def shared_device(folder: Path) -> None:
    """Another job runs on the device: as the driver says."""
    keeps_saying(**{f"p{os.getppid()}": 45})
    device = Device()
    for _ in range(3 * STEPS):
        device.launch()
        device.wait()


def unreleased(folder: Path) -> None:
    """It has ended its work, and not itself."""
    says()
    device = Device()
    for _ in range(STEPS):
        device.launch()
        device.wait()
    time.sleep(7)


def not_deep_learning(folder: Path) -> None:
    """A solver on the CPU, with a little for the GPU."""
    says(used=GIB)
    device = Device()
    for _ in range(20):
        work(0.25)
        device.launch(2)
        device.wait()


def small_batch(folder: Path) -> None:
    """Kernels of one block, all the time: some 50,000 in a second."""
    says(used=4 * GIB)
    device = Device()
    for _ in range(120):
        device.launch(kernels=2000, blocks=1)
        device.wait()


def memory_in_loop(folder: Path) -> None:
    """A buffer is allocated and freed in each step, while the device works."""
    says()
    device = Device()
    for _ in range(2 * STEPS):
        device.launch(kernels=4)
        device.wait()
        for _ in range(8):
            device.free(device.allocate(1 << 30))
            time.sleep(0)
        device.launch(kernels=10)
        pointer = device.allocate(1 << 20)
        device.free(pointer)


def checkpoint(folder: Path) -> None:
    """The model is written every fifth step, on the thread that launches."""
    says()
    device = Device()
    for step in range(STEPS):
        device.launch()
        device.wait()
        if step % EVERY == EVERY - 1:
            with open(folder / "model.pt", "wb") as file:
                file.write(_STATE)


def pageable_copy(folder: Path) -> None:
    """A batch of memory that is not pinned, in each step."""
    says()
    device, host = Device(), ctypes.create_string_buffer(200_000_000)
    device.memory = device.allocate(len(host))
    for _ in range(STEPS):
        device.copy_in(host)
        device.launch()
        device.wait()


def decode_in_loop(folder: Path) -> None:
    """The next batch is made by the thread that launches."""
    says()
    device = Device()
    for _ in range(STEPS):
        work(0.04)
        device.launch()
        device.wait()


def _produce(batches: Any) -> None:
    for _ in range(STEPS):
        work(0.06)
        batches.put(bytes(1000))


def slow_loader(folder: Path) -> None:
    """The next batch comes from one worker process, which is slower than the device."""
    says()
    context = multiprocessing.get_context("fork")
    batches: Any = context.Queue(maxsize=2)
    worker = context.Process(target=_produce, args=(batches,))
    worker.start()
    device = Device()
    for _ in range(STEPS):
        batches.get()
        device.launch()
        device.wait()
    worker.join()


def _serve(listener: socket.socket) -> None:
    while True:
        peer, _ = listener.accept()
        with peer:
            peer.recv(100)
            time.sleep(0.04)
            peer.sendall(bytes(10_000))


def download(folder: Path) -> None:
    """Each step asks a service for its data."""
    says()
    listener = socket.create_server(("127.0.0.1", 0))
    context = multiprocessing.get_context("fork")
    server = context.Process(target=_serve, args=(listener,), daemon=True)
    server.start()
    device = Device()
    for _ in range(STEPS):
        with socket.create_connection(listener.getsockname()) as peer:
            peer.sendall(b"next")
            while peer.recv(65536):
                pass
        device.launch()
        device.wait()
    server.kill()


def _drain(listener: socket.socket) -> None:
    peer, _ = listener.accept()
    while peer.recv(100_000):
        time.sleep(0.01)


def upload(folder: Path) -> None:
    """Each step sends its results to a service that takes them slowly."""
    says()
    listener = socket.create_server(("127.0.0.1", 0))
    context = multiprocessing.get_context("fork")
    server = context.Process(target=_drain, args=(listener,), daemon=True)
    server.start()
    device = Device()
    with socket.create_connection(listener.getsockname()) as peer:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16_384)
        for _ in range(STEPS):
            device.launch()
            device.wait()
            peer.sendall(bytes(600_000))
    server.kill()


def without_cuda(folder: Path) -> None:
    """A framework that was built for CPUs."""
    says(used=0, holds=False)
    library = folder / "libtorch_cpu.so"
    shutil.copy(FAKES / "libnvidia-ml.so.1", library)
    ctypes.CDLL(str(library))
    for _ in range(100):
        work(0.05)


def item_each_step(folder: Path) -> None:
    """The loss is looked at in each step, and the device waits for the next launch."""
    says()
    device = Device()
    for _ in range(4 * STEPS):
        device.launch(kernels=3)
        device.item()
        work(0.003)


def two_at_once(folder: Path) -> None:
    """Batches are made in the loop, and a checkpoint is written: the first costs more."""
    says()
    device = Device()
    writes = threading.Event()
    for step in range(STEPS):
        work(0.05)
        device.launch()
        device.wait()
        if step % EVERY == EVERY - 1:
            with open(folder / "model.pt", "wb") as file:
                file.write(_STATE)
            writes.set()
