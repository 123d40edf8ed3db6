"""One stream of an HTTP/2 connection: an open exchange, and the readers of its bodies.

In: heads, body bytes and gaps with their times. Out: facts of the
:class:`~otelgpu.families.requests.open_exchange.OpenExchange`, bytes and messages to the LLM and engine readers.
It must not know about frames, HPACK or other streams.
"""

from __future__ import annotations

from collections.abc import Sequence

from otelgpu.families.requests.http1.framing import HEADERS, Head
from otelgpu.families.requests.http2.grpc import OpenRpc, is_grpc
from otelgpu.families.requests.http2.grpc_engines import GrpcEngineReader, engine_reader
from otelgpu.families.requests.http2.hpack_reader import Field
from otelgpu.families.requests.llm import reader as llm
from otelgpu.families.requests.llm.content import ContentReader
from otelgpu.families.requests.open_exchange import OpenExchange
from otelgpu.families.requests.parser_output import ParserOutput
from otelgpu.families.requests.protocol import Call
from otelgpu.model.exchange import UNSEEN, Named, Role

_WANTED = HEADERS | llm.HEADERS | {b"grpc-status", b"grpc-timeout"}
_VERSION = "2"
_MAX_METHOD = 32
_GRPC_FLAGS = (b"\0", b"\1")  # of a message: compressed or not


class Http2Head(Head):
    """The head of a request or a response, or trailers.

    ``pseudo``: whether it has pseudo-header fields, which begin a head and are in no trailers (RFC 9113, section 8.3);
    None: not known. ``doubtful``: whether fields are unknown.
    """

    __slots__ = ("doubtful", "pseudo")

    def __init__(self) -> None:
        super().__init__(_WANTED)
        self.version = _VERSION
        self.pseudo: bool | None = False
        self.doubtful = False


def read_head(fields: Sequence[Field]) -> Http2Head:
    """Return the few fields that are used as a head; pseudo-header fields fill it."""
    head = Http2Head()
    if fields and fields[0][0] is None:
        head.pseudo = None
    for name, value in fields:
        if name is not None and name.startswith(b":"):
            head.pseudo = True
        if name is None or value is None:
            head.doubtful = True
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
        "_response_unseen",
        "_response_wanted",
        "_undecided",
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
        self._response_unseen = False  # bytes of it may have passed, and it is not known how many
        self._undecided: Http2Head | None = (
            None  # of a request that may be gRPC: what its body is made of decides
        )

    def request_head(self, head: Http2Head) -> None:
        """Take the request's head."""
        self.exchange.fill(head)
        content_type = head.last(b"content-type")
        if is_grpc(content_type):
            self._begin_rpc(head, certain=True)
        elif head.doubtful and not content_type and self.exchange.method in ("", "POST"):
            self._undecided = head
        else:
            self._begin_http(head)

    def _begin_rpc(self, head: Http2Head, *, certain: bool) -> None:
        exchange, output = self.exchange, self._output
        self._undecided = None
        rpc = self.rpc = OpenRpc(output, exchange.path, head.last(b"grpc-timeout"), certain=certain)
        if rpc.method:
            exchange.generation = llm.grpc_reader(rpc.method, output)
            self._engine = engine_reader(rpc.method, self._connection)
        else:
            exchange.generation = ContentReader(output)
        if exchange.generation is not None or self._engine is not None:
            rpc.requests.take = self._request_message
            rpc.responses.take = self._response_message
            rpc.responses.missed = self._response_message_missed

    def _begin_http(self, head: Http2Head) -> None:
        exchange, output = self.exchange, self._output
        self._undecided = None
        if exchange.path:
            method = exchange.method or "POST"  # not known: no other is one of an LLM API
            exchange.generation = llm.http_reader(method, exchange.path, output)
        elif exchange.method in ("", "POST"):
            exchange.generation = ContentReader(output)
        if exchange.generation is not None:
            self._request_wanted = exchange.generation.request_head(head)

    def _decide(self, data: bytes) -> None:
        """Tell by the first byte of a body whether it is made of gRPC's messages."""
        head = self._undecided
        if head is None:
            return
        if data.startswith(_GRPC_FLAGS):
            self._begin_rpc(head, certain=False)
        else:
            self._begin_http(head)

    def is_response_head(self, head: Http2Head, *, ended: bool, unseen: bool) -> bool:
        """Whether fields are the head of a response, or of an interim one, and not trailers, which end a stream.

        ``unseen``: frames of the stream may have passed before. A head of unknown status may have been an interim one.
        """
        if self.response_head_seen:
            return not self.exchange.status_code and (head.status > 0 or not ended)
        if head.pseudo is None:
            return not (ended and (unseen or self._response_unseen))
        return head.pseudo

    def response_head(self, head: Http2Head) -> None:
        """Take the final response's head."""
        exchange = self.exchange
        self.response_head_seen = True
        exchange.status_code = head.status
        if self._undecided is not None and is_grpc(head.last(b"content-type")):
            self._begin_rpc(self._undecided, certain=True)
        if self.rpc is not None:
            self.rpc.certain = self.rpc.certain or is_grpc(head.last(b"content-type"))
            self.rpc.trailers(head.last(b"grpc-status"))
        elif exchange.generation is not None:
            self._response_wanted = exchange.generation.response_head(head, doubtful=head.doubtful)

    def response_trailers(self, head: Http2Head) -> None:
        """Take the trailers of the response."""
        if self.rpc is not None:
            self.rpc.trailers(head.last(b"grpc-status"))

    def response_began_unseen(self) -> None:
        """Note that the response goes on, or ends, and its head was not seen; more of it may have passed before."""
        if self.response_head_seen or self._response_unseen:
            return
        self._response_unseen = True
        if self.rpc is not None:
            self.rpc.responses.gap(0)
        elif self.exchange.generation is not None:
            self._response_wanted = True
            self.exchange.generation.response_began_unseen()

    def response_lost(self) -> None:
        """Note that framing was lost: if the response has begun, more of it may pass than will be seen."""
        if self.response_head_seen:
            self._response_unseen = True
            self.response_gap(0)

    def request_body(self, call: Call, data: bytes, time_ns: int) -> None:
        """Take body bytes that moved at that time."""
        if self._undecided is not None:
            self._decide(data)
        if self.rpc is not None:
            self.call = call
            self.rpc.requests.feed(data, time_ns)
        elif self._request_wanted and self.exchange.generation is not None:
            self.exchange.generation.request_body(data)

    def response_body(self, call: Call, data: bytes, time_ns: int) -> None:
        """Take body bytes that moved at that time."""
        if self._undecided is not None:
            self._decide(data)
        if self.rpc is not None:
            self.call = call
            self.rpc.responses.feed(data, time_ns)
        elif self._response_wanted and self.exchange.generation is not None:
            self.exchange.generation.response_body(data, time_ns)
            self._name(call)

    def request_gap(self, size: int) -> None:
        """Note missing bytes in the request's body; 0: an unknown number."""
        self._decide(b"")
        if self.rpc is not None:
            self.rpc.requests.gap(size)
        elif self._request_wanted and self.exchange.generation is not None:
            self.exchange.generation.request_gap(size)

    def response_gap(self, size: int) -> None:
        """Note missing bytes in the response's body; 0: an unknown number."""
        if self.rpc is not None:
            self.rpc.responses.gap(size)
        elif self._response_wanted and self.exchange.generation is not None:
            self.exchange.generation.response_gap(size)

    def request_ended(self) -> None:
        """No byte of the request is to come."""
        exchange = self.exchange
        self._decide(b"")
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
        exchange = self.exchange
        if self._response_unseen:
            exchange.error = exchange.error or "capture_gap"
            exchange.response_bytes = 0
        if self.rpc is not None:
            if exchange.error in UNSEEN and not exchange.answered:
                self.rpc.responses.gap(0)
            exchange.rpc = self.rpc.finish(role)

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

    def _response_message_missed(self) -> None:
        if self.exchange.generation is not None:
            self.exchange.generation.response_gap(0)

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
