r"""Newline-delimited JSON: body bytes in, each complete line out. Incremental and bounded.

Format: https://github.com/ndjson/ndjson-spec, as Ollama streams it (one JSON object per line, LF; CRLF is
taken too). Invariant: the lines depend only on the bytes, never on how they were cut into calls. Example:
``b'{"a":1}\n{"b'``, ``b'":2}\n'`` gives ``[b'{"a":1}']`` and then ``[b'{"b":2}']``.
"""

from __future__ import annotations

from typing import Final

from otelgpu.families.requests.sse import CutEvent

MAX_LINE_BYTES: Final = 65536


class LineReader:
    """One stream. ``too_long`` counts the lines that were ``dropped`` for their size."""

    __slots__ = ("_buffer", "_skipping", "cut", "too_long")
    is_in_cut = False  # a line with a gap is dropped

    def __init__(self) -> None:
        self._buffer = b""
        self._skipping = False  # until the next line end
        self.cut: list[CutEvent] = []  # none
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
            del lines[0]
        self._hold(rest)
        fitting = [line for line in lines if len(line.removesuffix(b"\r")) <= MAX_LINE_BYTES]
        self.too_long += len(lines) - len(fitting)
        return [line for line in map(bytes.strip, fitting) if line]

    def gap(self) -> bool:
        """Bytes are missing here: drop the unfinished line and go on after the next line end."""
        self._buffer = b""
        self._skipping = True
        return False

    @property
    def dropped(self) -> bool:
        """Whether nothing is known of a line."""
        return self.too_long > 0

    def ended(self) -> list[bytes]:
        """Return the last line where no line end follows it."""
        return self.feed(b"\n")

    def _hold(self, rest: bytes) -> None:
        if self._skipping:
            rest = b""
        elif len(rest) > MAX_LINE_BYTES + 1:  # one for the CR of a line that just fits
            self._skipping = True
            self.too_long += 1
            rest = b""
        self._buffer = rest
