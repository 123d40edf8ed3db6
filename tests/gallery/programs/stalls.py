"""Programs that stall: the name says why."""

from __future__ import annotations

import ctypes
import gc
import mmap
import multiprocessing
import os
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from tests.gallery.programs.steps import EVERY, STEPS, pause, work

_STATE = bytes(60_000_000)


def synchronous_write(folder: Path) -> None:
    """A checkpoint, on the thread that computes."""
    for step in range(STEPS):
        work()
        pause()
        if step % EVERY == EVERY - 1:
            with open(folder / "checkpoint.bin", "wb") as file:
                file.write(_STATE)


def write_without_pauses(folder: Path) -> None:
    """The same in a loop that makes no system call of its own: no steps can be seen."""
    for step in range(STEPS):
        work(0.04)
        if step % EVERY == EVERY - 1:
            with open(folder / "checkpoint.bin", "wb") as file:
                file.write(_STATE)


def many_names(folder: Path) -> None:
    """A new file each time."""
    for step in range(STEPS):
        work()
        pause()
        if step % EVERY == EVERY - 1:
            path = folder / f"checkpoint-{step}.bin"
            path.write_bytes(_STATE)
            path.unlink()


def fsync(folder: Path) -> None:
    """Each fifth step is on the disk before the next."""
    with open(folder / "journal.bin", "wb", buffering=0) as file:
        for step in range(STEPS):
            work()
            pause()
            if step % EVERY == EVERY - 1:
                file.write(_STATE)
                os.fsync(file.fileno())
                file.seek(0)


def slow_read(folder: Path) -> None:
    """A large file is read, past the page cache, when its batches are used up."""
    path = folder / "shard.bin"
    path.write_bytes(_STATE)
    os.sync()
    for step in range(STEPS):
        work()
        pause()
        if step % EVERY == EVERY - 1:
            with open(path, "rb", buffering=0) as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                file.read()


def slow_pipe(folder: Path) -> None:
    """The next batch comes from another program, which is slow each fifth time."""
    source = (
        "import sys, time\n"
        f"for step in range({STEPS}):\n"
        f"    time.sleep(0.25 if step % {EVERY} == {EVERY} - 1 else 0.001)\n"
        "    sys.stdout.buffer.write(bytes(60_000)); sys.stdout.buffer.flush()\n"
    )
    producer = subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE)
    assert producer.stdout is not None
    for _ in range(STEPS):
        producer.stdout.read(60_000)
        work()
        pause()
    producer.wait()


def _produce(batches: Any) -> None:
    for step in range(STEPS):
        time.sleep(0.5 if step % EVERY == EVERY - 1 else 0.001)
        batches.put(bytes(1000))


def slow_worker(folder: Path) -> None:
    """The next batch comes from a worker process by way of multiprocessing."""
    context = multiprocessing.get_context("fork")
    batches: Any = context.Queue(maxsize=2)
    worker = context.Process(target=_produce, args=(batches,))
    worker.start()
    for _ in range(STEPS):
        batches.get()
        work()
        pause()
    worker.join()


def slow_thread(folder: Path) -> None:
    """The next batch comes from a thread."""
    batches: queue.Queue[bytes] = queue.Queue(maxsize=2)
    threading.Thread(target=_produce, args=(batches,), daemon=True, name="loader").start()
    for _ in range(STEPS):
        batches.get()
        work()
        pause()


def lock(folder: Path) -> None:
    """Another thread holds it for long, now and then."""
    guard, ended = threading.Lock(), threading.Event()

    def evict() -> None:
        while not ended.is_set():
            with guard:
                time.sleep(0.2)
            time.sleep(0.3)

    threading.Thread(target=evict, name="evictor", daemon=True).start()
    for _ in range(STEPS):
        work()
        pause()
        with guard:
            pass
    ended.set()


def gil(folder: Path) -> None:
    """Another thread runs Python code all the time."""
    ended = threading.Event()

    def tokenize() -> None:
        total = 0
        while not ended.is_set():
            for number in range(10_000):
                total += number % 7

    threading.Thread(target=tokenize, name="tokenizer", daemon=True).start()
    for _ in range(STEPS // 2):
        work()
        pause()
    ended.set()


def _burn() -> None:
    while True:
        work(1.0)


def cpu_contention(folder: Path) -> None:
    """Three processes compete for the CPU that it may use."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    context = multiprocessing.get_context("fork")
    others = [context.Process(target=_burn, daemon=True) for _ in range(3)]
    for other in others:
        other.start()
    for _ in range(STEPS):
        work()
        pause()
    for other in others:
        other.kill()


def cgroup_throttling(folder: Path) -> None:
    """Its control group has used up its quota: who starts it puts it there."""
    for _ in range(10 * STEPS):
        work()
        pause()


def page_faults(folder: Path) -> None:
    """Memory that was given back is touched again."""
    memory = mmap.mmap(-1, 256 << 20)
    zeros = bytes(mmap.PAGESIZE)
    for step in range(STEPS):
        work()
        pause()
        if step % EVERY == EVERY - 1:
            memory.madvise(mmap.MADV_DONTNEED)
            for place in range(0, len(memory), 1 << 20):
                memory[place : place + (1 << 20)] = zeros * 256


def cold_mapping(folder: Path) -> None:
    """A mapped file whose pages are not in memory."""
    path = folder / "mapped.bin"
    path.write_bytes(_STATE)
    os.sync()
    with open(path, "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        mapped.madvise(mmap.MADV_RANDOM)
        for step in range(STEPS):
            work()
            pause()
            if step % EVERY == EVERY - 1:
                mapped.madvise(mmap.MADV_DONTNEED)
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                for place in range(0, len(mapped), 4 * mmap.PAGESIZE):
                    mapped[place]


def garbage_collection(folder: Path) -> None:
    """A million objects are looked through."""
    objects = [[number] for number in range(1_000_000)]
    for step in range(STEPS):
        work()
        pause()
        if step % EVERY == EVERY - 1:
            gc.collect()
    assert objects


def device_copy(folder: Path) -> None:
    """Memory that is not pinned is copied to a device: one of the fake runtime."""
    runtime = ctypes.CDLL(str(Path(__file__).parents[3] / "build" / "fakes" / "libcudart.so.12"))
    size = ctypes.c_size_t(len(_STATE) * 10)
    host, device = ctypes.create_string_buffer(size.value), ctypes.c_void_p()
    assert runtime.cudaMalloc(ctypes.byref(device), size) == 0
    for step in range(STEPS):
        work()
        pause()
        if step % EVERY == EVERY - 1:
            assert runtime.cudaMemcpy(device, host, size, 1) == 0


def sleep(folder: Path) -> None:
    """It sleeps for longer every fifth time."""
    for step in range(STEPS):
        work()
        pause()
        if step % EVERY == EVERY - 1:
            time.sleep(0.2)


def subprocess_wait(folder: Path) -> None:
    """Another program does something every fifth time."""
    for step in range(STEPS):
        work()
        pause()
        if step % EVERY == EVERY - 1:
            subprocess.run(["sleep", "0.2"], check=True)


def subprocess_output(folder: Path) -> None:
    """The same, and its output is read."""
    for step in range(STEPS):
        work()
        pause()
        if step % EVERY == EVERY - 1:
            subprocess.check_output(["sh", "-c", "sleep 0.2; echo done"])
