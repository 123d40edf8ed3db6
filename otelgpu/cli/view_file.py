"""A file of OTLP/JSON lines as batches of columns for the page, one for each piece that is read.

Of a long file the newest part is read, and how much is left out is reported.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

from msgspec import Struct

from otelgpu.export.file.line_file import rotated
from otelgpu.otlp_json.reader import Reader
from otelgpu.store.line_files import PIECE_BYTES, first_offset, read_piece
from otelgpu.view.batch import Batch

NEWEST_BYTES: Final = 256 << 20
"""What a page holds at most: some 300,000 spans."""

FOLLOWED_BYTES: Final = 64 << 20
"""What a page that follows a file is given of what was there before."""


class Limits(Struct, frozen=True, kw_only=True):
    """How much is read at once, and of the file's end in all."""

    piece: int = PIECE_BYTES
    newest: int = NEWEST_BYTES


def batches(path: Path, limits: Limits) -> Iterator[dict[str, Any]]:
    """The columns of a file that nothing is added to, and of those that it was rotated to, one batch for each piece."""
    left, before, chosen = limits.newest, 0, list[tuple[Path, int]]()
    for name in reversed(rotated(str(path))):
        each = Path(name)
        size = os.stat(each).st_size
        if left > 0 or each == path:
            chosen.append((each, left))
        else:
            before += size
        left -= size
    for each, newest in reversed(chosen):
        yield from _batches_of_file(each, Limits(piece=limits.piece, newest=newest), before)
        before = 0


def _batches_of_file(path: Path, limits: Limits, passed_over: int) -> Iterator[dict[str, Any]]:
    """``passed_over``: bytes of files before this one."""
    with path.open("rb") as file:
        at = first_offset(file, limits.newest, limits.piece)
        before = at + passed_over
        while True:
            piece = read_piece(file, at, limits.piece)
            batch = Batch(Reader())
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
        at = int(offset) if is_same else first_offset(file, self._limits.newest, self._limits.piece)
        piece = read_piece(file, at, self._limits.piece)
        batch = Batch(Reader())
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
