"""A file of whole lines that is appended to, and rotated: ``PATH``, before it ``PATH.1``, the oldest ``PATH.N``.

In: lines. Out: a file that holds each whole or not at all. Where the disk is full the part that was written is cut off
again; what a crash left of a line is ended before the next; a file that was removed or moved away is made anew. Nothing
here is counted or logged: what cannot be written raises OSError.

Example: of ``max_bytes=100, max_files=3`` there are at most 300 bytes, in ``PATH``, ``PATH.1`` and ``PATH.2``; the line
that finds no room in ``PATH`` begins a new one, and what was ``PATH.2`` is gone.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import Final

from msgspec import Struct

from otelgpu.kernel.output_files import open_output

DEFAULT_FILES: Final = 5
MOST_FILES: Final = 1000
"""A name with a larger number is somebody else's: a date, perhaps."""


class Rotation(Struct, frozen=True, kw_only=True):
    """``max_bytes`` of one file, 0: it grows without end; ``max_files`` with the one that is written."""

    max_bytes: int = 0
    max_files: int = DEFAULT_FILES


NO_ROTATION: Final = Rotation()


class LineFile:
    """Not safe for several threads; several processes may append to one, of which each follows a rotation."""

    def __init__(self, path: str, mode: int, rotation: Rotation) -> None:
        """Opens ``path``, which is made with ``mode`` where there is none. Raises OSError."""
        self._path, self._mode, self._rotation = path, mode, rotation
        self._fd = self._open()

    def _open(self) -> int:
        found = open_output(self._path, self._mode, append=True)
        self._torn = _ends_within_line(found)
        return found

    def append(self, line: bytes) -> None:
        """Write a line, which ends as lines do. Raises OSError, and then none of it is in the file.

        EFBIG: it is larger than a file may be.
        """
        most = self._rotation.max_bytes
        if most and len(line) > most:
            raise OSError(errno.EFBIG, "a line larger than max_bytes")
        status = self._followed()
        if most and status.st_size and status.st_size + len(line) + self._torn > most:
            self._rotate()
        self._write(b"\n" + line if self._torn else line)

    def _followed(self) -> os.stat_result:
        """The file's status, once it is the one at the path again."""
        mine = os.fstat(self._fd)
        try:
            there = os.stat(self._path)
            if (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino):
                return mine
        except FileNotFoundError:
            pass
        try:
            self._replace()
        except OSError:
            if not mine.st_nlink:
                raise  # what is written to it nobody will see
            return mine  # it has another name now
        return os.fstat(self._fd)

    def _rotate(self) -> None:
        """Each file becomes the next older one; what is beyond the oldest, of a rotation of more files, goes."""
        oldest = self._rotation.max_files - 1
        for number in reversed(_numbers(self._path)):
            if number > oldest:
                os.unlink(f"{self._path}.{number}")
            elif number < oldest:
                os.rename(f"{self._path}.{number}", f"{self._path}.{number + 1}")
        if oldest:
            os.rename(self._path, f"{self._path}.1")
        else:
            os.unlink(self._path)
        self._replace()

    def _replace(self) -> None:
        before, self._fd = self._fd, self._open()
        os.close(before)

    def _write(self, line: bytes) -> None:
        rest = memoryview(line)
        try:
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except OSError:
            written = len(line) - len(rest)
            if written:
                self._torn = not _cut(self._fd, written)
            raise
        self._torn = False

    def close(self) -> None:
        """Let it go."""
        os.close(self._fd)


def rotated(path: str) -> list[str]:
    """The files of a rotation that are there, the oldest first; of what was never rotated the file alone."""
    return [*(f"{path}.{number}" for number in reversed(_numbers(path))), path]


def _numbers(path: str) -> list[int]:
    """Of the older files that are there, ascending. A rotation that was cut short may have left one out."""
    folder, _, name = path.rpartition("/")
    found = []
    for entry in os.listdir(folder or ("/" if path.startswith("/") else ".")):
        stem, _, number = entry.rpartition(".")
        if stem == name and number.isascii() and number.isdecimal() and number == str(int(number)):
            found.append(int(number))
    return sorted(number for number in found if 0 < number <= MOST_FILES)


def _ends_within_line(fd: int) -> bool:
    """Whether a crash, or a full disk, left a part of a line at the end."""
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or not status.st_size:
        return False
    try:
        readable = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.pread(readable, 1, status.st_size - 1) != b"\n"
    finally:
        os.close(readable)


def _cut(fd: int, size: int) -> bool:
    """Take the last ``size`` bytes off the file; whether that worked."""
    try:
        os.ftruncate(fd, os.fstat(fd).st_size - size)
    except OSError:
        return False
    return True
