"""The beginning and the end of a JSON body, bounded: all of it while it is whole, its last bytes after that.

In: body bytes and gaps. Out: the whole body, or two parts to search. It must not know what JSON is.
"""

from __future__ import annotations

from otelgpu.families.requests.parser_output import ParserOutput

MAX_FIRST_BYTES = 262144
MAX_LAST_BYTES = 16384
_GAP = b"\x00"  # nothing that a search looks for can span it


class KeptBody:
    """Bytes of one body, reserved from the output's budget; :meth:`drop` releases them."""

    __slots__ = ("_first", "_last", "_output", "_reserved", "size", "whole")

    def __init__(self, output: ParserOutput) -> None:
        self._output = output
        self._first = bytearray()
        self._last = b""
        self._reserved = 0
        self.size = 0
        self.whole = True

    def add(self, data: bytes) -> None:
        """Append body bytes."""
        self.size += len(data)
        if self.whole:
            if self.size <= MAX_FIRST_BYTES and self._reserve(len(data)):
                self._first += data
                return
            self._output.count("bodies_not_kept")
            self.whole = False
        self._add_last(data)

    def gap(self, size: int) -> None:
        """Note that ``size`` bytes are missing here."""
        self.size += size
        self.whole = False
        self._add_last(_GAP)

    def _add_last(self, data: bytes) -> None:
        if not self._last and not self._reserve(MAX_LAST_BYTES):
            return
        self._last = (self._last + data)[-MAX_LAST_BYTES:]

    def _reserve(self, size: int) -> bool:
        kept = self._output.reserve(size)
        if kept:
            self._reserved += size
        return kept

    @property
    def first(self) -> bytes:
        """The body up to the first byte that was not kept; all of it when ``whole``."""
        return bytes(self._first)

    @property
    def last(self) -> bytes:
        """The last bytes of what follows ``first``; NUL where bytes are missing."""
        return self._last

    def drop(self) -> None:
        """Forget the bytes."""
        self._output.release(self._reserved)
        self._reserved = 0
        self._first = bytearray()
        self._last = b""
