"""One stream of an HTTP/2 connection: an open exchange, and the readers of its bodies.

In: heads, body bytes and gaps with their times. Out: facts of the
:class:`~otelgpu.families.requests.open_exchange.OpenExchange`, bytes and messages to the LLM and engine readers.
It must not know about frames, HPACK or other streams.
"""

from __future__ import annotations

from collections.abc import Iterable

from otelgpu.families.requests.http1.framing import HEADERS, Head
from otelgpu.families.requests.http2.grpc import OpenRpc, is_grpc
from otelgpu.families.requests.http2.grpc_engines import GrpcEngineReader, engine_reader
from otelgpu.families.requests.http2.hpack_reader import Field
from otelgpu.families.requests.llm import reader as llm
from otelgpu.families.requests.open_exchange import OpenExchange
from otelgpu.families.requests.parser_output import ParserOutput
from otelgpu.families.requests.protocol import Call
from otelgpu.model.exchange import Named, Role

_WANTED = HEADERS | llm.HEADERS | {b"grpc-status", b"grpc-timeout"}
_VERSION = "2"
_MAX_METHOD = 32


def read_head(fields: Iterable[Field]) -> Head:
    """Return the few fields that are used as a head; pseudo-header fields (RFC 9113, section 8.3) fill it."""
    head = Head(_WANTED)
    head.version = _VERSION
    for name, value in fields:
        if name is None or value is None:
            continue
        if name in _WANTED:
            head.on_header(name, value)
        elif name == b":method":
            head.method = value[:_MAX_METHOD].decode("latin-1")
        elif name == b":path":
            head.target = value
        elif name == b":status" and len(value) == 3 and value.isdigit():
            head.status = int(value)
    return head


class Stream:
    """A request and its response. ``thread``: the one it is assigned to (tgid, tid), at servers."""

    __slots__ = (
        "_connection",
        "_engine",
        "_output",
        "_request_wanted",
        "_response_wanted",
        "call",
        "exchange",
        "response_head_seen",
        "rpc",
        "thread",
    )

    def __init__(self, exchange: OpenExchange, output: ParserOutput, connection: int) -> None:
        self.exchange = exchange
        self.thread: tuple[int, int] | None = None
        self.response_head_seen = False  # of the final response
        self.rpc: OpenRpc | None = None
        self.call: Call | None = None  # that moved what is being read
        self._output = output
        self._connection = connection
        self._engine: GrpcEngineReader | None = None
        self._request_wanted = False
        self._response_wanted = False

    def request_head(self, head: Head, *, doubtful: bool) -> None:
        """Take the request's head; ``doubtful``: fields of it are unknown."""
        exchange, output = self.exchange, self._output
        exchange.fill(head)
        content_type = head.last(b"content-type")
        if is_grpc(content_type) or (doubtful and not content_type and exchange.method in ("", "POST")):
            rpc = OpenRpc(output, exchange.path, head.last(b"grpc-timeout"), certain=bool(content_type))
            self.rpc = rpc
            exchange.generation = llm.grpc_reader(rpc.method, output)
            self._engine = engine_reader(rpc.method, self._connection)
            if exchange.generation is not None or self._engine is not None:
                rpc.requests.take = self._request_message
                rpc.responses.take = self._response_message
            return
        exchange.generation = llm.http_reader(exchange.method, exchange.path, output)
        if exchange.generation is not None:
            self._request_wanted = exchange.generation.request_head(head)

    def response_head(self, head: Head) -> None:
        """Take the final response's head."""
        exchange = self.exchange
        self.response_head_seen = True
        exchange.status_code = head.status
        if self.rpc is not None:
            self.rpc.certain = self.rpc.certain or is_grpc(head.last(b"content-type"))
            self.rpc.trailers(head.last(b"grpc-status"))
        elif exchange.generation is not None:
            self._response_wanted = exchange.generation.response_head(head)

    def response_trailers(self, head: Head) -> None:
        """Take the trailers of the response."""
        if self.rpc is not None:
            self.rpc.trailers(head.last(b"grpc-status"))

    def request_body(self, call: Call, data: bytes, time_ns: int) -> None:
        """Take body bytes that moved at that time."""
        if self.rpc is not None:
            self.call = call
            self.rpc.requests.feed(data, time_ns)
        elif self._request_wanted and self.exchange.generation is not None:
            self.exchange.generation.request_body(data)

    def response_body(self, call: Call, data: bytes, time_ns: int) -> None:
        """Take body bytes that moved at that time."""
        if self.rpc is not None:
            self.call = call
            self.rpc.responses.feed(data, time_ns)
        elif self._response_wanted and self.exchange.generation is not None:
            self.exchange.generation.response_body(data, time_ns)
            self._name(call)

    def request_gap(self, size: int) -> None:
        """Note missing bytes in the request's body."""
        if self.rpc is not None:
            self.rpc.requests.gap(size)
        elif self._request_wanted and self.exchange.generation is not None:
            self.exchange.generation.request_gap(size)

    def response_gap(self, size: int) -> None:
        """Note missing bytes in the response's body."""
        if self.rpc is not None:
            self.rpc.responses.gap(size)
        elif self._response_wanted and self.exchange.generation is not None:
            self.exchange.generation.response_gap(size)

    def request_ended(self) -> None:
        """No byte of the request is to come."""
        exchange = self.exchange
        if not exchange.request_done:
            exchange.request_done = True
            if exchange.generation is not None:
                exchange.generation.request_ended()

    def response_ended(self, call: Call) -> None:
        """The response is complete."""
        exchange = self.exchange
        exchange.answered = True
        if exchange.generation is not None:
            exchange.generation.response_ended()
            self._name(call)

    def reset(self, code: str, time_ns: int) -> None:
        """The stream was ended before its response was complete, for a reason named as in RFC 9113 or by us."""
        if self.rpc is not None and self.rpc.certain:
            self.rpc.reset(code, time_ns - self.exchange.start_ns)
        else:
            self.exchange.error = self.exchange.error or code

    def finish(self, role: Role) -> None:
        """Complete the exchange's facts. Nothing follows."""
        if self.rpc is not None:
            self.exchange.rpc = self.rpc.finish(role)

    def _request_message(self, data: bytes, time_ns: int) -> None:
        if self.exchange.generation is not None:
            self.exchange.generation.request_message(data, time_ns)
        if self._engine is not None and self.call is not None:
            self._engine.request(self._output, self.call, self.exchange, data, time_ns)

    def _response_message(self, data: bytes, time_ns: int) -> None:
        if self.exchange.generation is not None and self.call is not None:
            self.exchange.generation.response_message(data, time_ns)
            self._name(self.call)
        if self._engine is not None and self.call is not None:
            self._engine.response(self._output, self.call, self.exchange, data, time_ns)

    def _name(self, call: Call) -> None:
        exchange = self.exchange
        generation = exchange.generation
        if exchange.named or generation is None or not generation.request_id:
            return
        exchange.named = True
        self._output.named.append(
            Named(
                key=exchange.key,
                tgid=exchange.tgid,
                request_id=generation.request_id,
                time_ns=call.end_ns,
                published=call.published,
            )
        )
