"""An exchange that is not finished: what :class:`~otelgpu.model.exchange.Exchange` is made of, in the making.

It holds facts only; ``connection`` decides when each becomes known.
"""

from __future__ import annotations

from otelgpu.families.http.framing import Head
from otelgpu.families.http.llm import GenerationReader
from otelgpu.families.http.trace_context import parse_trace_context
from otelgpu.model.exchange import Endpoint, Exchange, TraceParent

SWITCHING_PROTOCOLS = 101
MAX_PATH = 1024
MAX_USER_AGENT = 256


class OpenExchange:
    """One request and its response while they go on. Field names are those of ``Exchange``."""

    __slots__ = (
        "answered",
        "cgroup_id",
        "end_ns",
        "error",
        "first_byte_ns",
        "framing_lost",
        "generation",
        "head_seen",
        "key",
        "method",
        "ordinal",
        "parent",
        "path",
        "protocol_version",
        "query_present",
        "request_bytes",
        "request_done",
        "request_end_ns",
        "response_bytes",
        "start_ns",
        "status_code",
        "tgid",
        "tid",
        "user_agent",
    )

    def __init__(self, *, key: int, ordinal: int, tgid: int, tid: int, cgroup_id: int, start_ns: int) -> None:
        self.key = key
        self.ordinal = ordinal
        self.tgid = tgid
        self.tid = tid
        self.cgroup_id = cgroup_id
        self.start_ns = start_ns
        self.request_end_ns = 0
        self.first_byte_ns = 0
        self.end_ns = 0
        self.method = ""
        self.path = ""
        self.query_present = False
        self.protocol_version = ""
        self.status_code = 0
        self.request_bytes = 0
        self.response_bytes = 0
        self.user_agent = ""
        self.parent: TraceParent | None = None
        self.error = ""
        self.generation: GenerationReader | None = None
        self.head_seen = False  # of the request
        self.request_done = False  # no byte of the request is to come, or none that could be told
        self.answered = False  # the response is complete
        self.framing_lost = False  # where the response ends is unknown

    @property
    def upgrades(self) -> bool:
        """Whether the connection speaks another protocol after the response (RFC 9110, 7.8 and 9.3.6)."""
        tunnel = self.method == "CONNECT" and 200 <= self.status_code < 300
        return tunnel or self.status_code == SWITCHING_PROTOCOLS

    def fill(self, head: Head) -> None:
        """Take what the request's head says."""
        self.head_seen = True
        self.method = head.method
        self.protocol_version = head.version
        target, question_mark, _ = head.target.partition(b"?")
        if target.startswith((b"http://", b"https://")):  # absolute form, RFC 9112, section 3.2.2
            target = b"/" + target.split(b"/", 3)[3] if target.count(b"/") > 2 else b"/"  # fmt: skip
        self.path = target[:MAX_PATH].decode("utf-8", "replace")
        self.query_present = bool(question_mark)
        self.user_agent = head.last(b"user-agent")[:MAX_USER_AGENT].decode("utf-8", "replace")
        parents = head.all(b"traceparent")
        if parents:
            self.parent = parse_trace_context(parents, head.all(b"tracestate"))

    def finish(self, *, connection: int, server: Endpoint, client: Endpoint) -> Exchange:
        """Return the finished form."""
        generation = self.generation
        return Exchange(
            key=self.key,
            connection=connection,
            ordinal=self.ordinal,
            tgid=self.tgid,
            tid=self.tid,
            cgroup_id=self.cgroup_id,
            start_ns=self.start_ns,
            request_end_ns=self.request_end_ns,
            first_byte_ns=self.first_byte_ns,
            end_ns=self.end_ns,
            method=self.method,
            path=self.path,
            query_present=self.query_present,
            protocol_version=self.protocol_version,
            status_code=self.status_code,
            request_bytes=self.request_bytes,
            response_bytes=self.response_bytes,
            server=server,
            client=client,
            user_agent=self.user_agent,
            parent=self.parent,
            error=self.error or (generation.error if generation is not None else ""),
            generation=generation.generation() if generation is not None else None,
        )
