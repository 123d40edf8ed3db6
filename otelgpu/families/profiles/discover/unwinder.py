"""The program that makes unwind tables, one process a file: ``otelgpu/unwinder`` in C, built to ``_native/unwinder``.

In: an open file and where its ``.eh_frame`` lies. Out: :class:`Rows`, read as they come. What an observed program may
have written is not looked at in this process, which has privileges: a file that misleads its reader, wants time and
memory without end, or is cut off while it is read costs that reader, and is :class:`UnwinderError` here.

Measured: libpython3.11 (333 KiB) in 4 ms of CPU, libtorch_cpu (19 MiB, 2.8 million rows) in 150 ms, with as much memory
as the table takes; the start of the process is half a millisecond of that.
"""

from __future__ import annotations

import os
import select
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import IO, Final

from otelgpu.elf.eh_frame import Frames
from otelgpu.errors import OtelgpuError

PROGRAM: Final = Path(__file__).parents[3] / "_native" / "unwinder"
ROW_BYTES: Final = 8  # struct unwind_row

_HEAD: Final = struct.Struct("<II")  # struct unwinder_head
_FILLING: Final = b"\xff\xff\xff\xff\0\0\0\0"  # a row behind all addresses
_LIMIT_S: Final = 60.0  # for one file; of the CPU the program allows itself less (SECONDS_LIMIT in main.c)
_END_S: Final = 5.0
_PART_BYTES: Final = 1 << 18


class UnwinderError(OtelgpuError):
    """No table of that file: the program is not there, refused, was ended by a limit or by what it read."""


class Rows:
    """The rows of a file, on their way. ``count`` of them; ``damaged`` functions are unknown from some place on."""

    def __init__(self, pipe: IO[bytes], until_s: float) -> None:
        self._pipe, self._until_s = pipe, until_s
        self.count, self.damaged = _HEAD.unpack(self._take(_HEAD.size))

    def parts(self, multiple: int) -> Iterator[bytes]:
        """All of them, a multiple of so many at a time; the last is filled up. Raises :class:`UnwinderError`."""
        unit = multiple * ROW_BYTES
        left = self.count * ROW_BYTES
        while left:
            size = min(left, _PART_BYTES // unit * unit)
            left -= size
            yield self._take(size) + _FILLING * (-size % unit // ROW_BYTES)

    def _take(self, size: int) -> bytes:
        parts: list[bytes] = []
        while size:
            wait_s = self._until_s - time.monotonic()
            if not select.select([self._pipe], [], [], max(wait_s, 0.0))[0]:
                raise UnwinderError("an unwind table took too long")
            part = os.read(self._pipe.fileno(), size)
            if not part:
                raise UnwinderError("the program that makes unwind tables has ended before its time")
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


class Unwinder:
    """Starts the program, for one file after the other."""

    def __init__(self, program: Path = PROGRAM, *, limit_s: float = _LIMIT_S) -> None:
        self._program, self._limit_s = program, limit_s
        self._lock = Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_closed = False

    @contextmanager
    def rows(self, descriptor: int, frames: Frames) -> Iterator[Rows]:
        """Those of an open file. Raises :class:`UnwinderError`; afterwards the process is gone."""
        process = self._start(descriptor, frames)
        try:
            assert process.stdout is not None, "it was asked for"
            with process.stdout as pipe:
                yield Rows(pipe, time.monotonic() + self._limit_s)
        finally:
            self._end(process)

    def close(self) -> None:
        """End what is under way, in another thread; what is asked for later fails."""
        with self._lock:
            self._is_closed = True
            if self._process is not None:
                self._process.kill()

    def _start(self, descriptor: int, frames: Frames) -> subprocess.Popen[bytes]:
        numbers = (frames.offset, frames.size_bytes, frames.address)
        with self._lock:
            if self._is_closed:
                raise UnwinderError("no more unwind tables are made")
            try:
                self._process = subprocess.Popen(
                    [str(self._program), *map(str, numbers)],
                    stdin=descriptor,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    env={},
                    start_new_session=True,  # a terminal's signals are not for it
                )
            except OSError as error:
                raise UnwinderError(f"cannot start {self._program}: {error}") from error
            return self._process

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        with self._lock:
            self._process = None
        process.kill()
        with suppress(subprocess.TimeoutExpired):  # it waits for a disk that does not answer
            process.wait(_END_S)
