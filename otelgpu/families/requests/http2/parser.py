"""HTTP/2 (RFC 9113) on one connection: frames become assignments and exchanges, at clients and servers.

In: the bytes of both directions with their gaps. Out: assignments (at servers), opened, named and finished exchanges,
appended to the output. It must not raise on any bytes, read a clock or know system calls.

Streams are independent: each exchange is assigned to the thread that read the end of its request's header block, from
then until the response ended, the stream was reset, or its end can no longer be seen; a thread can have many.

Example, at a server whose thread 7 reads two requests at 100 and whose thread 8 writes at 160 and 190::

    read  [50,100]  HEADERS(1, END_STREAM) HEADERS(3, END_STREAM)   thread 7 begins a and b at 100
    write [150,160] HEADERS(3) DATA(3, END_STREAM)                  thread 7 ends b at 160, exchange b
    write [180,190] HEADERS(1, END_STREAM)                          thread 7 ends a at 190, exchange a

Gaps: in DATA they only count. In a header block they lose the dynamic table, so that later fields may be empty
(``hpack_unknown``). In a frame header they lose the framing, until it is found again: END_STREAM may have been missed,
so what is open is no longer assigned to any thread. A connection found open begins like that: what method and path a
request has may not be known for the connection's life, and LLM requests are recognised by their bodies.

Floods: what is held is bounded by streams, header blocks and tables; a connection that carries little but resets
or control frames is given up (``http2_floods``).
"""

from __future__ import annotations

from typing import Final

from otelgpu.families.requests.http2.directions import Http2RequestDirection, Http2ResponseDirection
from otelgpu.families.requests.http2.frame_heads import HEAD_BYTES, PREFACE, SETTINGS, starts_frames
from otelgpu.families.requests.http2.frame_search import sender_of
from otelgpu.families.requests.http2.frames import Http2Flood, InvalidHttp2
from otelgpu.families.requests.http2.stream import Http2Head, Stream
from otelgpu.families.requests.open_exchange import OpenExchange
from otelgpu.families.requests.parser_output import ExchangeRoom, ParserOutput
from otelgpu.families.requests.protocol import Call, ConnectionFacts, Parser, ProtocolSpec, Recognition
from otelgpu.model.exchange import Role, StartSource, ThreadAssignment

#: More open streams than any server allows (usual: 100 to 250); the oldest is emitted then.
MAX_OPEN: Final = 1024
#: Streams that the client resets unanswered, in a burst and from then on: the limit that nghttp2 sets servers
#: (nghttp2_option_set_stream_reset_rate_limit).
_RESETS: Final = 1000
_RESETS_PER_NS: Final = 33e-9
#: Control frames: a burst that no client needs (Go's server ends a connection at 10 000 queued ones).
_CONTROL_FRAMES: Final = 10_000
_CONTROL_FRAMES_PER_NS: Final = 1000e-9
_CONTROL_FRAMES_PER_DATA: Final = 4  # a WINDOW_UPDATE of stream and connection, and a PING, for a DATA frame
#: A stream that was open when framing was lost and has been silent for so long had ended meanwhile.
_SILENT_NS: Final = 30_000_000_000

_ERRORS: Final = (  # RFC 9113, section 7
    "NO_ERROR",
    "PROTOCOL_ERROR",
    "INTERNAL_ERROR",
    "FLOW_CONTROL_ERROR",
    "SETTINGS_TIMEOUT",
    "STREAM_CLOSED",
    "FRAME_SIZE_ERROR",
    "REFUSED_STREAM",
    "CANCEL",
    "COMPRESSION_ERROR",
    "CONNECT_ERROR",
    "ENHANCE_YOUR_CALM",
    "INADEQUATE_SECURITY",
    "HTTP_1_1_REQUIRED",
)


def _error_name(code: int | None) -> str:
    """Return the name of an error code; one that was not captured is a reset like any other."""
    if code is None:
        return "RST_STREAM"
    return _ERRORS[code] if code < len(_ERRORS) else f"0x{code:x}"


class _Bucket:
    """A leaky bucket: it fills by what is added and drains at a rate."""

    __slots__ = ("_drain", "_level", "_limit", "_time_ns")

    def __init__(self, limit: int, drain_per_ns: float) -> None:
        self._limit = limit
        self._drain = drain_per_ns
        self._level = 0.0
        self._time_ns = 0

    def add(self, amount: int, time_ns: int) -> bool:
        """Add to it, or take from it; return whether it overflows."""
        drained = max(time_ns - self._time_ns, 0) * self._drain
        self._time_ns = time_ns
        self._level = max(max(self._level - drained, 0.0) + amount, 0.0)
        return self._level > self._limit


class Http2:
    """State of one connection: a :class:`~otelgpu.families.requests.protocol.Parser`."""

    __slots__ = (
        "_close_error",
        "_control",
        "_facts",
        "_is_crowded",
        "_next_ordinal",
        "_requests",
        "_resets",
        "_responses",
        "_room",
        "_server",
        "_taken_over",
        "call",
        "control_frames",
        "data_frames",
        "doubtful_streams",
        "ignored",
        "last_stream",
        "output",
        "streams",
        "successor",
    )

    def __init__(self, facts: ConnectionFacts, output: ParserOutput, *, follows: bool = False) -> None:
        """``follows``: the connection changed to HTTP/2, so that the first byte of it is known."""
        late = facts.late and not follows
        self.output = output
        self.successor: Parser | None = None
        self.ignored = False
        self.streams: dict[int, Stream] = {}  # open ones, the oldest first
        self.last_stream = 0  # the highest that the client opened
        self.call: Call = _NO_CALL
        self.control_frames = 0  # in the present call
        self.data_frames = 0
        self.doubtful_streams = False  # whether some open ones may have ended unseen
        self._room = ExchangeRoom(output)
        self._is_crowded = False  # there was no room for one more
        self._facts = facts
        self._server = facts.role is not Role.CLIENT
        self._next_ordinal = 0
        self._close_error = ""  # of a GOAWAY
        self._taken_over: Stream | None = None  # to be taken up with the first bytes
        self._resets = _Bucket(_RESETS, _RESETS_PER_NS)
        self._control = _Bucket(_CONTROL_FRAMES, _CONTROL_FRAMES_PER_NS)
        self._requests = Http2RequestDirection(self, late=late)
        self._responses = Http2ResponseDirection(self, late=late)

    # What the connection calls: protocol.Parser

    @property
    def busy(self) -> bool:
        """Whether a stream is open."""
        return bool(self.streams)

    def feed(self, call: Call, data: bytes, offset: int, *, from_client: bool) -> None:
        """Take the next bytes of a direction. Never raises on what is in them."""
        if self.ignored:
            return
        self.call = call
        if self._taken_over is not None:
            self._take_up(self._taken_over, call.end_ns)
            self._taken_over = None
        frames = (self._requests if from_client else self._responses).frames
        try:
            frames.feed(call, data, offset)
        except InvalidHttp2 as error:
            if isinstance(error, Http2Flood) or not frames.look_again():
                self._give_up(error)
                return
            self.output.count("http2_framing_mistaken")
        control = self.control_frames + frames.take_control_frames()
        if control:
            self.control_frames = 0
            amount = control - _CONTROL_FRAMES_PER_DATA * self.data_frames
            self.data_frames = 0
            if self._control.add(amount, call.end_ns):
                self._give_up(Http2Flood("control frames"))

    def gap(self, call: Call, size: int, offset: int, *, from_client: bool) -> None:
        """Note a gap."""
        if self.ignored:
            return
        self.call = call
        for stream in self.streams.values():
            stream.exchange.task_known = False
        frames = (self._requests if from_client else self._responses).frames
        try:
            frames.gap(call, size)
        except InvalidHttp2 as error:
            if not frames.look_again():
                self._give_up(error)
                return
            self.output.count("http2_framing_mistaken")

    def end(self, call: Call, *, from_client: bool) -> None:
        """A server can still answer after the client's end of file; after the server's, nothing follows."""
        if self.ignored:
            return
        self.call = call
        if not from_client:
            self.abort(call.end_ns, "connection_closed")
            return
        for stream in self.streams.values():
            stream.request_ended()
        self.finish_answered()

    def close(self, time_ns: int) -> None:
        """Emit what is open."""
        self.abort(time_ns, "connection_closed")

    def abort(self, time_ns: int, error: str) -> None:
        """Emit what is open, with that error unless it was answered, or the peer gave a better reason."""
        if self._close_error and error == "connection_closed":
            error = self._close_error
        for number, stream in list(self.streams.items()):
            self._finish(number, stream, time_ns, "capture_gap" if stream.exchange.framing_lost else error)
        self.ignored = True
        self._requests.frames.stop()
        self._responses.frames.stop()

    # What the directions call

    @property
    def request_ns(self) -> int:
        """When the present call moved bytes of a request: a server's read returned, a client's write began."""
        return self.call.end_ns if self._server else self.call.begin_ns

    @property
    def response_ns(self) -> int:
        """When the present call moved bytes of a response: a server's write began, a client's read returned."""
        return self.call.begin_ns if self._server else self.call.end_ns

    def open_stream(self, number: int, head: Http2Head | None) -> Stream:
        """Open an exchange: the header block of its request is complete."""
        if self.streams and (len(self.streams) >= MAX_OPEN or self._is_crowded):
            self.output.count("responses_not_seen")
            oldest = next(iter(self.streams))
            self._finish(oldest, self.streams[oldest], self.call.end_ns, "response_not_seen")
        if self.doubtful_streams:
            self._finish_silent()
        self.last_stream = number
        frames = self._requests.frames
        began = frames.began or self.call
        start_ns, source = _start(began, server=self._server, first=frames.first)
        exchange = OpenExchange.begin(
            key=self.output.new_key(),
            ordinal=self._next_ordinal,
            call=self.call,
            start_ns=start_ns,
            start_source=source,
        )
        self._next_ordinal += 1
        exchange.wire_id = self._facts.wire_id(frames.offset)
        if not self._server:
            exchange.asked_by(began)
        if self._responses.frames.lost:  # its response may pass unseen
            exchange.framing_lost = self.doubtful_streams = True
        stream = Stream(exchange, self.output, self._facts.identity)
        self.streams[number] = stream
        self._is_crowded = not self._room.fit(len(self.streams))
        if head is None:
            exchange.error = "capture_gap"
            return stream
        stream.request_head(head)
        if self._server and self.call.task:
            exchange.begun_ns, exchange.reader = self.call.end_ns, self.call.task
            self.output.tasks.append(exchange.service(self._facts.identity, is_over=False, is_framed=True))
        self.output.opened.append(exchange.opened(self._facts))
        self._take_up(stream, self.call.end_ns)
        return stream

    def take_over(self, exchange: OpenExchange) -> None:
        """Continue a request of HTTP/1.1 as stream 1 (RFC 7540, section 3.2)."""
        exchange.status_code = exchange.first_byte_ns = exchange.end_ns = 0
        exchange.protocol_version = "2"
        stream = self._taken_over = self.streams[1] = Stream(exchange, self.output, self._facts.identity)
        self.last_stream = 1
        self._next_ordinal = exchange.ordinal + 1
        stream.request_ended()

    def request_moved(self, stream: Stream, *, ended: bool) -> None:
        """Note that the present call moved bytes of a request."""
        stream.exchange.request_end_ns = self.call.end_ns
        if ended:
            stream.request_ended()
            if stream.exchange.answered:
                self.finish_answered()

    def response_began(self, stream: Stream, began: Call) -> None:
        """Note the first bytes of a response; interim ones are none."""
        exchange = stream.exchange
        exchange.first_byte_ns = began.begin_ns if self._server else began.end_ns
        if self._server:
            exchange.published = self.call.published
            exchange.written_by(self.call.task, self.call.end_ns, first=began.task)

    def answered(self, number: int, stream: Stream) -> None:
        """Note that a response is complete with the present call."""
        stream.response_ended(self.call)
        stream.exchange.written_by(self.call.task, self.call.end_ns)
        self.unassign(stream, self.call.end_ns)
        if stream.exchange.request_done:
            self._finish(number, stream, self.call.end_ns, "")

    def finish_answered(self) -> None:
        """Emit what was answered before its request ended."""
        for number, stream in list(self.streams.items()):
            if stream.exchange.answered and stream.exchange.request_done:
                self._finish(number, stream, self.call.end_ns, "")

    def reset(self, number: int, code: int | None, *, by_client: bool) -> None:
        """Note that a stream was reset. After the answer that is no error (RFC 9113, section 8.1)."""
        stream = self.streams.get(number)
        if stream is None:
            self.control_frames += 1
            return
        unanswered = not stream.response_head_seen
        self.give_up(number, _error_name(code))
        if by_client and unanswered and self._resets.add(1, self.call.end_ns):
            raise Http2Flood("resets")

    def give_up(self, number: int, error: str) -> None:
        """Emit a stream that ends early, if it was not answered."""
        stream = self.streams[number]
        if not stream.exchange.answered:
            stream.reset(error, self.call.end_ns)
            stream.exchange.end_ns = self.call.end_ns
        self._finish(number, stream, self.call.end_ns, "")

    def note_error(self, code: int) -> None:
        """Keep the reason of a GOAWAY."""
        if code:
            self._close_error = _error_name(code)

    def unassign(self, stream: Stream, time_ns: int, *, cut: bool = False) -> None:
        """End its assignment to a thread, if it has one. ``cut``: it has not been answered."""
        if stream.thread is not None:
            self._report_assignment(stream, stream.thread, time_ns, begins=False, cut=cut)
            stream.thread = None

    # Exchanges

    def _take_up(self, stream: Stream, time_ns: int) -> None:
        if self._server:
            stream.thread = (stream.exchange.tgid, stream.exchange.tid)
            self._report_assignment(stream, stream.thread, time_ns, begins=True)

    def _report_assignment(
        self, stream: Stream, thread: tuple[int, int], time_ns: int, *, begins: bool, cut: bool = False
    ) -> None:
        tgid, tid = thread
        self.output.assignments.append(
            ThreadAssignment(
                time_ns=time_ns,
                tgid=tgid,
                tid=tid,
                exchange=stream.exchange.key,
                begins=begins,
                loop=self._facts.nonblocking,
                cut=cut,
            )
        )

    def _finish(self, number: int, stream: Stream, time_ns: int, error: str) -> None:
        """Emit an exchange. An unanswered one ends with what was seen of its response, or at ``time_ns``."""
        del self.streams[number]
        self._is_crowded = not self._room.fit(len(self.streams))
        exchange = stream.exchange
        self.unassign(stream, time_ns, cut=not exchange.answered)
        if not exchange.answered:
            exchange.end_ns = exchange.end_ns or time_ns
            exchange.error = exchange.error or error
        if self._server and exchange.has_task:
            self.output.tasks.append(exchange.service(self._facts.identity, is_over=True, is_framed=True))
            if served := exchange.stream_service(self._facts.identity, number):
                self.output.tasks.append(served)
        stream.finish(self._facts.role)
        if exchange.head_seen or exchange.status_code:
            if exchange.error == "capture_gap":
                self.output.count("capture_gaps")
            self.output.exchanges.append(exchange.finish(self._facts))
        else:
            self.output.count("requests_incomplete")
        if exchange.generation is not None:
            exchange.generation.drop()

    def _finish_silent(self) -> None:
        """Emit what was open when framing was lost and has been silent since."""
        now_ns = self.call.end_ns
        self.doubtful_streams = False
        for number, stream in list(self.streams.items()):
            exchange = stream.exchange
            if not exchange.framing_lost:
                continue
            if now_ns - max(exchange.end_ns, exchange.request_end_ns) > _SILENT_NS:
                self._finish(number, stream, now_ns, "capture_gap")
            else:
                self.doubtful_streams = True

    def _give_up(self, error: InvalidHttp2) -> None:
        flood = isinstance(error, Http2Flood)
        self.output.count("http2_floods" if flood else "http2_invalid")
        self.abort(self.call.end_ns, "http2_flood" if flood else "invalid_http")


_NO_CALL = Call(0, 0, 0, 0, 0, 0, None)


def _start(call: Call, *, server: bool, first: bool) -> tuple[int, StartSource]:
    """When a request began. ``first``: with its call's first byte, which is the one that an arrival is known of."""
    if not server:
        return call.begin_ns, StartSource.WRITE
    if first and 0 < call.arrival_ns <= call.end_ns:
        return call.arrival_ns, StartSource.ARRIVAL
    return call.end_ns, StartSource.READ


def recognise(data: bytes, from_client: bool, late: bool) -> Recognition:
    """A client begins with the preface, a server with SETTINGS (RFC 9113, section 3.4); late, any frames do."""
    if from_client and not late:
        if data.startswith(PREFACE):
            return Recognition.YES
        return Recognition.MORE if PREFACE.startswith(data) else Recognition.NO
    if len(data) >= HEAD_BYTES:
        found = starts_frames(data, from_client=from_client) and (late or data[3] == SETTINGS)
        return Recognition.YES if found else Recognition.NO
    likely = data[:1] in (b"", b"\0") and (late or data[3:4] in (b"", bytes((SETTINGS,))))
    return Recognition.MORE if likely else Recognition.NO


def upgraded(facts: ConnectionFacts, output: ParserOutput, exchange: OpenExchange) -> Http2:
    """Return the parser that reads on after ``Upgrade: h2c``; ``exchange`` is the request that asked for it."""
    parser = Http2(facts, output, follows=True)
    parser.take_over(exchange)
    return parser


SPEC: Final = ProtocolSpec(name="http2", recognise=recognise, open=Http2, sender_of=sender_of)
