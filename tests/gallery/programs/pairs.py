"""Programs with two faults each; the first in the name costs more."""

from __future__ import annotations

import gc
import subprocess
import threading
import time
from pathlib import Path

from tests.gallery.programs.steps import STEPS, pause, work

_STATE = bytes(120_000_000)


def sleep_and_write(folder: Path) -> None:
    """A retry that waits in every fourth step, a checkpoint in every sixth: of some steps in the same."""
    for step in range(STEPS):
        work()
        pause()
        if step % 4 == 3:
            time.sleep(0.25)
        if step % 6 == 5:
            (folder / "checkpoint.bin").write_bytes(_STATE)


def program_and_collection(folder: Path) -> None:
    """Another program in every fifth step, a garbage collection in every eighth."""
    objects = [[number] for number in range(600_000)]
    for step in range(STEPS):
        work()
        pause()
        if step % 5 == 4:
            subprocess.run(["sleep", "0.3"], check=True)
        if step % 8 == 7:
            gc.collect()
    assert objects


def lock_and_program(folder: Path) -> None:
    """A lock that is held for long, and another program in each seventh step."""
    guard, ended = threading.Lock(), threading.Event()

    def evict() -> None:
        while not ended.is_set():
            with guard:
                time.sleep(0.25)
            time.sleep(0.2)

    def fetch() -> None:
        subprocess.run(["sleep", "0.12"], check=True)

    threading.Thread(target=evict, name="evictor", daemon=True).start()
    for step in range(STEPS):
        work()
        pause()
        with guard:
            pass
        if step % 7 == 6:
            fetch()
    ended.set()
