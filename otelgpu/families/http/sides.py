"""The two directions of a connection: what their readers find becomes steps of exchanges.

In: calls of the :class:`~otelgpu.families.http.framing.MessageReader` of each direction. Out: calls on the
connection and on the body readers of its exchanges. It must not decide what holes and errors mean.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from otelgpu.families.http.framing import (
    NO_BODY,
    Framing,
    Head,
    MessageReader,
    request_framing,
    response_framing,
)
from otelgpu.families.http.llm import GenerationReader, llm_operation
from otelgpu.families.http.open_exchange import SWITCHING_PROTOCOLS, OpenExchange

if TYPE_CHECKING:
    from otelgpu.families.http.connection import Connection


class _Side:
    """One direction: its reader, the message under way and the system call that moved bytes last."""

    __slots__ = ("call_end_ns", "call_end_offset", "call_ns", "call_tid", "connection", "reader")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.call_ns = -1
        self.call_tid = -1
        self.call_end_ns = 0
        self.call_end_offset = -1  # the stream offset at which the call's bytes end
        self.reader: MessageReader


class Requests(_Side):
    """The direction from the client; the sink of its reader."""

    __slots__ = ("current",)

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self.current: OpenExchange | None = None  # whose request is being read
        self.reader = MessageReader(request=True, sink=self)

    def started(self) -> None:
        """Open an exchange."""
        self.current = self.connection.open_exchange()

    def head(self, head: Head) -> Framing:
        """Take what the request says of itself."""
        exchange = self.current
        framing = request_framing(head)
        if exchange is None:  # it was answered and given out before its head was complete
            return framing
        exchange.fill(head)
        operation = llm_operation(exchange.method, exchange.path)
        if operation:
            generation = GenerationReader(operation, self.connection.session)
            exchange.generation = generation
            self.reader.wants_body = generation.request_head(head)
        if not head.keep_alive:
            self.connection.last_request = True
        return framing

    def body(self, data: bytes) -> None:
        """Pass body bytes to who reads them."""
        exchange = self.current
        if exchange is not None and exchange.generation is not None:
            exchange.generation.request_body(data)

    def body_gap(self, size: int) -> None:
        """Tell who reads the body of a hole."""
        exchange = self.current
        if exchange is not None and exchange.generation is not None:
            exchange.generation.request_gap(size)

    def ended(self, size: int) -> None:
        """The request is complete."""
        exchange, self.current = self.current, None
        connection = self.connection
        if connection.last_request:
            self.reader.stop()
        if exchange is not None:
            exchange.request_bytes = size
            exchange.request_done = True
            if exchange.generation is not None:
                exchange.generation.request_ended()
            connection.finish_if_over(exchange)

    def lost(self) -> None:
        """Framing is unknown from here on: where the request ends, nobody can say."""
        exchange = self.current
        self.connection.requests_missed = True
        if exchange is not None:
            exchange.error = exchange.error or "capture_gap"
            exchange.request_bytes = self.reader.message_bytes
            exchange.request_done = True
            self.connection.finish_if_over(exchange)


class Responses(_Side):
    """The direction to the client; the sink of its reader."""

    __slots__ = ("current", "first_byte_ns", "interim")

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self.current: OpenExchange | None = None  # whose response is being written
        self.first_byte_ns = 0
        self.interim = False
        self.reader = MessageReader(request=False, sink=self)

    def started(self) -> None:
        """Note when, and whose response it is."""
        self.current = self.connection.exchanges.unanswered()
        self.first_byte_ns = self.connection.begin_ns

    def head(self, head: Head) -> Framing:
        """Take what the response says of itself; an interim one says nothing."""
        exchange = self.current
        self.interim = head.status < 200 and head.status != SWITCHING_PROTOCOLS
        if self.interim:
            return NO_BODY
        if exchange is None:
            self.connection.session.count("unsolicited_responses")
            return response_framing(head, "")
        framing = response_framing(head, exchange.method)
        exchange.status_code = head.status
        exchange.first_byte_ns = self.first_byte_ns
        if exchange.generation is not None:
            self.reader.wants_body = exchange.generation.response_head(head)
        return framing

    def body(self, data: bytes) -> None:
        """Pass body bytes to who reads them."""
        exchange = self.current
        if exchange is not None and exchange.generation is not None:
            exchange.generation.response_body(data, self.connection.begin_ns)

    def body_gap(self, size: int) -> None:
        """Tell who reads the body of a hole."""
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
            self.connection.answered(exchange)

    def lost(self) -> None:
        """Framing is unknown from here on, for this response and those after it."""
        if self.current is None:
            self.current = self.connection.exchanges.unanswered()
        for exchange in self.connection.exchanges:
            if not exchange.answered:
                exchange.error = exchange.error or "capture_gap"
        if self.current is not None:
            self.current.framing_lost = True
