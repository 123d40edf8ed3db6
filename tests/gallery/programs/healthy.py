"""Programs of which there is nothing to say."""

from __future__ import annotations

import os
import selectors
import socket
import threading
import time
from pathlib import Path

from tests.gallery.programs.steps import STEPS, pause, work


def steady_compute(folder: Path) -> None:
    """No waits at all."""
    for _ in range(STEPS):
        work(0.05)


def compute_and_sleep(folder: Path) -> None:
    """A little of each, in every step alike."""
    for _ in range(STEPS):
        work()
        pause(0.05)


def server_at_rest(folder: Path) -> None:
    """It waits for requests, which come at irregular times, and answers each."""
    mine, theirs = socket.socketpair()

    def ask() -> None:
        for number in range(30):
            time.sleep((0.02, 0.15, 0.07, 0.3, 0.05)[number % 5])
            theirs.send(b"x")
            theirs.recv(1)
        theirs.close()

    threading.Thread(target=ask, daemon=True).start()
    selector = selectors.DefaultSelector()
    selector.register(mine, selectors.EVENT_READ)
    while True:
        selector.select()
        if not mine.recv(1):
            return
        work(0.01)
        mine.send(b"y")


def steady_reads(folder: Path) -> None:
    """A batch of a file that is in memory, in every step."""
    path = folder / "data.bin"
    path.write_bytes(bytes(64 << 20))
    with open(path, "rb", buffering=0) as file:
        for _ in range(STEPS):
            file.read(1 << 20)
            work()
            pause()


def small_logs(folder: Path) -> None:
    """A line is written, and flushed, in every step."""
    with open(folder / "log.txt", "w", encoding="utf-8") as file:
        for step in range(STEPS):
            work()
            pause()
            print(f"step {step}", file=file, flush=True)


def write_in_thread(folder: Path) -> None:
    """A checkpoint every fifth time, written by another thread: as it is to be."""
    state = bytes(60_000_000)
    writer = None
    for step in range(STEPS):
        work()
        pause()
        if step % 5 == 4:
            if writer is not None:
                writer.join()
            writer = threading.Thread(target=(folder / "checkpoint.bin").write_bytes, args=(state,))
            writer.start()
    if writer is not None:
        writer.join()


def uneven_compute(folder: Path) -> None:
    """Some steps have a little more to do."""
    for step in range(STEPS):
        work(0.03 + 0.004 * (step % 3))
        pause()
    assert os.getpid()
