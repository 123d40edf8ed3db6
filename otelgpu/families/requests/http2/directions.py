"""The two directions of an HTTP/2 connection: what their frame readers find updates the streams.

In: calls of the :class:`~otelgpu.families.requests.http2.frames.Http2FrameReader` of each direction. Out: calls on the
connection and on its streams. It must not decide what exchanges mean.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from otelgpu.families.requests.http2.frames import Http2FrameReader, InvalidHttp2
from otelgpu.families.requests.http2.hpack_reader import HpackError, HpackReader
from otelgpu.families.requests.http2.stream import Http2Head, read_head

if TYPE_CHECKING:
    from otelgpu.families.requests.http2.parser import Http2
    from otelgpu.families.requests.http2.stream import Stream


class _Direction:
    """One direction: its frames and its header table."""

    __slots__ = ("connection", "frames", "hpack")

    frames: Http2FrameReader

    def __init__(self, connection: Http2, *, late: bool) -> None:
        self.connection = connection
        self.hpack = HpackReader(late=late)

    def read(self, block: bytes | None) -> Http2Head | None:
        """Return the head that a header block holds; None when it cannot be read."""
        output, hpack = self.connection.output, self.hpack
        if block is None:
            hpack.lose()
            output.count("hpack_lost")
            return None
        try:
            fields = hpack.read(block)
        except HpackError:
            output.count("hpack_malformed")
            if self.frames.found:
                raise InvalidHttp2("header block") from None
            return None
        if hpack.unknown:
            output.count("hpack_unknown", hpack.unknown)
        if hpack.truncated:
            output.count("http2_headers_too_large")
        return read_head(fields)

    def _stream_of(self, stream: int, *, moves: bool) -> Stream | None:
        """The open stream of a DATA frame; an empty frame counts towards floods."""
        if moves:
            self.connection.data_frames += 1
        else:
            self.connection.control_frames += 1
        return self.connection.streams.get(stream)

    def promised(self, block: bytes | None) -> None:
        """Keep the dynamic table up to date; a pushed response belongs to no request."""
        self.connection.output.count("http2_pushes")
        self.read(block)


class Http2RequestDirection(_Direction):
    """The direction from the client; the sink of its reader."""

    __slots__ = ()

    def __init__(self, connection: Http2, *, late: bool) -> None:
        super().__init__(connection, late=late)
        self.frames = Http2FrameReader(self, connection.output, client=True, late=late)

    def data(self, stream: int, data: bytes, size: int, ended: bool) -> None:
        """Take bytes of a request's body."""
        connection = self.connection
        open_stream = self._stream_of(stream, moves=bool(data) or ended)
        if open_stream is None:
            return
        open_stream.exchange.request_bytes += size
        if data:
            open_stream.request_body(connection.call, data, connection.request_ns)
        connection.request_moved(open_stream, ended=ended)

    def data_gap(self, stream: int, missing: int, size: int, ended: bool) -> None:
        """Note a gap in a request's body."""
        open_stream = self.connection.streams.get(stream)
        if open_stream is None:
            return
        open_stream.exchange.request_bytes += size
        open_stream.request_gap(missing)
        self.connection.request_moved(open_stream, ended=ended)

    def headers(self, stream: int, block: bytes | None, size: int, ended: bool) -> None:
        """Open a stream, or take the trailers of one."""
        connection = self.connection
        head = self.read(block)
        open_stream = connection.streams.get(stream)
        if open_stream is None:
            if not stream & 1:
                raise InvalidHttp2("stream of a server")
            if stream <= connection.last_stream or not (head is None or head.pseudo):
                connection.control_frames += (
                    1  # of a stream that is over, or was open before observation began
                )
                return
            open_stream = connection.open_stream(stream, head)
        open_stream.exchange.request_bytes += size
        connection.request_moved(open_stream, ended=ended)

    def reset(self, stream: int, code: int | None) -> None:
        """Note that the client cancelled a stream."""
        self.connection.reset(stream, code, by_client=True)

    def going_away(self, last_stream: int, code: int) -> None:
        """Note why the client is about to close the connection; its requests go on."""
        self.connection.note_error(code)

    def lost(self) -> None:
        """Note that requests may have been missed, and the ends of those in progress."""
        self.hpack.lose()
        for open_stream in self.connection.streams.values():
            if not open_stream.exchange.request_done:
                open_stream.exchange.error = open_stream.exchange.error or "capture_gap"
                open_stream.request_gap(0)
                open_stream.request_ended()
        self.connection.finish_answered()


class Http2ResponseDirection(_Direction):
    """The direction to the client; the sink of its reader."""

    __slots__ = ()

    def __init__(self, connection: Http2, *, late: bool) -> None:
        super().__init__(connection, late=late)
        self.frames = Http2FrameReader(self, connection.output, client=False, late=late)

    def data(self, stream: int, data: bytes, size: int, ended: bool) -> None:
        """Take bytes of a response's body."""
        connection = self.connection
        open_stream = self._stream_of(stream, moves=bool(data) or ended)
        if open_stream is None:
            return
        exchange = open_stream.exchange
        exchange.response_bytes += size
        exchange.end_ns = connection.call.end_ns
        exchange.framing_lost = False
        open_stream.response_began_unseen()
        if data:
            open_stream.response_body(connection.call, data, connection.response_ns)
        if ended:
            connection.answered(stream, open_stream)

    def data_gap(self, stream: int, missing: int, size: int, ended: bool) -> None:
        """Note a gap in a response's body."""
        connection = self.connection
        open_stream = connection.streams.get(stream)
        if open_stream is None:
            return
        open_stream.exchange.response_bytes += size
        open_stream.exchange.end_ns = connection.call.end_ns
        open_stream.exchange.framing_lost = False
        open_stream.response_began_unseen()
        open_stream.response_gap(missing)
        if ended:
            connection.answered(stream, open_stream)

    def headers(self, stream: int, block: bytes | None, size: int, ended: bool) -> None:
        """Take the head of a response, an interim one's, or trailers."""
        connection = self.connection
        head = self.read(block)
        open_stream = connection.streams.get(stream)
        if open_stream is None:
            connection.control_frames += 1
            if stream > connection.last_stream and stream & 1:
                connection.output.count("unsolicited_responses")
            return
        exchange = open_stream.exchange
        exchange.response_bytes += size
        exchange.end_ns = connection.call.end_ns
        unseen, exchange.framing_lost = exchange.framing_lost, False
        if head is None:
            exchange.error = exchange.error or "capture_gap"
        elif not open_stream.is_response_head(head, ended=ended, unseen=unseen):
            open_stream.response_began_unseen()
            open_stream.response_trailers(head)
        elif not 100 <= head.status < 200:
            connection.response_began(open_stream, self.frames.began or connection.call)
            open_stream.response_head(head)
            if not head.last(b"content-length"):
                exchange.stream_ns = exchange.first_byte_ns
        if ended:
            connection.answered(stream, open_stream)

    def reset(self, stream: int, code: int | None) -> None:
        """Note that the server reset a stream."""
        self.connection.reset(stream, code, by_client=False)

    def going_away(self, last_stream: int, code: int) -> None:
        """Emit the requests that the server refuses to process."""
        connection = self.connection
        connection.note_error(code)
        for number in [n for n in connection.streams if n > last_stream]:
            connection.give_up(number, "REFUSED_STREAM")

    def lost(self) -> None:
        """Note that any response may have ended."""
        self.hpack.lose()
        for open_stream in self.connection.streams.values():
            if not open_stream.exchange.answered:
                open_stream.exchange.framing_lost = True
                open_stream.response_lost()
                self.connection.unassign(open_stream, self.connection.call.end_ns)
        self.connection.doubtful_streams = True
