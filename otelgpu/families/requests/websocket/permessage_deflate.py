"""Compressed WebSocket messages (RFC 7692, permessage-deflate) become their text, bounded.

In: what the server agreed to, and the payload of each compressed message of one direction, in order. Out: the
payload inflated, or None. It must not know about frames.

Invariant: with context takeover a message can refer to the ones before it, so after one that was not inflated
no later one can be, and ``inflate`` returns None from then on.
"""

from __future__ import annotations

import zlib
from typing import Final

from otelgpu.families.requests.parser_output import ParserOutput

MAX_INFLATED_BYTES: Final = 1 << 20
#: What zlib holds for a window of 32 KiB (https://zlib.net/zlib_tech.html: 44 KiB to inflate).
WINDOW_BYTES: Final = 45_056
_TAIL: Final = b"\x00\x00\xff\xff"  # RFC 7692, section 7.2.2
_CORRUPT: Final = zlib.error


class Deflate:
    """What was agreed: a response's ``Sec-WebSocket-Extensions`` (RFC 7692, section 7.1)."""

    __slots__ = ("agreed", "client_forgets", "server_forgets")

    def __init__(self, header: bytes) -> None:
        parameters = {part.strip().lower() for part in header.partition(b",")[0].split(b";")}
        self.agreed = b"permessage-deflate" in parameters
        self.client_forgets = b"client_no_context_takeover" in parameters
        self.server_forgets = b"server_no_context_takeover" in parameters


class MessageInflater:
    """One direction. ``forgets``: each message stands alone. :meth:`drop` gives its memory back."""

    __slots__ = ("_forgets", "_lost", "_output", "_stream")

    def __init__(self, output: ParserOutput, *, forgets: bool) -> None:
        self._output = output
        self._forgets = forgets
        self._lost = False
        self._stream: zlib._Decompress | None = None

    def inflate(self, payload: bytes) -> bytes | None:
        """Return a message inflated; None when it is too large, corrupt, or refers to what is not known."""
        if self._stream is None:
            if self._lost or not self._output.reserve(WINDOW_BYTES):
                self.skip()
                return None
            self._stream = zlib.decompressobj(-zlib.MAX_WBITS)
        stream = self._stream
        try:
            text = stream.decompress(payload + _TAIL, MAX_INFLATED_BYTES)
        except _CORRUPT:
            self.skip()
            return None
        if stream.unconsumed_tail or stream.eof:  # too large, or the last that there can be
            self.skip()
            return None if stream.unconsumed_tail else text
        if self._forgets:
            self.drop()
        return text

    def skip(self) -> None:
        """Note that a message was not inflated."""
        self._lost = not self._forgets
        self.drop()

    def drop(self) -> None:
        """Forget the window."""
        if self._stream is not None:
            self._stream = None
            self._output.release(WINDOW_BYTES)
