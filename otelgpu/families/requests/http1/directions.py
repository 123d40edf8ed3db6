"""The two directions of an HTTP/1 connection: what their readers find updates the exchanges.

In: calls of the :class:`~otelgpu.families.requests.http1.framing.Http1MessageReader` of each direction. Out: calls on
the parser and on the body readers of its exchanges. It must not decide what gaps and errors mean.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from otelgpu.families.requests.http1.framing import (
    HEADERS,
    NO_BODY,
    Framing,
    Head,
    Http1MessageReader,
    State,
    request_framing,
    response_framing,
)
from otelgpu.families.requests.llm import reader as llm
from otelgpu.families.requests.open_exchange import SWITCHING_PROTOCOLS, OpenExchange

if TYPE_CHECKING:
    from otelgpu.families.requests.http1.parser import Http1
    from otelgpu.families.requests.protocol import Call


_HEADERS = HEADERS | llm.HEADERS
_STREAMS = (State.CHUNK_SIZE, State.UNTIL_CLOSE)


class _Direction:
    """One direction: its reader, the message under way and the call that moved bytes last."""

    __slots__ = ("call", "call_offset", "gap_call", "parser", "reader")

    def __init__(self, parser: Http1) -> None:
        self.parser = parser
        self.call: Call | None = None
        self.call_offset = 0  # of the first byte that was seen of the call
        self.gap_call: Call | None = None  # the last one of which bytes are missing
        self.reader: Http1MessageReader


class Http1RequestDirection(_Direction):
    """The direction from the client; the sink of its reader."""

    __slots__ = ("current",)

    def __init__(self, parser: Http1) -> None:
        super().__init__(parser)
        self.current: OpenExchange | None = None  # whose request is being read
        self.reader = Http1MessageReader(request=True, sink=self, wanted=_HEADERS)

    def started(self) -> None:
        """Open an exchange."""
        self.current = self.parser.open_exchange()

    def head(self, head: Head) -> Framing:
        """Take the request's head."""
        if self.current is not None:  # else it was answered and emitted before its head was complete
            self.reader.wants_body = self._fill(self.current, head)
            if not head.keep_alive:
                self.parser.last_request = True
        return request_framing(head)

    def head_cut(self, head: Head) -> None:
        """Take a head of which the rest was not captured: its request line, and fields."""
        exchange = self.current
        if exchange is not None and not exchange.head_seen:
            self._fill(exchange, head)
            self.body_gap(1)

    def _fill(self, exchange: OpenExchange, head: Head) -> bool:
        """Whether its body is wanted."""
        exchange.fill(head)
        self.parser.head_seen(exchange)
        generation = llm.http_reader(exchange.method, exchange.path, self.parser.output)
        if generation is None:
            return False
        exchange.generation = generation
        return generation.request_head(head)

    def body(self, data: bytes) -> None:
        """Pass body bytes to the body reader."""
        exchange = self.current
        if exchange is not None and exchange.generation is not None:
            exchange.generation.request_body(data)

    def body_gap(self, size: int) -> None:
        """Report a gap to the body reader."""
        exchange = self.current
        if exchange is not None and exchange.generation is not None:
            exchange.generation.request_gap(size)

    def ended(self, size: int) -> None:
        """The request is complete."""
        exchange, self.current = self.current, None
        parser = self.parser
        if parser.last_request:
            self.reader.stop()
        if exchange is not None:
            exchange.request_bytes = size
            exchange.request_done = True
            if exchange.generation is not None:
                exchange.generation.request_ended()
            parser.finish_if_over(exchange)

    def lost(self) -> None:
        """Framing is unknown from here on, and with it the end of the request."""
        exchange = self.current
        self.parser.miss_requests()
        if exchange is not None:
            exchange.error = exchange.error or "capture_gap"
            exchange.request_bytes = self.reader.message_bytes
            exchange.request_done = True
            self.parser.finish_if_over(exchange)


class Http1ResponseDirection(_Direction):
    """The direction to the client; the sink of its reader."""

    __slots__ = ("current", "ended_at", "first_byte_ns", "first_task", "interim")

    def __init__(self, parser: Http1) -> None:
        super().__init__(parser)
        self.current: OpenExchange | None = None  # whose response is being written
        self.first_byte_ns = 0
        self.first_task = 0
        self.ended_at = 0  # stream offset behind the last response that ended
        self.interim = False
        self.reader = Http1MessageReader(request=False, sink=self, wanted=_HEADERS)

    def started(self) -> None:
        """Note the time, and which exchange it answers: none of those whose responses are lost, in part or whole."""
        self.current = self.parser.next_answered()
        self.first_byte_ns = self.parser.response_ns
        self.first_task = self.parser.call.task

    def head(self, head: Head) -> Framing:
        """Take the head of a response; an interim one (1xx) is skipped."""
        exchange = self.current
        self.interim = head.status < 200 and head.status != SWITCHING_PROTOCOLS
        if self.interim:
            return NO_BODY
        if exchange is None:
            if not self.parser.facts.lossy:  # else its request was lost, and that is counted
                self.parser.output.count("unsolicited_responses")
            return response_framing(head, "")
        framing = response_framing(head, exchange.method)
        exchange.status_code = head.status
        exchange.first_byte_ns = self.first_byte_ns
        if self.parser.at_server:
            exchange.published = self.parser.call.published
            exchange.written_by(self.parser.call.task, self.parser.call.end_ns, first=self.first_task)
            if framing[0] in _STREAMS:
                exchange.stream_ns = self.first_byte_ns
        if exchange.upgrade:
            exchange.agree(head)
        if exchange.generation is not None:
            self.reader.wants_body = exchange.generation.response_head(head)
            self._name(exchange, exchange.generation)
        return framing

    def body(self, data: bytes) -> None:
        """Pass body bytes to the body reader."""
        exchange = self.current
        if exchange is not None and exchange.generation is not None:
            exchange.generation.response_body(data, self.parser.response_ns)
            if not exchange.named:
                self._name(exchange, exchange.generation)

    def body_gap(self, size: int) -> None:
        """Report a gap to the body reader."""
        exchange = self.current
        if exchange is not None and exchange.generation is not None:
            exchange.generation.response_gap(size)

    def ended(self, size: int) -> None:
        """The response is complete."""
        exchange, self.current = self.current, None
        if exchange is None:
            return
        exchange.response_bytes += size
        if not self.interim:
            if (
                self.gap_call is not self.parser.call
            ):  # else it is the next call, at which the loss was noticed
                exchange.written_by(self.parser.call.task, self.parser.call.end_ns)
            self.ended_at = self.reader.message_start + size
            self.parser.answered(exchange)

    def _name(self, exchange: OpenExchange, generation: llm.GenerationReader) -> None:
        request_id = generation.request_id
        if request_id:
            self.parser.named(exchange, request_id)

    def lost(self) -> None:
        """Framing is unknown from here on, for this response and those after it."""
        self.parser.miss()
        if self.current is None:
            self.current = self.parser.exchanges.unanswered()
        self.parser.miss_response()
        if self.current is not None:
            self.current.framing_lost = True
