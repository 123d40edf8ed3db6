"""One request and its response as seen at one endpoint of a connection, and what an LLM response reported.

Times are CLOCK_MONOTONIC nanoseconds of the observed host; 0 means "never seen".
No body, prompt or completion text is held here, unless :class:`Content` was asked for.
"""

from __future__ import annotations

from array import array
from enum import IntEnum, StrEnum
from typing import Final

from msgspec import Struct, field

from otelgpu.model.tasks import Asked


class Role(IntEnum):
    """The role of the process on the connection: ``enum http_role``."""

    UNKNOWN = 0
    SERVER = 1
    CLIENT = 2


SERVER: Final = Role.SERVER
CLIENT: Final = Role.CLIENT
"""For what is asked of every exchange: to look a member of an enumeration up takes as long as all the rest of it."""


class StartSource(StrEnum):
    """What an exchange's ``start_ns`` is: ``otelgpu.start.source``."""

    ARRIVAL = "arrival"  # the request's first byte came to the host
    READ = "read"  # the call that read it returned
    WRITE = "write"  # clients: the call that sent it began


class TraceParent(Struct, frozen=True, kw_only=True, gc=False):
    """A W3C ``traceparent`` that the client sent (https://www.w3.org/TR/trace-context/, version 00)."""

    trace_id: bytes  # 16 bytes
    span_id: bytes  # 8 bytes
    flags: int
    state: str = ""  # the tracestate header, verbatim

    @property
    def sampled(self) -> bool:
        """Whether the caller recorded the trace."""
        return bool(self.flags & 1)


class Published(Struct, frozen=True, kw_only=True, gc=False):
    """The context that the process itself published, as a probe read it on the calling thread."""

    trace_id: bytes  # 16 bytes
    span_id: bytes  # 8 bytes
    flags: int
    source: int  # ContextSource: THREAD_CONTEXT or OBI


class Endpoint(Struct, frozen=True, kw_only=True, gc=False):
    """One endpoint of a connection. ``address`` is textual; a Unix socket has the empty address and port 0."""

    address: str
    port: int


UNKNOWN_ENDPOINT = Endpoint(address="", port=0)
"""An endpoint that is not known, or a Unix socket's."""


class Rpc(Struct, frozen=True, kw_only=True, gc=False):
    """What makes an exchange a remote procedure call."""

    system: str  # rpc.system.name: "grpc"
    method: str  # fully qualified: "package.Service/Method"
    status: str = ""  # rpc.status_code, the name of it: "OK"; "" when none was seen
    requests: int | None = 0  # messages from the client; None: some may have been missed
    responses: int | None = 0
    failed: bool = False  # whether the status is an error at this endpoint, by the conventions


class Content(Struct, frozen=True, kw_only=True):
    """Prompt and completion, bounded: kept only where the user asked for them."""

    request: str = ""  # JSON text of the messages, or the prompt
    response: str = ""


CONTENT_TIMES = 4096
"""Content deltas of a stream of which the times are kept: 32 KiB at most."""


class Generation(Struct, frozen=True, kw_only=True):
    """What an LLM request and its response reported, in any API."""

    operation: str  # gen_ai.operation.name: "chat", "text_completion", "embeddings", "generate_content"
    provider: str = "openai"  # gen_ai.provider.name: the flavour of the API
    request_model: str
    response_model: str
    response_id: str
    stream: bool
    input_tokens: int | None  # from ``usage``; never estimated
    output_tokens: int | None
    usage_reported: bool  # False: output_tokens is the count of content deltas, an estimate; or None
    finish_reasons: tuple[str, ...]
    first_content_ns: int  # first non-empty content, reasoning or tool delta; 0 when not streamed
    last_content_ns: int
    content_deltas: int
    first_chunk_ns: int = 0  # the first event of a stream, whatever is in it
    whole: bool = True  # all of its stream was seen
    content_times_ns: array[int] = field(default_factory=lambda: array("Q"))
    """When each content delta was written (of clients: read), ascending; the first CONTENT_TIMES of them."""
    content_tokens: int | None = None  # tokens that the deltas held in all, where the server reports
    cached_tokens: int | None = None  # input tokens that came from a cache
    reasoning_tokens: int | None = None
    max_tokens: int | None = None
    choices: int | None = None  # gen_ai.request.choice.count, where not 1
    queue_s: float | None = None  # where the server reports how long the request waited
    prefill_s: float | None = None  # ... was processed before its first token
    decode_s: float | None = None
    request_id: str = ""  # of the engine, where the API names one apart from response_id
    content: Content | None = None


UNSEEN: Final = frozenset({"capture_gap", "response_not_seen", "connection_evicted"})
"""Why not all of an exchange was seen: bytes were not captured, an answer went another way, or there were too many."""


class Exchange(Struct, frozen=True, gc=False):
    """A finished request and its response, at one endpoint of a connection.

    At a server the request is read and the response written, at a client's the other way round; "read"
    and "write" below are a server's. Not for keywords only: so many of them take msgspec four times as long.
    """

    key: int  # unique in a session, > 0; emitted in order of arrival
    connection: int
    ordinal: int  # position of the request on its connection, from 0
    tgid: int
    tid: int  # the thread that read the request last
    cgroup_id: int
    start_ns: int  # the read that brought the request's first byte returned
    request_end_ns: int  # the read that brought its last byte returned
    first_byte_ns: int  # the write of the response's first byte began
    end_ns: int  # the write of the response's last byte returned
    method: str
    path: str  # the request target's, without query, fragment and parameters; bounded
    query_present: bool
    protocol_version: str  # "1.0" or "1.1"
    status_code: int  # 0: no response was seen
    request_bytes: int  # as seen on the socket, head included
    response_bytes: int
    server: Endpoint
    client: Endpoint
    user_agent: str
    parent: TraceParent | None
    error: str  # "" when none, else what went wrong ("connection_closed", "invalid_http"), or one of UNSEEN
    generation: Generation | None
    role: Role = Role.SERVER
    start_source: StartSource = StartSource.READ
    read_ns: int = 0  # servers: the read of the request's first byte returned
    tls: bool = False
    rpc: Rpc | None = None
    published: Published | None = None  # what the process itself worked under when it answered (asked)
    task: int = 0  # servers: it wrote the response's first bytes; clients: the request's, or had them written
    asked: Asked | None = None  # clients: how that task had another one write the request; None: it wrote it
    answered: bool = True  # the end of the response was seen: ``end_ns`` is that
    wire_id: bytes = b""  # what both endpoints derive alike for this request; "" where unknown
    protocol: str = "http"  # network.protocol.name: "http", "websocket", or a plug-in's
    span_name: str = ""  # a plug-in's; "": made by the family's rules
    attributes: tuple[tuple[str, str | int | float | bool], ...] = ()  # a plug-in's

    @property
    def incomplete(self) -> str:
        """Why not all of it was seen, one of :data:`UNSEEN`; "": it was. Our loss, and no error of anybody's."""
        return self.error if self.error in UNSEEN else ""

    @property
    def known_duration_s(self) -> float | None:
        """The duration, None where the end was not seen: what was seen is shorter."""
        return self.duration_s if self.answered or not self.incomplete else None

    @property
    def duration_s(self) -> float:
        """First byte of the request → last byte of the response, in seconds."""
        return (self.end_ns - self.start_ns) * 1e-9

    @property
    def time_to_first_token_s(self) -> float | None:
        """Request start → first content, in seconds; None where the stream never showed it."""
        if self.generation is None or not self.generation.first_content_ns:
            return None
        return (self.generation.first_content_ns - self.start_ns) * 1e-9

    @property
    def time_per_output_token_s(self) -> float | None:
        """(request duration - time to first token) / (output tokens - 1), as semantic conventions define it."""
        first, duration = self.time_to_first_token_s, self.known_duration_s
        tokens = self.generation.output_tokens if self.generation is not None else None
        if first is None or duration is None or tokens is None or tokens < 2:
            return None
        return (duration - first) / (tokens - 1)

    @property
    def error_type(self) -> str:
        """``error.type``: what went wrong on the connection, else a 5xx status code, else empty."""
        if self.error and not self.incomplete:
            return self.error
        if self.rpc is not None:
            return self.rpc.status if self.rpc.failed else ""
        # A client takes 4xx for an error too (semantic conventions for HTTP spans).
        failed = self.status_code >= 400 and (self.status_code >= 500 or self.role is CLIENT)
        return str(self.status_code) if failed else ""


class Opened(Struct, frozen=True, kw_only=True, gc=False):
    """A request has begun and its head was read: all that its span's identity is made of.

    Reported once per exchange, before it is emitted; what was never reported opened is still emitted when it ends.
    """

    key: int  # Exchange.key
    tgid: int
    tid: int
    start_ns: int
    role: Role
    parent: TraceParent | None
    wire_id: bytes
    task: int = 0  # of clients: the one that wrote it, or had it written
    asked: Asked | None = None  # ... how it had another one write it; None: it wrote it
    path: str = ""  # Exchange.path, and its user_agent
    user_agent: str = ""
    method: str = ""  # Exchange.method, and its tls
    tls: bool = False


class Named(Struct, frozen=True, kw_only=True, gc=False):
    """An exchange is about a request that other processes know by ``request_id`` (an LLM response's ``id``)."""

    key: int  # Exchange.key
    tgid: int
    request_id: str
    time_ns: int
    published: Published | None = None  # on the call that reported the id


class ThreadAssignment(Struct, frozen=True, kw_only=True, gc=False):
    """A thread began or ended its work for an exchange: the raw material of tier ``thread``.

    An exchange is assigned to the thread that read its request, from then until it has been answered (or the
    connection ended). When another thread reads more of the same request, the exchange is reassigned to that one.
    A pipelined request is assigned only when the one before it has been answered.
    """

    time_ns: int
    tgid: int
    tid: int
    exchange: int  # Exchange.key
    begins: bool  # False: it ends
    loop: bool = (
        False  # the thread reads without waiting, as event loops do: it may work for other exchanges too
    )
    cut: bool = False  # it ends without a whole response: work for the exchange may go on
