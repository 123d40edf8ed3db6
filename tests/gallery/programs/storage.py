"""Programs whose files are slow for what lies under them, or are read and written in parts."""

from __future__ import annotations

import os
from pathlib import Path

from tests.gallery.programs.remote import mounted
from tests.gallery.programs.steps import EVERY, STEPS, pause, work

_STATE = bytes(60_000_000)


def remote_read(folder: Path) -> None:
    """The next part of a file of a remote file system, in every fifth step."""
    with mounted(folder, lambda _: 0.15) as path, open(path, "rb", buffering=0) as file:
        for step in range(STEPS):
            work()
            pause()
            if step % EVERY == EVERY - 1:
                file.read(60_000)


def throttled_read(folder: Path) -> None:
    """A file on a device that its control group may read little of: who starts it puts it there."""
    path = folder / "shard.bin"
    path.write_bytes(_STATE)
    os.sync()
    for step in range(STEPS):
        work()
        pause()
        if step % EVERY == EVERY - 1:
            with open(path, "rb", buffering=0) as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                file.read(20_000_000)


def read_in_parts(folder: Path) -> None:
    """Of a large file, 1 MB at a time."""
    path = folder / "shard.bin"
    path.write_bytes(_STATE)
    os.sync()
    for step in range(STEPS):
        work()
        pause()
        if step % EVERY == EVERY - 1:
            with open(path, "rb", buffering=0) as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                while file.read(1 << 20):
                    pass
