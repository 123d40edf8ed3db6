"""A second set that was written, with its labels, when the rules were done: the gallery's causes by other means.

What was said of them at the first try is in the manual; that they are here since then makes them part of the gallery.
"""

from __future__ import annotations

import gc
import logging
import mmap
import os
import socket
import threading
from collections import deque
from pathlib import Path
from queue import Queue
from time import sleep

import numpy as np

from tests.gallery.programs.steps import work


def mapped_sync(folder: Path) -> None:
    """Results go into a mapped file, which is synced (msync) in every seventh of 63 steps."""
    path = folder / "results.dat"
    path.write_bytes(bytes(48 << 20))
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as results:
        for step in range(63):
            work(0.018)
            sleep(0.004)
            if step % 7 == 3:
                results[:] = bytes([step]) * len(results)
                results.flush()


def archive(folder: Path) -> None:
    """numpy writes an archive of four arrays, by zipfile, after every sixth of 48 steps."""
    state = {f"layer_{number}": np.full(2_500_000, number, dtype=np.float64) for number in range(4)}
    for step in range(48):
        work(0.015)
        sleep(0.006)
        if step % 6 == 5:
            np.savez(folder / "state.npz", **state)


def _serve(listener: socket.socket) -> None:
    connection, _ = listener.accept()
    with connection:
        for step in range(56):
            sleep(0.45 if step % 8 == 2 else 0.001)
            connection.sendall(bytes(200_000))


def socket_batches(folder: Path) -> None:
    """Batches come by TCP from a process; one of eight is late."""
    listener = socket.create_server(("127.0.0.1", 0))
    if not (child := os.fork()):
        _serve(listener)
        os._exit(0)
    with socket.create_connection(listener.getsockname()) as connection:
        for _ in range(56):
            batch = bytearray()
            while len(batch) < 200_000:
                batch += connection.recv(200_000 - len(batch))
            work(0.03)
            sleep(0.004)
    os.waitpid(child, 0)


class _Shipping(logging.Handler):
    """Sends what is logged somewhere, by the lock that every handler of logging has."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING:
            sleep(0.25)


def logging_lock(folder: Path) -> None:
    """Another thread's warning is being sent, slowly, whenever the loop logs its own line after every tenth step."""
    logger = logging.getLogger("training")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.addHandler(_Shipping())
    warns, begun = threading.Event(), threading.Event()

    def watch() -> None:
        for _ in range(6):
            warns.wait()
            warns.clear()
            begun.set()
            logger.warning("the disk is nearly full")

    watcher = threading.Thread(target=watch, name="watch-disk")
    watcher.start()
    for step in range(60):
        work(0.02)
        sleep(0.005)
        if step % 10 == 9:
            warns.set()
            begun.wait()
            begun.clear()
            sleep(0.003)
            logger.info("step %d", step)
    watcher.join()


def collected(folder: Path) -> None:
    """The program itself collects garbage after every ninth step: a million objects are looked at."""
    kept: list[object] = [{"at": [number]} for number in range(600_000)]
    gc.disable()
    for step in range(54):
        work(0.02)
        sleep(0.005)
        if step % 9 == 8:
            gc.collect()
    assert kept


def shell(folder: Path) -> None:
    """A shell's command is run by the C library's system() after every sixth step."""
    for step in range(48):
        work(0.02)
        sleep(0.005)
        if step % 6 == 1:
            os.system("sleep 0.3; true")


def fresh_memory(folder: Path) -> None:
    """A buffer of 400 MB that was never used is filled in every fifth step, and given back."""
    for step in range(40):
        work(0.02)
        sleep(0.005)
        if step % 5 == 4:
            buffer = np.empty(50_000_000)
            buffer.fill(step)
            del buffer


def made_ahead(folder: Path) -> None:
    """Healthy: a thread reads ahead, a bounded queue is never empty, and what is logged is kept in memory."""
    shard = folder / "shard.bin"
    shard.write_bytes(bytes(4 << 20))
    batches: Queue[bytes] = Queue(maxsize=8)
    logged: deque[str] = deque(maxlen=100)

    def read() -> None:
        for _ in range(90):
            batches.put(shard.read_bytes())

    reader = threading.Thread(target=read, name="reader")
    reader.start()
    for step in range(90):
        batch = batches.get()
        work(0.02)
        sleep(0.004)
        logged.append(f"{step} {len(batch)}")
    reader.join()
