"""An exchange that is not finished: the mutable form of :class:`~otelgpu.model.exchange.Exchange`.

It holds facts only; the parser decides when each becomes known.
"""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct

from otelgpu.families.requests.http1.framing import Head
from otelgpu.families.requests.llm.reader import GenerationReader
from otelgpu.families.requests.protocol import Call, ConnectionFacts
from otelgpu.families.requests.trace_context import parse_trace_context
from otelgpu.model.exchange import UNSEEN, Exchange, Opened, Published, Rpc, StartSource, TraceParent
from otelgpu.model.tasks import Asked, TaskService, stream_task

SWITCHING_PROTOCOLS = 101
MAX_PATH = 1024
MAX_USER_AGENT = 256
MAX_UPGRADE = 32
_ABSOLUTE: Final = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*://[^/]*")
_WRITE: Final = StartSource.WRITE
_PARAMETERS: Final = re.compile(rb";[^/]*")
_NOTHING_TO_CUT: Final = re.compile(rb"/[^?#;]*").fullmatch


def path_of(target: bytes) -> tuple[bytes, bool]:
    """The path of a request target, in any form of RFC 9112, section 3.2, and whether a query was cut off.

    What may hold credentials goes: query, fragment, userinfo, and the parameters of each segment (``;jsessionid=…``;
    RFC 3986, section 3.3). Of ``CONNECT`` the authority is left.
    """
    if _NOTHING_TO_CUT(target) is not None:
        return target, False
    target, question_mark, _ = target.partition(b"#")[0].partition(b"?")
    if not target.startswith(b"/"):
        absolute = _ABSOLUTE.match(target)
        target = target.rpartition(b"@")[2] if absolute is None else target[absolute.end() :] or b"/"
    if b";" in target:
        target = _PARAMETERS.sub(b"", target)
    return target, bool(question_mark)


class OpenExchange(Struct, eq=False):
    """One request and its response while they go on. Field names are those of ``Exchange``."""

    key: int
    ordinal: int
    tgid: int
    tid: int
    cgroup_id: int
    start_ns: int
    start_source: StartSource
    read_ns: int
    taken_ns: int  # from when on it can be assigned to a thread
    request_end_ns: int
    first_byte_ns: int = 0
    end_ns: int = 0
    method: str = ""
    path: str = ""
    query_present: bool = False
    protocol_version: str = ""
    status_code: int = 0
    request_bytes: int = 0
    response_bytes: int = 0
    user_agent: str = ""
    parent: TraceParent | None = None
    published: Published | None = None
    rpc: Rpc | None = None
    wire_id: bytes = b""
    upgrade: str = ""  # the protocol that the client asked to change to, then, that the server agreed to
    websocket_extensions: bytes = b""  # that the server agreed to
    named: bool = False  # the id of its response was reported
    error: str = ""
    generation: GenerationReader | None = None
    head_seen: bool = False  # of the request
    request_done: bool = False  # no byte of the request is to come, or none that can be attributed to it
    answered: bool = False  # the response is complete
    framing_lost: bool = False  # where the response ends is unknown
    paired: bool = True  # False: a response that comes next may be another's; nothing of it is said
    task: int = 0  # servers: wrote the first bytes of the response; clients: of the request
    asked: Asked | None = None  # clients: how the task had another one write the request
    begun_ns: int = 0  # servers with tasks: from when on the one that answers may have worked for it
    reader: int = 0  # ... that read the end of the head
    stream_ns: int = 0  # ... when the response began, if that is a stream; 0: it is none
    task_ns: int = 0  # ... its last write of the response
    task_known: bool = True  # False: bytes are missing, whatever comes may be another response's

    @classmethod
    def begin(
        cls, *, key: int, ordinal: int, call: Call, start_ns: int, start_source: StartSource
    ) -> OpenExchange:
        """One of which the call moved the first byte."""
        end_ns = call.end_ns
        return cls(  # in the order of its fields, as Exchange is made
            key,
            ordinal,
            call.tgid,
            call.tid,
            call.cgroup_id,
            start_ns,
            start_source,
            0 if start_source is _WRITE else end_ns,
            end_ns,
            end_ns,
        )

    @property
    def upgrades(self) -> bool:
        """Whether the connection changes to another protocol after the response (RFC 9110, 7.8 and 9.3.6)."""
        tunnel = self.method == "CONNECT" and 200 <= self.status_code < 300
        return tunnel or self.status_code == SWITCHING_PROTOCOLS

    def asked_by(self, call: Call) -> None:
        """A client's call wrote the first bytes of the request."""
        self.published, self.task, self.asked = call.published, call.task, call.asked

    def written_by(self, task: int, end_ns: int, *, first: int = 0) -> None:
        """A server's task wrote bytes that are known to be of the response; ``first``: that of the first ones."""
        if self.task_known and (self.task or first):
            self.task = self.task or first
            if task == self.task:
                self.task_ns = end_ns

    @property
    def has_task(self) -> bool:
        """Of a server: whether a task has served it, or may have; :meth:`service` says what is known of it."""
        return bool(self.begun_ns or (self.task and self.first_byte_ns))

    def service(self, connection: int, *, is_over: bool, is_framed: bool = False) -> TaskService:
        """What is known of the task that serves it. ``is_framed``: it is a stream of HTTP/2.

        A stream may be written by a task that was started for it (Starlette's, anyio's), whose number was another's
        before: unless the same one has read the request, only what it does from its first write on is known to be its.
        So it is where the request was read by no task: of a thread of CPython that had none before.
        """
        began_before = bool(self.begun_ns) and (not self.stream_ns or self.task == self.reader)
        written_ns = self.stream_ns or self.first_byte_ns
        return TaskService(
            exchange=self.key,
            connection=connection,
            is_read_by_task=self.task == self.reader,
            tgid=self.tgid,
            begin_ns=self.begun_ns if began_before else max(self.begun_ns, written_ns),
            is_over=is_over,
            task=self.task if is_over else 0,
            is_framed=is_framed,
            end_ns=self.task_ns,
        )

    def stream_service(self, connection: int, stream: int) -> TaskService | None:
        """That of a stream of HTTP/2, which is over, by the one that serves it in Go, whoever writes the response."""
        task = stream_task(self.reader, stream)
        if not task:
            return None
        return TaskService(
            exchange=self.key,
            connection=connection,
            tgid=self.tgid,
            begin_ns=self.begun_ns,
            is_over=True,
            task=task,
            end_ns=self.end_ns,
        )

    def fill(self, head: Head) -> None:
        """Take the request's head."""
        self.head_seen = True
        self.method = head.method
        self.protocol_version = head.version
        path, self.query_present = path_of(head.target)
        self.path = path[:MAX_PATH].decode("utf-8", "replace")
        if not head.values:
            return
        self.user_agent = head.last(b"user-agent")[:MAX_USER_AGENT].decode("utf-8", "replace")
        self._take_upgrade(head)
        parents = head.all(b"traceparent")
        if parents:
            self.parent = parse_trace_context(parents, head.all(b"tracestate"))

    def opened(self, facts: ConnectionFacts) -> Opened:
        """What its span's identity is made of; once its head was taken, on a connection with these facts."""
        return Opened(
            key=self.key,
            tgid=self.tgid,
            tid=self.tid,
            start_ns=self.start_ns,
            role=facts.role,
            parent=self.parent,
            wire_id=self.wire_id,
            task=self.task,
            asked=self.asked,
            path=self.path,
            user_agent=self.user_agent,
            method=self.method,
            tls=facts.tls,
        )

    def agree(self, head: Head) -> None:
        """Take the response's header fields on a change of protocol."""
        self._take_upgrade(head)
        self.websocket_extensions = head.last(b"sec-websocket-extensions")

    def _take_upgrade(self, head: Head) -> None:
        upgrade = head.last(b"upgrade")
        if upgrade:
            self.upgrade = upgrade[:MAX_UPGRADE].decode("latin-1").lower()

    def finish(self, facts: ConnectionFacts) -> Exchange:
        """Return the finished form, on a connection with these facts."""
        generation = self.generation
        if generation is not None and self.error in UNSEEN and not self.answered:
            generation.response_gap(0)
        # In the order of its fields: a test compares them by name.
        return Exchange(
            self.key,
            facts.identity,
            self.ordinal,
            self.tgid,
            self.tid,
            self.cgroup_id,
            self.start_ns,
            self.request_end_ns,
            self.first_byte_ns,
            self.end_ns,
            self.method,
            self.path,
            self.query_present,
            self.protocol_version,
            self.status_code,
            self.request_bytes,
            self.response_bytes,
            facts.server,
            facts.client,
            self.user_agent,
            self.parent,
            self.error or (generation.error if generation is not None else ""),
            generation.generation() if generation is not None else None,
            facts.role,
            self.start_source,
            self.read_ns,
            facts.tls,
            self.rpc,
            self.published,
            self.task,
            self.asked,
            self.answered,
            self.wire_id,
        )
