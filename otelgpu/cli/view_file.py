"""A file of OTLP/JSON lines, read piece by piece: memory is bounded by a piece, whatever the file is.

Of a long file the newest part is read, and how much is left out is told.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from otelgpu.view.batch import Batch
from otelgpu.view.documents import Reader

PIECE_BYTES: Final = 16 << 20
NEWEST_BYTES: Final = 256 << 20
"""What a page holds at most: some 300,000 spans."""

FOLLOWED_BYTES: Final = 64 << 20
"""What a page that follows a file is given of what was there before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much is read at once, and of the file's end in all."""

    piece: int = PIECE_BYTES
    newest: int = NEWEST_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Whole lines, and where the next ones begin."""

    lines: tuple[bytes, ...]
    next: int
    rest: bytes = b""  # of a line that has no end yet
    cut: bool = False  # a line longer than a piece begins here: it is passed over


def read_piece(file: BinaryIO, at: int, limit: int) -> Piece:
    """The lines from offset ``at``, which begins one, as far as ``limit`` bytes hold them."""
    file.seek(at)
    content = file.read(limit)
    end = content.rfind(b"\n") + 1
    if end:
        is_last = len(content) < limit
        rest = content[end:] if is_last else b""
        return Piece(lines=tuple(content[: end - 1].split(b"\n")), next=at + end, rest=rest)
    if len(content) < limit:
        return Piece(lines=(), next=at, rest=content)
    return Piece(lines=(), next=_line_after(file, at, limit), cut=True)


def first_offset(file: BinaryIO, limits: Limits) -> int:
    """Where the newest ``limits.newest`` bytes begin a line."""
    size = file.seek(0, os.SEEK_END)
    return 0 if size <= limits.newest else _line_after(file, size - limits.newest - 1, limits.piece)


def _line_after(file: BinaryIO, at: int, chunk: int) -> int:
    file.seek(at)
    while content := file.read(chunk):
        found = content.find(b"\n")
        if found >= 0:
            return at + found + 1
        at += len(content)
    return at


def batches(path: Path, limits: Limits) -> Iterator[dict[str, Any]]:
    """The columns of a file that nothing is added to, one batch for each piece."""
    reader = Reader()
    with path.open("rb") as file:
        at = before = first_offset(file, limits)
        while True:
            piece = read_piece(file, at, limits.piece)
            batch = Batch(reader)
            if before:
                batch.count("bytes_before", before)
                before = 0
            if piece.cut:
                batch.count("lines_cut")
            batch.take(piece.lines)
            if piece.rest.strip():
                batch.take_last(piece.rest)
            yield batch.columns()
            if piece.rest or piece.next == at or piece.next >= os.fstat(file.fileno()).st_size:
                return
            at = piece.next


class Follower:
    """Gives what a file got since a page asked last. It keeps nothing: the page says where it is.

    A place is ``DEVICE:INODE:OFFSET``, so that a file that was replaced is noticed.
    """

    def __init__(self, path: Path, limits: Limits) -> None:
        self._path = path
        self._limits = limits
        self._reader = Reader()

    def answer(self, place: str) -> dict[str, Any]:
        """``at``, the next place; ``batch``; whether there is ``more`` now, and whether it is ``waiting`` for a file.

        ``restart``: what the page has is of a file that is no more, or was cut short.
        """
        try:
            with self._path.open("rb") as file:
                return self._read(file, place)
        except OSError:
            return {"at": place, "waiting": True}

    def _read(self, file: BinaryIO, place: str) -> dict[str, Any]:
        status = os.fstat(file.fileno())
        identity = f"{status.st_dev}:{status.st_ino}"
        known, _, offset = place.rpartition(":")
        is_same = (
            known == identity and offset.isascii() and offset.isdigit() and int(offset) <= status.st_size
        )
        at = int(offset) if is_same else first_offset(file, self._limits)
        piece = read_piece(file, at, self._limits.piece)
        batch = Batch(self._reader)
        if piece.cut:
            batch.count("lines_cut")
        if not is_same and at:
            batch.count("bytes_before", at)
        batch.take(piece.lines)
        answer: dict[str, Any] = {
            "at": f"{identity}:{piece.next}",
            "more": piece.next != at and not piece.rest and piece.next < status.st_size,
            "restart": bool(place) and not is_same,
        }
        return answer | ({"batch": batch.columns()} if piece.next != at or not is_same else {})
