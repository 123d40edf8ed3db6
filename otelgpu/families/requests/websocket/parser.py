"""A WebSocket after its handshake: messages of known APIs become exchanges, others are counted.

In: the bytes of both directions, in order, with their gaps. Out: what ``realtime`` makes of the messages. It
must not raise on any bytes. The handshake itself is HTTP/1's exchange, which ends with the response 101.

Invariant: no message is kept after it is complete, and none beyond a megabyte.
"""

from __future__ import annotations

from otelgpu.families.requests.open_exchange import OpenExchange
from otelgpu.families.requests.parser_output import ParserOutput
from otelgpu.families.requests.protocol import Call, ConnectionFacts, Parser
from otelgpu.families.requests.websocket.frames import InvalidFrame, WebSocketFrameReader
from otelgpu.families.requests.websocket.permessage_deflate import Deflate, MessageInflater
from otelgpu.families.requests.websocket.realtime import Realtime


class _Direction:
    """One direction: its frames, the inflater of its messages, and the parser that takes them."""

    __slots__ = ("_from_client", "_inflater", "_parser", "call", "reader")

    def __init__(self, parser: WebSocket, deflate: Deflate, *, from_client: bool) -> None:
        self._parser = parser
        self._from_client = from_client
        forgets = deflate.client_forgets if from_client else deflate.server_forgets
        self._inflater = MessageInflater(parser.output, forgets=forgets)
        self.call: Call | None = None
        self.reader = WebSocketFrameReader(
            self,
            parser.output,
            masked=from_client,
            deflate=deflate.agreed,
            wanted=parser.realtime is not None,
        )

    def message(self, payload: bytes | None, *, compressed: bool, first: Call, offset: int) -> None:
        """Inflate a message and pass it on."""
        realtime, output = self._parser.realtime, self._parser.output
        if realtime is None:
            output.count("websocket_messages")
            return
        if compressed:
            if payload is None:
                self._inflater.skip()
            else:
                payload = self._inflater.inflate(payload)
        if payload is None:
            output.count("websocket_messages_not_read")
        elif self._from_client:
            realtime.asked(payload, first, self._parser.call, offset)
        else:
            realtime.reported(payload, first, self._parser.call)

    def closed(self) -> None:
        """A close frame: what is open stays open, for the other endpoint may complete it before it agrees."""

    def drop(self) -> None:
        """Give back the memory of what is unfinished."""
        self.reader.drop()
        self._inflater.drop()


class WebSocket:
    """The :class:`~otelgpu.families.requests.protocol.Parser` of a connection that was upgraded."""

    __slots__ = ("_from_client", "_to_client", "call", "ignored", "output", "realtime", "successor")

    def __init__(
        self, facts: ConnectionFacts, output: ParserOutput, realtime: Realtime | None, deflate: Deflate
    ) -> None:
        self.output = output
        self.realtime = realtime
        self.ignored = False
        self.successor: Parser | None = None
        self.call = Call(0, 0, 0, 0, 0, 0, None)  # the one under way
        self._from_client = _Direction(self, deflate, from_client=True)
        self._to_client = _Direction(self, deflate, from_client=False)

    @property
    def busy(self) -> bool:
        """Whether a response is under way."""
        return self.realtime is not None and self.realtime.busy

    def feed(self, call: Call, data: bytes, offset: int, *, from_client: bool) -> None:
        """Take the next bytes of a direction."""
        direction = self._from_client if from_client else self._to_client
        fresh = call is not direction.call
        self.call = direction.call = call
        try:
            direction.reader.feed(call, data, offset, fresh=fresh)
        except InvalidFrame:
            self.output.count("websocket_invalid")
            self.abort(call.end_ns, "invalid_websocket")

    def gap(self, call: Call, size: int, offset: int, *, from_client: bool) -> None:
        """Skip bytes that were not captured."""
        self.call = call
        (self._from_client if from_client else self._to_client).reader.gap(size)
        if self.realtime is not None and not from_client:
            self.realtime.missed()

    def end(self, call: Call, *, from_client: bool) -> None:
        """One endpoint sends nothing more: a WebSocket is over then."""
        self._finish(call.end_ns, "connection_closed")

    def close(self, time_ns: int) -> None:
        """The process closed it."""
        self.abort(time_ns, "connection_closed")

    def abort(self, time_ns: int, error: str) -> None:
        """Emit what is open with that error."""
        self._finish(time_ns, error)
        self.ignored = True
        self._from_client.drop()
        self._to_client.drop()

    def _finish(self, time_ns: int, error: str) -> None:
        if self.realtime is not None:
            self.realtime.end(time_ns, error)


def upgraded(facts: ConnectionFacts, output: ParserOutput, exchange: OpenExchange) -> WebSocket:
    """Return the parser that reads on after that handshake."""
    deflate = Deflate(exchange.websocket_extensions)
    return WebSocket(facts, output, Realtime.of(facts, output, exchange.path), deflate)
