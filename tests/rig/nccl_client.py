"""A process that calls NCCL as it is reported: lines of JSON in, lines of JSON out. Started by :class:`NcclClient`.

``load``: a library. ``map``: anonymous memory. ``fill``, ``write``: bytes, words into it. ``unmap``. ``call``: a
function, its arguments (numbers, or the bytes of a unique id as hex) and how often; answers the results.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

_PAGE = mmap.PAGESIZE


class UniqueId(ctypes.Structure):
    """ncclUniqueId, which is passed by value. Made from a buffer: a field of characters is only set up to a zero."""

    _fields_ = (("internal", ctypes.c_char * 128),)


class NcclClient:
    """The process, seen from a test."""

    def __init__(self, library: Path | None = None, environment: Mapping[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, **(environment or {})},
        )
        self.pid = self._process.pid
        self.ask("ready")
        if library is not None:
            self.load(library)

    def load(self, library: Path) -> None:
        """Map it."""
        self.ask("load", str(library))

    def ask(self, what: str, *given: Any) -> Any:
        """One command and its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([what, *given]) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the client ended in {what} {given}: {self._process.wait()}"
        return json.loads(line)

    def call(self, name: str, *arguments: int | str, times: int = 1) -> list[int]:
        """What the function returned, each time."""
        results: list[int] = self.ask("call", name, arguments, times)
        return results

    def map(self, size: int, words: Iterable[tuple[int, int, int]] = ()) -> int:
        """Memory of ``size`` bytes with (offset, bytes, value) written into it; its address."""
        address: int = self.ask("map", size)
        self.write(address, words)
        return address

    def write(self, address: int, words: Iterable[tuple[int, int, int]]) -> None:
        """Words as of :meth:`map`."""
        self.ask("write", address, list(words))

    def read(self, address: int, size: int) -> int:
        """A word."""
        value: int = self.ask("read", address, size)
        return value

    def close(self) -> None:
        """End it."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait(timeout=30)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def serve() -> None:
    library: ctypes.CDLL | None = None
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
    for line in sys.stdin:
        what, *given = json.loads(line)
        answer: Any = None
        if what == "load":
            library = ctypes.CDLL(given[0])
        elif what == "map":
            size = given[0] + -given[0] % _PAGE
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
            answer = libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
        elif what == "unmap":
            answer = libc.munmap(ctypes.c_void_p(given[0]), ctypes.c_size_t(given[1]))
        elif what == "write":
            for offset, size, value in given[1]:
                ctypes.memmove(given[0] + offset, (value % (1 << 8 * size)).to_bytes(size, "little"), size)
        elif what == "fill":
            ctypes.memset(*given)
        elif what == "read":
            answer = int.from_bytes(ctypes.string_at(given[0], given[1]), "little")
        elif what == "call":
            assert library is not None
            answer = _call(library, *given)
        print(json.dumps(answer), flush=True)


def _call(library: ctypes.CDLL, name: str, arguments: Sequence[int | str], times: int) -> list[int]:
    function = library[name]
    function.restype = ctypes.c_int
    given = [
        UniqueId.from_buffer_copy(bytes.fromhex(each).ljust(128, b"\0"))
        if isinstance(each, str)
        else ctypes.c_uint64(each % (1 << 64))
        for each in arguments
    ]
    return [function(*given) for _ in range(times)]


if __name__ == "__main__":
    serve()
