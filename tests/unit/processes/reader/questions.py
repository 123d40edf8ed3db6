"""Questions of the tests: what a worker may be asked, and what ends one."""

from __future__ import annotations

import mmap
import os
import signal
import socket
import sys
import time
from dataclasses import dataclass

import numpy as np

from otelgpu.elf.image import ElfError
from otelgpu.processes.reader.messages import Descriptor, question


@dataclass(frozen=True)
class Answer:
    """Of all kinds of data."""

    number: int
    text: str
    rows: np.ndarray
    pairs: dict[str, tuple[int, bytes]]


@question()
def everything(number: int, text: str, rows: np.ndarray) -> Answer:
    """What was given, and more."""
    return Answer(number + 1, text.upper(), rows[::-1].copy(), {"a": (1, b"\xff")})


@question()
def distinct(numbers: np.ndarray) -> np.ndarray:
    """As numpy finds them, which imports a part of itself for that."""
    return np.unique(numbers)


@question()
def opened(path: str) -> tuple[int, Descriptor]:
    """A file's size and the file."""
    descriptor = os.open(path, os.O_RDONLY)
    return os.fstat(descriptor).st_size, Descriptor(descriptor)


@question()
def first_byte(file: Descriptor) -> bytes:
    """Of a file that was passed."""
    return os.read(file, 1)


@question(ElfError)
def failing(how: str) -> None:
    """Raises."""
    raise {"os": OSError(2, "no such"), "elf": ElfError("no image"), "other": ValueError("odd")}[how]


@question()
def forever() -> None:
    """Computes without end."""
    while True:
        pass


@question()
def busy(seconds: float) -> None:
    """Computes for so long."""
    end_s = time.process_time() + seconds
    while time.process_time() < end_s:
        pass


@question()
def blocked(path: str) -> bytes:
    """Waits for who writes to a FIFO."""
    with open(path, "rb") as file:
        return file.read()


@question()
def behind_the_end(path: str) -> bytes:
    """Reads what was cut off meanwhile: SIGBUS."""
    with open(path, "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    time.sleep(0.1)
    return mapped[1 << 20 : (1 << 20) + 1]


@question()
def memory(size: int) -> int:
    """Takes so many bytes."""
    return len(bytearray(size))


@question()
def forbidden(what: str, path: str) -> str:
    """Tries what a worker must not do: "" where it could."""
    try:
        match what:
            case "write":
                os.close(os.open(path, os.O_WRONLY))
            case "make":
                os.close(os.open(path + ".made", os.O_WRONLY | os.O_CREAT))
            case "truncate":
                os.truncate(path, 0)
            case "remove":
                os.unlink(path)
            case "connect":
                socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            case "execute":
                os.execv("/bin/true", ["true"])
            case "fork":
                os.fork()
            case "kill":
                os.kill(os.getppid(), signal.SIGTERM)
    except OSError as error:
        return type(error).__name__
    return ""


@question()
def wrong() -> int:
    """Answers with something else than it says."""
    return "text"  # type: ignore[return-value]


def no_question() -> int:
    """Not to be asked."""
    return 1


@question()
def process() -> int:
    """Who answers."""
    return os.getpid()


@question()
def has_imported(names: tuple[str, ...]) -> int:
    """How many of these modules are there."""
    return sum(name in sys.modules for name in names)


_kept: list[bytes] = []


@question()
def littered(size: int) -> int:
    """Takes so many bytes in small parts and lets them go, below one that stays: the C library keeps them."""
    parts = [bytes(1000) for _ in range(size // 1000)]
    _kept.append(bytes(1000))
    return os.getpid() if parts else 0
