"""Bytes of an input, decompressed: gzip or Zstandard, by how it begins."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import IO, Any, Final

from otelgpu.errors import OtelgpuError

PIECE_BYTES: Final = 1 << 20
_GZIP, _ZSTANDARD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


class StoreError(OtelgpuError):
    """An input cannot be taken, or what reads it is not installed."""


class BrokenFile(ValueError):
    """It cannot be read, or not to its end."""


def pieces(path: Path, size: int = PIECE_BYTES) -> Iterator[bytes]:
    """The content, at most ``size`` bytes at a time. Raises `BrokenFile` where it goes no further."""
    try:
        with path.open("rb") as plain, closing(_decompressed(plain)) as file:
            while piece := file.read(size):
                yield piece
    except _broken() as error:
        raise BrokenFile(str(error)) from error


def beginning(path: Path, size: int) -> bytes:
    """The first bytes; "" where there are none to be read."""
    try:
        return next(pieces(path, size), b"")
    except BrokenFile:
        return b""


def is_compressed(path: Path) -> bool:
    """Whether it begins as gzip or Zstandard does. Raises OSError."""
    with path.open("rb") as file:
        return file.read(4).startswith((_GZIP, _ZSTANDARD))


def content(path: Path, most: int) -> bytes:
    """All of it. Raises `BrokenFile`, also where it is longer than ``most`` bytes."""
    found = bytearray()
    for piece in pieces(path):
        found += piece
        if len(found) > most:
            raise BrokenFile(f"longer than {most} bytes")
    return bytes(found)


def _decompressed(plain: IO[bytes]) -> IO[bytes]:
    magic = plain.read(4)
    plain.seek(0)
    if magic.startswith(_GZIP):
        return gzip.GzipFile(fileobj=plain)  # type: ignore[return-value]
    if magic == _ZSTANDARD:
        return _zstandard().ZstdDecompressor().stream_reader(plain, read_across_frames=True)  # type: ignore[no-any-return]
    return plain


def _zstandard() -> Any:
    try:
        import zstandard
    except ImportError as error:
        raise StoreError("files in Zstandard need a package", "pip install zstandard") from error
    return zstandard


def _broken() -> tuple[type[Exception], ...]:
    """What reading raises."""
    try:
        return OSError, EOFError, zlib.error, _zstandard().ZstdError
    except StoreError:
        return OSError, EOFError, zlib.error
