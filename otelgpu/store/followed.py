"""Inputs that grow, looked at again and again: of lines of OTLP only what was appended is read.

A file is known by its device and inode, so that one that was rotated is read on under its new name, also where that is
no input. Where it was cut or written anew is seen by what stands before the place reached; then it is read from its
start. A line without an end waits for it. Files of other kinds, which are written once, are read anew at each look,
but for an agent's tables (:meth:`otelgpu.store.observed.Observed.unread`).
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final, Self

from msgspec import Struct

from otelgpu.otlp_json.reader import Reader
from otelgpu.store.database import Store
from otelgpu.store.files import BrokenFile, is_compressed, pieces
from otelgpu.store.inputs import by_reader, found_files
from otelgpu.store.line_files import PIECE_BYTES, read_piece, split_lines
from otelgpu.store.readers import otlp
from otelgpu.store.reasons import FILES_GONE, FILES_UNREADABLE

MARGIN_S: Final = 60.0
"""So much more is kept: what was seen shortly before a verdict is its evidence."""

_COMPARED: Final = 256  # bytes before the place reached; ids and times are in the end of a line

_Identity = tuple[int, int]  # device and inode


class _Followed(Struct, kw_only=True):
    """A file of OTLP. ``at``: offset of the next line, whose number is ``line`` + 1; ``before``: what precedes it.

    ``grew``: the last look found something new in it. ``written_ns``: of a compressed one, when it was written last.
    """

    path: Path
    at: int = 0
    line: int = 0
    before: bytes = b""
    grew: bool = False
    written_ns: int = 0


class FollowedInputs:
    """The tables of all inputs, of what began lately; to be closed. Inputs: as of `open_inputs`."""

    def __init__(self, inputs: Sequence[str], *, job: str | None = None) -> None:
        """Raises `StoreError` where DuckDB is not installed."""
        self._inputs = inputs
        self._store = Store(job=job)
        self._reading = otlp.OtlpReading(self._store)
        self._files: dict[_Identity, _Followed] = {}
        self._gone = 0

    def look(self, begin_s: float) -> Store:
        """What begins at ``begin_s`` or later, which is never earlier than it was. The next look empties it.

        Raises `StoreError` for an input that is not there.
        """
        store = self._store
        files = by_reader(found_files(self._inputs))
        with store.errors("tables cannot be made"):
            store.start_over(begin_s=begin_s)
            self._follow(files.pop(otlp.read, []))
            self._reading.count()
            for reader, mine in files.items():
                reader(store, mine)
            store.observed().forget(begin_s - MARGIN_S)
            if self._gone:
                store.rejected[FILES_GONE] = self._gone
            store.finish()
        return store

    def close(self) -> None:
        """Remove the tables."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _follow(self, paths: Iterable[Path]) -> None:
        present: dict[_Identity, Path] = {}
        for path in paths:
            try:
                status = path.stat()
            except OSError:  # it was rotated meanwhile: the next look finds it
                continue
            present[status.st_dev, status.st_ino] = path
        moved = dict(_elsewhere({key: each.path for key, each in self._files.items() if key not in present}))
        for identity in self._files.keys() - present.keys() - moved.keys():
            self._gone += self._files.pop(identity).grew
        for identity, path in (moved | present).items():
            followed = self._files.setdefault(identity, _Followed(path=path))
            followed.path = path
            try:
                if is_compressed(path):
                    self._read_whole(followed)
                else:
                    self._read_on(followed)
            except (OSError, BrokenFile):
                self._store.rejected[FILES_UNREADABLE] += 1

    def _read_on(self, followed: _Followed) -> None:
        begun = followed.at
        with followed.path.open("rb") as file:
            if not _is_as_it_was(file, followed):
                begun = followed.at = followed.line = 0
            reader = Reader(followed.path.name, self._reading.skips, line=followed.line)
            self._reading.take(reader, _appended(file, followed))
            followed.line, followed.grew = reader.line, followed.at > begun
            followed.before = _before(file, followed.at)

    def _read_whole(self, followed: _Followed) -> None:
        """A compressed file, whenever it was written: spans that were there before are there once."""
        written_ns = followed.path.stat().st_mtime_ns
        followed.grew = written_ns != followed.written_ns
        if followed.grew:
            followed.written_ns = written_ns
            reader = Reader(followed.path.name, self._reading.skips)
            self._reading.take(reader, split_lines(pieces(followed.path)))


def _appended(file: BinaryIO, followed: _Followed) -> Iterator[bytes | None]:
    """The lines that have an end; None for one that is too long."""
    while (piece := read_piece(file, followed.at, PIECE_BYTES)).next > followed.at:
        followed.at = piece.next
        yield from piece.lines
        if piece.cut:
            yield None


def _is_as_it_was(file: BinaryIO, followed: _Followed) -> bool:
    return _before(file, followed.at) == followed.before


def _before(file: BinaryIO, at: int) -> bytes:
    begin = max(at - _COMPARED, 0)
    file.seek(begin)
    return file.read(at - begin)


def _elsewhere(paths: dict[_Identity, Path]) -> Iterator[tuple[_Identity, Path]]:
    """Files that are no longer where they were, by their new names in the same folder."""
    folders: dict[Path, set[_Identity]] = defaultdict(set)
    for identity, path in paths.items():
        folders[path.parent].add(identity)
    for folder, wanted in folders.items():
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    status = entry.stat(follow_symlinks=False)
                    if (status.st_dev, status.st_ino) in wanted:
                        yield (status.st_dev, status.st_ino), folder / entry.name
        except OSError:  # the folder is gone too, or a file while it was looked at: the next look sees
            continue
