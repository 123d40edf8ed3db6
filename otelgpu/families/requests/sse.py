r"""Server-sent events: body bytes in, the ``data`` of each complete event out. Incremental and bounded.

Format: https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream. Lines end
in CRLF, LF or CR; a CR that is the last byte so far waits for the next one.

Invariant: the events depend only on the bytes, never on how they were cut into calls. Example:
``b"data: a\r"``, ``b"\ndata: b\r\n\r\n"`` gives ``[]`` and then ``[b"a\nb"]``.
"""

from __future__ import annotations

MAX_EVENT_BYTES = 65536


class EventReader:
    """One event stream. ``too_long`` counts the events that were dropped for their size."""

    __slots__ = ("_between", "_buffer", "_carriage_return", "_first", "_skipping", "too_long")

    def __init__(self) -> None:
        self._buffer = b""  # what belongs to the unfinished event, line ends as LF
        self._carriage_return = False
        self._first = True
        self._between = False  # whether nothing is held over: no byte, no carriage return, nothing to skip
        self._skipping = False  # until the next blank line
        self.too_long = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Return the data of each event that these bytes complete; events without data give nothing."""
        if (  # one whole event of one line, which is what an LLM server writes
            self._between
            and data.startswith(b"data: ")
            and data.endswith(b"\n\n")
            and data.find(b"\n") == len(data) - 2 <= MAX_EVENT_BYTES
            and b"\r" not in data
        ):
            return [data[6:-2]]
        if self._carriage_return or b"\r" in data:
            data = self._with_line_feeds(data)
        held = self._buffer
        buffer = held + data if held else data
        events: list[bytes] = []
        position = 0
        search = max(0, len(held) - 1)
        while (stop := buffer.find(b"\n\n", search)) >= 0:
            self._event(buffer, position, stop, events)
            position = search = stop + 2
        rest = buffer[position:]
        if len(rest) > MAX_EVENT_BYTES + 1:  # one for the first half of its blank line
            if not self._skipping:
                self._skipping = True
                self.too_long += 1
            rest = rest[-1:]  # half of a blank line, perhaps
        self._buffer = rest
        self._between = not (rest or self._first or self._skipping or self._carriage_return)
        return events

    def gap(self) -> None:
        """Bytes are missing here: drop the unfinished event and go on after the next blank line."""
        self._buffer = b""
        self._carriage_return = False
        self._skipping = True
        self._between = False

    def _with_line_feeds(self, data: bytes) -> bytes:
        if self._carriage_return:
            data = b"\r" + data
        self._carriage_return = data.endswith(b"\r")
        if self._carriage_return:
            data = data[:-1]
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _event(self, buffer: bytes, start: int, stop: int, events: list[bytes]) -> None:
        if self._skipping:
            self._skipping = False
            return
        if stop - start > MAX_EVENT_BYTES:
            self.too_long += 1
            return
        text = buffer[start:stop]
        if self._first:
            self._first = False
            text = text.removeprefix(b"\xef\xbb\xbf")
        if text.startswith(b"data: ") and b"\n" not in text:
            events.append(text[6:])
            return
        lines = [
            line[5:].removeprefix(b" ")
            for line in text.split(b"\n")
            if line == b"data" or line.startswith(b"data:")
        ]
        if lines:
            events.append(b"\n".join(lines))
