"""One HTTP exchange as a server saw it, and what an LLM response in it said about itself.

Times are CLOCK_MONOTONIC nanoseconds of the observed host; 0 means "never seen".
No body, prompt or completion text is ever held here.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceParent:
    """A W3C ``traceparent`` that the client sent (https://www.w3.org/TR/trace-context/, version 00)."""

    trace_id: bytes  # 16 bytes
    span_id: bytes  # 8 bytes
    flags: int
    state: str = ""  # the tracestate header, verbatim

    @property
    def sampled(self) -> bool:
        """Whether the caller recorded its side."""
        return bool(self.flags & 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One end of a socket. ``address`` is textual; a Unix socket has the empty address and port 0."""

    address: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """What an LLM request and its response told: the OpenAI-compatible completion APIs."""

    operation: str  # gen_ai.operation.name: "chat" or "text_completion"
    request_model: str
    response_model: str
    response_id: str
    stream: bool
    input_tokens: int | None  # from ``usage``; never estimated
    output_tokens: int | None
    usage_reported: bool  # False: output_tokens is the count of content deltas, an estimate
    finish_reasons: tuple[str, ...]
    first_content_ns: int  # first non-empty content, reasoning or tool delta; 0 when not streamed
    last_content_ns: int
    content_deltas: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A finished HTTP request and response on a server socket."""

    key: int  # unique in a session, > 0; given out in order of arrival
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
    path: str  # the request target without its query; bounded
    query_present: bool
    protocol_version: str  # "1.0" or "1.1"
    status_code: int  # 0: no response was seen
    request_bytes: int  # as seen on the socket, head included
    response_bytes: int
    server: Endpoint
    client: Endpoint
    user_agent: str
    parent: TraceParent | None
    error: str  # error.type: "" when none, else e.g. "connection_closed", "capture_gap", "invalid_http"
    generation: Generation | None

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
        first = self.time_to_first_token_s
        tokens = self.generation.output_tokens if self.generation is not None else None
        if first is None or tokens is None or tokens < 2:
            return None
        return (self.duration_s - first) / (tokens - 1)

    @property
    def error_type(self) -> str:
        """``error.type``: what went wrong on the connection, else a 5xx status code, else empty."""
        if self.error:
            return self.error
        return str(self.status_code) if self.status_code >= 500 else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A thread took up (``held``) or let go of an exchange at a time: the raw material of tier ``thread``.

    A thread holds an exchange from the moment it read it until it has been answered (or the connection
    ended). When another thread reads more of the same request, the first lets go and the other takes up.
    A pipelined request is taken up only when the one before it has been answered.
    """

    time_ns: int
    tgid: int
    tid: int
    exchange: int  # Exchange.key
    held: bool
