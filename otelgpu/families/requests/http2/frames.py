r"""Splits the bytes of one direction of an HTTP/2 connection into frames (RFC 9113, section 4), with gaps in them.

In: bytes in stream order, cut anywhere, and the lengths of the gaps between them. Out: calls on a
:class:`Http2FrameSink`. It must not know about HPACK, exchanges or times.

DATA is passed on as it comes. Of other frames only what is used is assembled: a header block over its
CONTINUATION frames, an error code; the rest is skipped. A gap inside a frame costs that frame's payload; one
that hides a frame header loses the framing, until a call begins with what can only be frames, or some are found
in the middle of its bytes (``frame_search``). What was found so may be none: from then on each head must be a usual
one, and the first that is not ends it (:meth:`Http2FrameReader.look_again`).

Invariant: what the sink is given depends only on the bytes and the gaps, never on how they were cut into calls,
apart from how DATA is grouped, and from where framing is found again.

Example: ``\0\0\2 \0 \1 \0\0\0\1`` + ``"ab"`` gives data(1, b"ab", 11, ended=True).
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Protocol

from otelgpu.families.requests.http2.frame_heads import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEAD,
    HEAD_BYTES,
    HEADERS,
    LENGTHS,
    MAX_STREAM,
    ON_CONNECTION,
    ON_STREAM,
    PADDED,
    PREFACE,
    PRIORITY_BYTES,
    PRIORITY_FLAG,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    USUAL_FRAME_BYTES,
    plausible,
    starts_preface,
)
from otelgpu.families.requests.http2.frame_search import FrameSearch
from otelgpu.families.requests.parser_output import ParserOutput
from otelgpu.families.requests.protocol import Call

#: A header block, as it is on the wire. Servers refuse larger ones; common limits are 8 to 64 KiB.
MAX_BLOCK_BYTES = 65536
#: Frames of one header block: a CONTINUATION flood is cut off here.
MAX_BLOCK_FRAMES = 128
#: So often frames may turn out to be none, on one direction of a connection.
MAX_MISTAKES = 16

_ERROR_CODE = Struct(">I")
_GOAWAY = Struct(">II")


class InvalidHttp2(Exception):
    """The bytes are not HTTP/2. Never leaves this family."""


class Http2Flood(InvalidHttp2):
    """The bytes are HTTP/2 as only an attacker sends it. Never leaves this family."""


class Http2FrameSink(Protocol):
    """Receives the frames of one direction, and may raise InvalidHttp2.

    ``size``: bytes of the frame, its head and padding included.
    """

    def data(self, stream: int, data: bytes, size: int, ended: bool) -> None:
        """Take bytes of a stream's body; ``size`` may be more than they are, and ``data`` empty."""

    def data_gap(self, stream: int, missing: int, size: int, ended: bool) -> None:
        """``missing`` bytes of a stream's body were not captured (padding may be among them)."""

    def headers(self, stream: int, block: bytes | None, size: int, ended: bool) -> None:
        """Take a header block; None: it was not captured whole, or is too large."""

    def promised(self, block: bytes | None) -> None:
        """Take the header block of a PUSH_PROMISE, which the table needs."""

    def reset(self, stream: int, code: int | None) -> None:
        """RST_STREAM; None: its code was not captured."""

    def going_away(self, last_stream: int, code: int) -> None:
        """GOAWAY: streams above ``last_stream`` are not processed."""

    def lost(self) -> None:
        """Framing is unknown from here on."""


class Http2FrameReader:
    """One direction. ``began`` and ``offset``: the call and the stream offset of the present frame's first byte.

    ``first``: whether that is the call's first. For a header block over several frames these are its first frame's.
    """

    __slots__ = (
        "_block",
        "_block_end",
        "_block_frames",
        "_block_promised",
        "_block_size",
        "_block_stream",
        "_call",
        "_carry",
        "_carry_began",
        "_carry_first",
        "_client",
        "_collected",
        "_control",
        "_flags",
        "_frame_bytes",
        "_left",
        "_mistakes",
        "_output",
        "_pad",
        "_preface",
        "_reserved",
        "_search",
        "_sink",
        "_skipped",
        "_stream",
        "_type",
        "_unread_pad",
        "_want",
        "began",
        "first",
        "found",
        "lost",
        "offset",
    )

    def __init__(self, sink: Http2FrameSink, output: ParserOutput, *, client: bool, late: bool) -> None:
        self._sink = sink
        self._output = output
        self._client = client  # whether these are the client's bytes
        self.lost = late  # whether it is not known where frames begin
        self.found = False  # whether it is known only from what the bytes look like
        self._mistakes = 0
        self._search = FrameSearch(from_client=client)
        self._skipped = "late_bytes_skipped" if late else "resync_bytes_skipped"
        self._preface = client
        self._control = 0
        self._call: Call | None = None
        self.began: Call | None = None
        self.first = False
        self.offset = 0
        self._carry = b""  # of a frame's head, or of the preface
        self._carry_began: Call | None = None
        self._carry_first = False
        # The frame under way, with bytes of its payload still to come:
        self._type = self._flags = self._stream = 0
        self._left = 0
        self._frame_bytes = 0
        self._pad = 0  # DATA: padding at the end of what is left
        self._unread_pad = False  # DATA: the pad length comes first
        self._collected = b""
        self._want = 0  # bytes of the payload that are assembled; -1: what is wanted has a gap
        self._reserved = 0  # of the output's budget, by what is collected here and in the block
        # The header block under way; CONTINUATION must follow:
        self._block: list[bytes] | None = None
        self._block_stream = 0  # 0: none
        self._block_frames = 0
        self._block_size = 0
        self._block_end = False
        self._block_promised = False

    def take_control_frames(self) -> int:
        """Return how many frames that bear nothing came since the last time."""
        control, self._control = self._control, 0
        return control

    def stop(self) -> None:
        """Give back what is held. Nothing follows."""
        self._forget()

    def _forget(self) -> None:
        self._output.release(self._reserved)
        self._reserved = 0
        self._carry = self._collected = b""
        self._left = 0
        self._block = None
        self._block_stream = 0

    def feed(self, call: Call, data: bytes, offset: int) -> None:
        """Read the next bytes. Raises InvalidHttp2 when they are not HTTP/2."""
        fresh = call is not self._call
        self._call = call
        if self.lost:
            position = self._find(call, data, fresh=fresh)
            self._output.count(self._skipped, position)
            if self.lost:
                return
            data, offset, fresh = data[position:], offset + position, fresh and not position
            self._skipped = "resync_bytes_skipped"
        began = call
        if self._carry:
            data = self._carry + data
            offset -= len(self._carry)
            self._carry = b""
            began, fresh = self._carry_began or call, self._carry_first
        position, end = 0, len(data)
        if self._preface:
            position = self._read_preface(data)
        elif self._left:
            position = self._payload(data, 0, end)
        sink_data, unpack = self._sink.data, HEAD.unpack_from
        while end - position >= HEAD_BYTES:
            high, low, kind, flags, stream = unpack(data, position)
            length = high << 8 | low
            start = position + HEAD_BYTES
            stop = start + length
            if self.found and not plausible(
                length, kind, flags, stream, from_client=self._client, block=self._block_stream
            ):
                raise InvalidHttp2("no frame")
            if kind == DATA and stop <= end and not flags & PADDED and not self._block_stream and stream:
                sink_data(stream & MAX_STREAM, data[start:stop], stop - position, bool(flags & END_STREAM))
                position = stop
                began = call
                continue
            if not self._block_stream:
                self.began = began
                self.first = fresh and not position
                self.offset = offset + position
            began = call
            self._begin(kind, flags, stream & MAX_STREAM, length)
            position = self._payload(data, start, end)
        if position < end:
            self._carry = data[position:]
            self._carry_began = began
            self._carry_first = fresh and not position

    def _find(self, call: Call, data: bytes, *, fresh: bool) -> int:
        """Look for frames; return how many bytes come before them: all, while they are not found."""
        if fresh and self._client and starts_preface(data):
            position: int | None = 0
        else:
            position = self._search.feed(data, call.end_ns, fresh=fresh)
        if position is None:
            return len(data)
        self.lost = False
        self.found = True
        self._preface = self._client and data.startswith(PREFACE[:HEAD_BYTES], position)
        self._search.forget()
        return position

    def look_again(self) -> bool:
        """Whether what was read were no frames, but were taken for some: they are looked for again, some times."""
        if not self.found or self._mistakes >= MAX_MISTAKES:
            return False
        self._mistakes += 1
        self._lose()
        return True

    def gap(self, call: Call, size: int) -> None:
        """Skip ``size`` bytes that were not captured. Raises InvalidHttp2 as :meth:`feed` does."""
        self._call = call
        if self.lost:
            self._search.forget()
        if self.lost or not size:
            return
        if size <= self._left and not self._carry:
            self._payload_gap(size)
            return
        if self._left:
            self._payload_gap(self._left)
        if self._block_stream:  # END_STREAM is reported, whatever else is missing
            self._end_block(None)
        self._lose()

    def _lose(self) -> None:
        self._forget()
        self.lost = True
        self._sink.lost()

    def _read_preface(self, data: bytes) -> int:
        if data.startswith(PREFACE):
            self._preface = False
            return len(PREFACE)
        if not PREFACE.startswith(data):
            raise InvalidHttp2("preface")
        self._carry = data
        self._carry_began = self._call
        self._carry_first = False  # a frame comes after it
        return len(data)

    def _begin(self, kind: int, flags: int, stream: int, length: int) -> None:
        """Start a frame whose head was read."""
        if self._block_stream and (kind != CONTINUATION or stream != self._block_stream):
            raise InvalidHttp2("header block interrupted")
        if (
            (kind in ON_STREAM and not stream)
            or (kind in ON_CONNECTION and stream)
            or LENGTHS.get(kind, length) != length
            or (kind == SETTINGS and length % 6)
            or (kind == GOAWAY and length < _GOAWAY.size)
            or (kind == PUSH_PROMISE and self._client)
            or (kind == CONTINUATION and not self._block_stream)
            or (kind > CONTINUATION and length > USUAL_FRAME_BYTES)  # of an extension; or not a frame at all
        ):
            raise InvalidHttp2(f"frame of type {kind}")
        self._type, self._flags, self._stream = kind, flags, stream
        self._left = length
        self._frame_bytes = HEAD_BYTES + length
        if kind == DATA:
            self._unread_pad = bool(flags & PADDED)
            self._pad = 0
            if self._unread_pad and not length:
                raise InvalidHttp2("padding")
        elif kind in (HEADERS, PUSH_PROMISE, CONTINUATION):
            self._want = length
            if length > MAX_BLOCK_BYTES:
                self._want = -1
                self._output.count("http2_headers_too_large")
        else:
            self._want = min(length, _WANTED.get(kind, 0))
            if not self._want:
                self._control += 1
        if not length:
            self._end_frame()

    def _payload(self, data: bytes, position: int, end: int) -> int:
        """Read what is here of the frame under way; return the position after it."""
        if not self._left or position == end:
            return position
        if self._type == DATA:
            return self._data(data, position, end)
        stop = min(end, position + self._left)
        missing = self._want - len(self._collected)
        if missing > 0:
            part = data[position : min(stop, position + missing)]
            if stop - position < self._left and not self._reserve(len(part)):
                self._want = -1
            else:
                self._collected += part
        self._left -= stop - position
        if not self._left:
            self._end_frame()
        return stop

    def _data(self, data: bytes, position: int, end: int) -> int:
        if self._unread_pad:
            self._unread_pad = False
            self._pad = data[position]
            position += 1
            self._left -= 1
            if self._pad > self._left:
                raise InvalidHttp2("padding")
        stop = min(end, position + self._left)
        body = data[position : min(stop, position + max(self._left - self._pad, 0))]
        self._left -= stop - position
        size, self._frame_bytes = self._frame_bytes - self._left, self._left
        self._sink.data(self._stream, body, size, not self._left and bool(self._flags & END_STREAM))
        return stop

    def _payload_gap(self, size: int) -> None:
        self._left -= size
        if self._type != DATA:
            if len(self._collected) < self._want:
                self._want = -1
            if not self._left:
                self._end_frame()
            return
        self._unread_pad = False  # where the padding begins is unknown then: it is taken for body
        missing = max(self._left + size - self._pad, 0) - max(self._left - self._pad, 0)
        seen, self._frame_bytes = self._frame_bytes - self._left, self._left
        self._sink.data_gap(self._stream, missing, seen, not self._left and bool(self._flags & END_STREAM))

    def _end_frame(self) -> None:
        payload = self._collected if self._want >= 0 else None
        self._collected = b""
        if not self._block_stream:
            self._output.release(self._reserved)
            self._reserved = 0
        read = _READERS.get(self._type)
        if read is not None:
            read(self, payload)

    def _headers(self, payload: bytes | None) -> None:
        self._start_block(payload, PRIORITY_BYTES if self._flags & PRIORITY_FLAG else 0, promised=False)

    def _push_promise(self, payload: bytes | None) -> None:
        self._start_block(payload, 4, promised=True)

    def _start_block(self, payload: bytes | None, skipped: int, *, promised: bool) -> None:
        if payload is not None:
            pad = 0
            if self._flags & PADDED:
                pad = payload[0] if payload else 0
                skipped += 1
            if len(payload) < skipped + pad:
                raise InvalidHttp2("padding")
            payload = payload[skipped : len(payload) - pad]
        self._block_stream = self._stream
        self._block = []
        self._block_frames = 0
        self._block_size = 0
        self._block_end = bool(self._flags & END_STREAM)
        self._block_promised = promised
        self._continuation(payload)

    def _continuation(self, payload: bytes | None) -> None:
        self._block_size += self._frame_bytes
        self._block_frames += 1
        if self._block_frames > MAX_BLOCK_FRAMES:
            raise InvalidHttp2("header block in too many frames")
        complete = bool(self._flags & END_HEADERS)
        if payload is None or self._block_size > MAX_BLOCK_BYTES:
            if payload is not None and self._block is not None:
                self._output.count("http2_headers_too_large")
            self._block = None
        if self._block is not None and payload is not None:
            if complete or self._reserve(len(payload)):
                self._block.append(payload)
            else:
                self._block = None
        if complete:
            self._end_block(None if self._block is None else b"".join(self._block))

    def _end_block(self, block: bytes | None) -> None:
        stream, self._block_stream = self._block_stream, 0
        self._block = None
        self._output.release(self._reserved)
        self._reserved = 0
        if self._block_promised:
            self._sink.promised(block)
        else:
            self._sink.headers(stream, block, self._block_size, self._block_end)

    def _rst_stream(self, payload: bytes | None) -> None:
        self._sink.reset(self._stream, None if payload is None else _ERROR_CODE.unpack(payload)[0])

    def _goaway(self, payload: bytes | None) -> None:
        if payload is not None:
            last_stream, code = _GOAWAY.unpack(payload)
            self._sink.going_away(last_stream & MAX_STREAM, code)

    def _reserve(self, size: int) -> bool:
        """Reserve what is held from one call to the next, or from one frame of a block to the next."""
        kept = self._output.reserve(size)
        if kept:
            self._reserved += size
        else:
            self._output.count("http2_headers_too_large")
        return kept


_WANTED = {RST_STREAM: _ERROR_CODE.size, GOAWAY: _GOAWAY.size}  # first bytes of the payload
_READERS: dict[int, Callable[[Http2FrameReader, bytes | None], None]] = {
    HEADERS: Http2FrameReader._headers,
    RST_STREAM: Http2FrameReader._rst_stream,
    PUSH_PROMISE: Http2FrameReader._push_promise,
    GOAWAY: Http2FrameReader._goaway,
    CONTINUATION: Http2FrameReader._continuation,
}
