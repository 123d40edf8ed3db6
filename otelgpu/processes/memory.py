"""What lies in the memory of an observed process, read where waiting for it holds up nobody: by a worker.

A page may be one of a file system in user space, whose owner answers when it pleases. So the agent only opens
``/proc/PID/mem``, which waits for nothing and settles what may be read of which program; a
:class:`~otelgpu.processes.reader.client.Reader` reads. Who keeps a worker waiting is not
read for a while.

    memory = ProcessMemory()
    with memory.open(4711) as opened:
        opened.read((0x7F00_0000_0000, 32))  → (b"OTEL_CTX…",)
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Concatenate, Final, ParamSpec, TypeVar

from otelgpu.processes.reader.accounts import Owner, Owners
from otelgpu.processes.reader.client import Limits, Reader
from otelgpu.processes.reader.forker import Forker, session_forker
from otelgpu.processes.reader.messages import Descriptor, question

P = ParamSpec("P")
R = TypeVar("R")

MAX_ASKED_BYTES: Final = 16 << 20
"""Of the answer to one question."""

_LIMITS: Final = Limits(busy_s=0.2, wall_s=2.0, advance_s=5.0, failure_s=10.0, end_s=0.05)
"""A question takes some 0.1 ms, a scan of 1 MiB one more; a page that was swapped out some more."""

Range = tuple[int, int]
"""An address, and how many bytes from there on."""


@question()
def memory_at(memory: Descriptor, ranges: tuple[Range, ...]) -> tuple[bytes, ...]:
    """Of each range what is mapped from its beginning on, in the order that they are given."""
    return tuple(_mapped_at(memory, address, size) for address, size in ranges)


def _mapped_at(memory: int, address: int, size: int) -> bytes:
    try:
        return os.pread(memory, size, address)
    except (OSError, OverflowError, ValueError):  # not mapped, or no address at all
        return b""


class OpenMemory:
    """One process' memory, that of the program that it ran when this was opened."""

    def __init__(self, reader: Reader, owner: Owner, descriptor: int) -> None:
        self._reader, self._owner = reader, owner
        self._descriptor = Descriptor(descriptor)

    def read(self, *ranges: Range) -> tuple[bytes, ...]:
        """Of each range what is mapped from its beginning on. Raises OSError where nothing is read for this owner."""
        assert sum(size for _, size in ranges) <= MAX_ASKED_BYTES
        return self.ask(memory_at, ranges)

    def ask(self, function: Callable[Concatenate[Descriptor, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """What a question answers whose first argument is the memory; it waits for that as it likes. Raises OSError."""
        return self._reader.ask(self._owner, function, self._descriptor, *args, **kwargs)

    def close(self) -> None:
        """Let it go; idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = Descriptor(-1)


class ProcessMemory:
    """Opens memories, and reads them with a reader of its own."""

    def __init__(self, limits: Limits = _LIMITS, *, forker: Forker | None = None) -> None:
        self._reader = Reader(limits, forker=forker)
        self._owners = Owners()

    @property
    def counters(self) -> Counter[str]:
        """The reader's: what has not been read, by reason."""
        return self._reader.counters

    @contextmanager
    def open(self, tgid: int, *, proc: Path = Path("/proc")) -> Iterator[OpenMemory]:
        """That of a process, for a while. Raises OSError."""
        opened = self.keep_open(tgid, proc=proc)
        try:
            yield opened
        finally:
            opened.close()

    def keep_open(self, tgid: int, *, proc: Path = Path("/proc")) -> OpenMemory:
        """The same until it is closed. Raises OSError."""
        descriptor = os.open(proc / str(tgid) / "mem", os.O_RDONLY | os.O_CLOEXEC)
        return OpenMemory(self._reader, self._owners.of(tgid), descriptor)

    def close(self) -> None:
        """End the worker."""
        self._reader.close()


@cache
def session_memory() -> ProcessMemory:
    """The one of this program. To be asked for before there are threads: the first time, it forks."""
    return ProcessMemory(forker=session_forker())
