r"""Server-sent events: body bytes in, the ``data`` of each complete event out. Incremental and bounded.

Format: https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream. Lines end
in CRLF, LF or CR; a CR that is the last byte so far waits for the next one.

Invariant: the events depend only on the bytes, never on how they were cut into calls. Example:
``b"data: a\r"``, ``b"\ndata: b\r\n\r\n"`` gives ``[]`` and then ``[b"a\nb"]``.

Of an event that is longer than MAX_EVENT_BYTES its beginning and its end are left (:class:`CutEvent`). A gap leaves
them too, if it is in one event: that began where a piece of the body began (a chunk, a call, a frame), ends where one
ends, and no piece of the stream so far held two.
"""

from __future__ import annotations

from typing import NamedTuple

MAX_EVENT_BYTES = 65536
CUT_BYTES = 4096  # kept of the beginning of a longer one, and of its end


class CutEvent(NamedTuple):
    """An event in which bytes are missing, or were not kept."""

    beginning: bytes  # of its data; empty where it is not known that it is one event
    end: bytes


class EventReader:
    """One event stream. ``too_long`` counts the events that were not kept whole for their size.

    ``cut``: events with a gap, and long ones, that were completed since the owner emptied it.
    """

    __slots__ = (
        "_alone",
        "_beginning",
        "_between",
        "_buffer",
        "_carriage_return",
        "_first",
        "_gapped",
        "_several",
        "_skipping",
        "cut",
        "too_long",
    )

    def __init__(self) -> None:
        self._buffer = b""  # what belongs to the unfinished event, line ends as LF
        self._carriage_return = False
        self._first = True
        self._between = False  # whether nothing is held over: no byte, no carriage return, nothing to skip
        self._skipping = False  # until the next blank line
        self._alone = False  # whether the unfinished event began with a piece
        self._several = False  # whether a piece held several
        self._beginning = b""  # of the event that is skipped; empty: it may be several
        self._gapped = False  # whether a gap was in it
        self.cut: list[CutEvent] = []
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
        self._alone = position == 0 and (self._alone or not held)
        self._several = self._several or len(events) > 1
        if len(rest) > MAX_EVENT_BYTES + 1:  # one for the first half of its blank line
            if not self._skipping:
                self._skipping = True
                self._begin_cut(rest)
            rest = rest[-CUT_BYTES:]
        self._buffer = rest
        self._between = not (rest or self._first or self._skipping or self._carriage_return)
        return events

    def gap(self) -> bool:
        """Bytes are missing here: drop the unfinished event and go on after the next blank line.

        Returns whether they are missing in an event that will be one of ``cut``.
        """
        if not self._skipping:
            self._beginning = self._buffer
        if not self._gapped and (self._several or not self._alone):
            self._beginning = b""
        self._gapped = True
        self._buffer = b""
        self._carriage_return = False
        self._skipping = True
        self._between = False
        return bool(self._beginning)

    @property
    def is_in_cut(self) -> bool:
        """Whether the end of a cut event is still to come."""
        return bool(self._beginning)

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
            self._end_cut(buffer, start, stop)
            return
        if stop - start > MAX_EVENT_BYTES:
            self._begin_cut(buffer[start : start + CUT_BYTES])
            self._end_cut(buffer, stop - CUT_BYTES, stop)
            return
        text = buffer[start:stop]
        if self._first:
            self._first = False
            text = text.removeprefix(b"\xef\xbb\xbf")
        if text.startswith(b"data: ") and b"\n" not in text:
            events.append(text[6:])
            return
        if (data := _data(text)) is not None:
            events.append(data)

    def _begin_cut(self, event: bytes) -> None:
        """Keep the beginning of an event that is too long."""
        self.too_long += 1
        self._beginning = event[:CUT_BYTES]

    def _end_cut(self, buffer: bytes, start: int, stop: int) -> None:
        if self._beginning:
            is_one = not self._gapped or stop + 2 == len(buffer)
            data = _data(self._beginning.removeprefix(b"\xef\xbb\xbf")) if is_one else None
            self.cut.append(CutEvent(data or b"", buffer[start:stop]))
            self._beginning = b""
            self._first = False
        self._gapped = False


def _data(text: bytes) -> bytes | None:
    """Return the data of an event, None where it has none."""
    lines = [
        line[5:].removeprefix(b" ")
        for line in text.split(b"\n")
        if line == b"data" or line.startswith(b"data:")
    ]
    return b"\n".join(lines) if lines else None
