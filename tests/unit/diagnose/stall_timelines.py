"""Threads as profiles show them, made of steps whose truth is known."""

from __future__ import annotations

from collections.abc import Sequence

from otelgpu.diagnose.stall.observations import (
    CPU,
    FILE_TIME,
    OFF_CPU,
    SYSCALL_TIME,
    Frames,
    Observations,
    Seen,
    ThreadSeen,
)
from otelgpu.render.frames import Frame, Kind

PID = 4242
MS = 1_000_000
BEGIN = 1_790_000_000_000 * MS

LOOP = Frame(Kind.PYTHON, "train", "/app/train.py", 12)
SAVE = Frame(Kind.PYTHON, "save", "/app/train.py", 31)
OTHER = Frame(Kind.PYTHON, "evict", "/app/cache.py", 7)


def native(*names: str) -> Frames:
    """Of a library."""
    return tuple(Frame(Kind.NATIVE, name) for name in names)


def kernel(*names: str) -> Frames:
    """Of the kernel."""
    return tuple(Frame(Kind.KERNEL, name, "[kernel]") for name in names)


class Timeline:
    """One thread; time goes on with what it does."""

    def __init__(self, tid: int = PID, name: str = "python") -> None:
        self.now = BEGIN
        self.thread = ThreadSeen(pid=PID, program="python", tid=tid, name=name)

    def work(self, ms: float, frames: Frames = (LOOP,)) -> None:
        """It runs, and is sampled every 10 ms."""
        end = self.now + round(ms * MS)
        while self.now + 10 * MS <= end:
            self.row(CPU, 10, frames)
            self.now += 10 * MS
        self.now = end

    def row(self, kind: str, ms: float, frames: Frames, **more: object) -> None:
        """One observation from now on; time stands still."""
        self.thread.rows.append(Seen(kind, self.now, round(ms * MS), frames, **more))  # type: ignore[arg-type]

    def sleep(self, ms: float, site: Frame = LOOP) -> None:
        """``time.sleep``."""
        waits = kernel("do_nanosleep", "hrtimer_nanosleep")
        self.row(SYSCALL_TIME, ms, (*native("clock_nanosleep"), site), syscall="clock_nanosleep")
        self.row(OFF_CPU, ms, (*waits, *native("clock_nanosleep"), site), state="interruptible")
        self.now += round(ms * MS)

    def write(
        self, ms: float, size_bytes: int, name: str = "checkpoint.bin", call: str = "write", folder: str = ""
    ) -> None:
        """A slow call on a file; of a recording without paths ``folder`` is empty."""
        syscall = {"write": "write", "sync": "fsync", "read": "read"}[call]
        path = f"{folder}/{name}" if folder else ""
        file = {"file_call": call, "file_name": name, "file_path": path, "size_bytes": size_bytes}
        self.row(FILE_TIME, ms, (SAVE, LOOP), **file)
        self.row(SYSCALL_TIME, ms, (SAVE, LOOP), syscall=syscall)
        inside = kernel("generic_perform_write", "vfs_write", "ksys_write", "do_syscall_64")
        self.row(OFF_CPU, ms / 2, (*inside, SAVE, LOOP), state="uninterruptible")
        self.now += round(ms * MS)

    def call(self, ms: float, name: str, kind: str = "cuda_time") -> None:
        """A function of a vendor's library, in which the thread polls."""
        self.row(kind, ms, (*native(name), SAVE, LOOP), call=name)
        self.now += round(ms * MS)

    def wait(self, ms: float, frames: Frames, syscall: str = "futex", state: str = "interruptible") -> None:
        """A system call that waits all the time."""
        if syscall:
            self.row(SYSCALL_TIME, ms, frames, syscall=syscall)
        self.row(OFF_CPU, ms, frames, state=state)
        self.now += round(ms * MS)


def observed(*timelines: Timeline, without: Sequence[str] = ()) -> Observations:
    """What profiles of those threads hold."""
    for each in timelines:
        each.thread.rows = sorted(
            (row for row in each.thread.rows if row.type not in without), key=lambda row: row.begin_ns
        )
    types = frozenset((CPU, OFF_CPU, SYSCALL_TIME, FILE_TIME)) - set(without)
    return Observations(threads=[each.thread for each in timelines], types=types, rejected={})
