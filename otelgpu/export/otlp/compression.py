"""How payloads are compressed: by the names that ``OTEL_EXPORTER_OTLP_COMPRESSION`` and ``Content-Encoding`` have.

gzip (RFC 1952) by ISA-L where it is installed, which takes a fifth of zlib's time for as many bytes
(docs/reference/measured/benchmarks.md); zstd (RFC 8878), which is not in the specification of OTLP, but the Collector's
receiver takes it over HTTP: bytes fewer by a quarter.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Final

from otelgpu.export.base import ExportError


class Compression(StrEnum):
    """Of the bodies of one signal."""

    NONE = "none"
    GZIP = "gzip"
    ZSTD = "zstd"


Compressor = Callable[[bytes], bytes]

_ZLIB_LEVEL: Final = (
    3  # columns repeat themselves: higher levels take several times as long for a few per cent
)
_ISAL_LEVEL: Final = 2  # of 0 to 3; the last takes five times as long for nothing
_ZSTD_LEVEL: Final = 1


def compressor(compression: Compression) -> Compressor:
    """What makes one body of another. Raises :class:`ExportError` where what it needs is not installed."""
    if compression is Compression.ZSTD:
        return _zstd()
    return _gzip() if compression is Compression.GZIP else bytes


def _gzip() -> Compressor:
    try:
        from isal import igzip
    except ImportError:
        import gzip

        return lambda body: gzip.compress(body, _ZLIB_LEVEL, mtime=0)
    return lambda body: igzip.compress(body, _ISAL_LEVEL, mtime=0)


def _zstd() -> Compressor:
    try:
        from zstandard import ZstdCompressor
    except ImportError as error:
        raise ExportError(
            "compression zstd needs the package zstandard", "pip install 'otelgpu[names]', or use gzip."
        ) from error
    return ZstdCompressor(level=_ZSTD_LEVEL).compress
