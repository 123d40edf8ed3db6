"""A file of lines, read piece by piece: memory is bounded by a piece, whatever the file is."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final

from msgspec import Struct

from otelgpu.export.file.line_file import rotated

PIECE_BYTES: Final = 16 << 20
"""What is read at once: a line that is longer is passed over."""


class Piece(Struct, frozen=True, kw_only=True):
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


def first_offset(file: BinaryIO, newest: int, chunk: int) -> int:
    """Where the newest ``newest`` bytes begin a line."""
    size = file.seek(0, os.SEEK_END)
    return 0 if size <= newest else _line_after(file, size - newest - 1, chunk)


def _line_after(file: BinaryIO, at: int, chunk: int) -> int:
    file.seek(at)
    while content := file.read(chunk):
        found = content.find(b"\n")
        if found >= 0:
            return at + found + 1
        at += len(content)
    return at


def lines(file: BinaryIO, limit: int = PIECE_BYTES) -> Iterator[bytes | None]:
    """Every line of a file, as :func:`split_lines` has them."""
    return split_lines(iter(partial(file.read, limit), b""), limit)


def split_lines(pieces: Iterable[bytes], limit: int = PIECE_BYTES) -> Iterator[bytes | None]:
    """Every line, whether or not the last one has an end; None for one longer than ``limit`` bytes."""
    rest, is_cut = b"", False
    for piece in pieces:
        *ended, begun = piece.split(b"\n")
        for line in ended:
            line = rest + line
            yield None if is_cut or len(line) > limit else line
            rest, is_cut = b"", False
        rest += begun
        if len(rest) > limit:
            rest, is_cut = b"", True
    if rest or is_cut:
        yield None if is_cut else rest


def whole_rotations(paths: Iterable[Path]) -> list[Path]:
    """The files, each after those that it was rotated to; those that were named too are there once."""
    return list(dict.fromkeys(Path(part) for path in paths for part in rotated(str(path))))
