r"""Bodies with a content encoding: compressed bytes in, bounded chunks of plain bytes out.

Formats: gzip and zlib ("deflate", RFC 9110, section 8.4.1.2), and the raw deflate that some servers send
under that name. Incremental: what a server flushed can be read at once. Brotli and zstd need libraries that
otelgpu does not have; they are not read.

Bounds: a chunk is at most MAX_CHUNK_BYTES, and all of a body at most FREE_BYTES + MAX_RATIO × what came in,
never more than MAX_BYTES: deflate itself reaches 1032:1, a stream of small JSON events about 30:1.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Final

MAX_CHUNK_BYTES: Final = 65536
MAX_BYTES: Final = 1 << 28
FREE_BYTES: Final = 1 << 20
MAX_RATIO: Final = 256

ENCODINGS: Final = frozenset((b"gzip", b"x-gzip", b"deflate"))
_ZLIB: Final = zlib.MAX_WBITS
_GZIP: Final = zlib.MAX_WBITS | 16
_RAW: Final = -zlib.MAX_WBITS
_ZLIB_HEADER_BYTES: Final = 2


class BodyInflater:
    """One body. ``failure``: the counter of why nothing more comes; empty while there was no failure."""

    __slots__ = ("_came", "_given", "_head", "_inflate", "failure")

    def __init__(self, encoding: bytes) -> None:
        self._inflate = None if encoding == b"deflate" else zlib.decompressobj(_GZIP)
        self._head = b""  # of "deflate", until it shows which of the two formats it is
        self._came = 0
        self._given = 0
        self.failure = ""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Give the plain bytes that these complete."""
        self._came += len(data)
        if self._inflate is None:
            data = self._head = self._head + data
            if len(data) < _ZLIB_HEADER_BYTES:
                return
            self._inflate = zlib.decompressobj(_ZLIB if _is_zlib(data) else _RAW)
            self._head = b""
        bound = min(MAX_BYTES, FREE_BYTES + MAX_RATIO * self._came)
        while not self.failure:
            try:
                chunk = self._inflate.decompress(data, MAX_CHUNK_BYTES)
            except zlib.error:
                self.failure = "inflate_failed"
                return
            if (
                self._inflate.eof and self._inflate.unused_data
            ):  # RFC 1952, section 2.2: members follow each other
                data = self._inflate.unused_data
                self._inflate = zlib.decompressobj(_GZIP)
            else:
                data = self._inflate.unconsumed_tail
            self._given += len(chunk)
            if self._given > bound:
                self.failure = "inflate_too_large"
            elif chunk:
                yield chunk
            if not data and len(chunk) < MAX_CHUNK_BYTES:
                return

    def ended(self) -> None:
        """The body is complete: so must be what it encodes."""
        if self._came and (self._inflate is None or not self._inflate.eof):
            self.failure = self.failure or "inflate_failed"

    def gap(self) -> None:
        """Bytes are missing here: nothing behind them can be read."""
        self.failure = self.failure or "inflate_failed"


def _is_zlib(data: bytes) -> bool:
    """Whether the first bytes are a zlib header (RFC 1950, section 2.2)."""
    return data[0] & 0x0F == zlib.DEFLATED and int.from_bytes(data[:2], "big") % 31 == 0
