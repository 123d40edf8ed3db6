r"""Newline-delimited JSON: body bytes in, each complete line out. Incremental and bounded.

Format: https://github.com/ndjson/ndjson-spec, as Ollama streams it (one JSON object per line, LF; CRLF is
taken too). Of a line that is longer than MAX_LINE_BYTES its beginning and its end are left; one with a gap is dropped.

Invariant: the lines depend only on the bytes, never on how they were cut into calls. Example:
``b'{"a":1}\n{"b'``, ``b'":2}\n'`` gives ``[b'{"a":1}']`` and then ``[b'{"b":2}']``.
"""

from __future__ import annotations

from typing import Final

from otelgpu.families.requests.sse import CUT_BYTES, CutEvent

MAX_LINE_BYTES: Final = 65536


class LineReader:
    """One stream. ``too_long`` counts the lines that were not kept whole for their size.

    ``cut``: those of them that were completed since the owner emptied it.
    """

    __slots__ = ("_beginning", "_buffer", "_skipping", "cut", "too_long")

    def __init__(self) -> None:
        self._buffer = b""
        self._skipping = False  # until the next line end
        self._beginning = b""  # of the line that is skipped; empty: bytes of it are missing
        self.cut: list[CutEvent] = []
        self.too_long = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that these bytes complete; blank ones give nothing."""
        buffer = self._buffer + data if self._buffer else data
        if b"\n" not in data:
            self._hold(buffer)
            return []
        *lines, rest = buffer.split(b"\n")
        if self._skipping:
            self._skipping = False
            self._cut(self._beginning, lines.pop(0))
            self._beginning = b""
        if len(buffer) > MAX_LINE_BYTES:
            lines = [line for line in lines if self._fits(line)]
        self._hold(rest)
        return [line for line in map(bytes.strip, lines) if line]

    def gap(self) -> bool:
        """Bytes are missing here: drop the unfinished line and go on after the next line end."""
        self._buffer = self._beginning = b""
        self._skipping = True
        return False

    @property
    def is_in_cut(self) -> bool:
        """Whether the end of a line that is too long is still to come."""
        return bool(self._beginning)

    def ended(self) -> list[bytes]:
        """Return the last line where no line end follows it."""
        return self.feed(b"\n")

    def _fits(self, line: bytes) -> bool:
        if len(line.removesuffix(b"\r")) <= MAX_LINE_BYTES:
            return True
        self.too_long += 1
        self._cut(line, line)
        return False

    def _cut(self, beginning: bytes, end: bytes) -> None:
        if beginning:
            self.cut.append(CutEvent(beginning[:CUT_BYTES], end[-CUT_BYTES:]))

    def _hold(self, rest: bytes) -> None:
        if self._skipping:
            rest = rest[-CUT_BYTES:]
        elif len(rest) > MAX_LINE_BYTES + 1:  # one for the CR of a line that just fits
            self._skipping = True
            self.too_long += 1
            self._beginning = rest[:CUT_BYTES]
            rest = rest[-CUT_BYTES:]
        self._buffer = rest
