"""Realtime LLM APIs over a WebSocket: each response of the model is an exchange.

In: the messages of both directions, in order. Out: exchanges, assignments and other facts of requests, appended
to the output. It must not know about frames; the LLM package reads generations from the events.

Events are JSON objects with a ``type`` (https://platform.openai.com/docs/api-reference/realtime): the client asks
by ``response.create``, or the server answers audio input on its own; ``response.created`` … ``response.done`` is one
response, and events in between name it in ``response_id``. vLLM's transcriptions (``transcription.delta`` …
``transcription.done``) have neither creation nor id: the first event begins one.

Example: ``response.create`` (client), ``response.created``, two ``response.output_text.delta``, ``response.done``
is one exchange that starts with the first byte of the first event and ends with the last byte of the last.

Invariant: a response belongs to the first ``response.create`` that has none yet; one that nobody asked for
begins with its own first event.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct

from otelgpu.families.requests.llm import reader as llm
from otelgpu.families.requests.parser_output import ParserOutput
from otelgpu.families.requests.protocol import Call, ConnectionFacts
from otelgpu.model.exchange import Exchange, Named, Opened, Published, Role, StartSource, ThreadAssignment

#: No client has more open responses on one connection.
MAX_OPEN: Final = 64
_MAX_SESSION_BYTES: Final = 65536
_SWITCHED: Final = 101  # the status of the handshake, the only one of a WebSocket


class _Named(msgspec.Struct):
    id: str | None = None


class _Event(msgspec.Struct):
    type: str = ""
    response_id: str | None = None
    response: _Named | None = None


_decode: Final = msgspec.json.Decoder(_Event).decode
#: What msgspec raises on bytes that are not the JSON asked for (bad UTF-8 is a ValueError).
_MALFORMED: Final = (ValueError, RecursionError)


class _Response(Struct, eq=False):
    """A response that is not over."""

    key: int
    ordinal: int
    call: Call  # that brought the first byte of its first event
    start_ns: int
    start_source: StartSource
    request_end_ns: int
    request_bytes: int
    wire_id: bytes
    published: Published | None
    generation: llm.GenerationReader
    id: str = ""  # "" before response.created
    response_bytes: int = 0
    first_byte_ns: int = 0
    named: bool = False


class Realtime:
    """The responses of one WebSocket with that path."""

    __slots__ = (
        "_at_server",
        "_facts",
        "_next_ordinal",
        "_open",
        "_output",
        "_path",
        "_session_event",
    )

    def __init__(self, facts: ConnectionFacts, output: ParserOutput, path: str) -> None:
        self._facts = facts
        self._output = output
        self._path = path
        self._at_server = facts.role is Role.SERVER
        self._next_ordinal = 1  # 0 is the handshake
        self._open: list[_Response] = []
        self._session_event = b""  # the last one: it names the model

    @classmethod
    def of(cls, facts: ConnectionFacts, output: ParserOutput, path: str) -> Realtime | None:
        """Return a reader for a WebSocket with that path, or None when no API that is read has it."""
        return cls(facts, output, path) if llm.realtime_reader(path, output) is not None else None

    @property
    def busy(self) -> bool:
        """Whether a response is under way."""
        return bool(self._open)

    def asked(self, data: bytes, first: Call, last: Call, offset: int) -> None:
        """Take a message of the client that those calls moved; ``offset``: of its first byte in the stream."""
        event = self._event(data)
        if event is None or event.type != "response.create":
            return
        start_ns = first.end_ns if self._at_server else first.begin_ns
        source = StartSource.READ if self._at_server else StartSource.WRITE
        response = self._begin(first, last, start_ns, source, wire_id=self._facts.wire_id(offset))
        if response is None:
            return
        response.request_bytes = len(data)
        if not self._at_server:
            response.published = first.published
        response.generation.request_message(data, start_ns)

    def reported(self, data: bytes, first: Call, last: Call) -> None:
        """Take a message of the server that those calls moved."""
        event = self._event(data)
        if event is None:
            return
        kind = event.type
        if kind.startswith("session."):
            self._session_event = data if len(data) <= _MAX_SESSION_BYTES else b""
            return
        response = self._of(event, first, last)
        if response is None:
            return
        time_ns = first.begin_ns if self._at_server else last.end_ns
        if not response.first_byte_ns:
            response.first_byte_ns = first.begin_ns if self._at_server else first.end_ns
            if self._at_server:
                response.published = first.published
        response.response_bytes += len(data)
        response.generation.response_message(data, time_ns)
        self._name(response, last)
        if kind in ("response.done", "transcription.done"):
            self._finish(response, last.end_ns, "")

    def missed(self) -> None:
        """Note that bytes of the server were not captured: a response may have ended unseen."""
        for response in self._open:
            response.generation.response_gap(0)

    def end(self, time_ns: int, error: str) -> None:
        """Emit what is open."""
        for response in tuple(self._open):
            self._finish(response, time_ns, error)

    def _event(self, data: bytes) -> _Event | None:
        try:
            return _decode(data)
        except _MALFORMED:
            self._output.count("json_malformed")
            return None

    def _of(self, event: _Event, first: Call, last: Call) -> _Response | None:
        """The response that an event is about; None: about none."""
        if event.type.startswith("transcription."):
            identity = ""
        elif event.type.startswith("response."):
            identity = event.response_id or (event.response.id if event.response is not None else None) or ""
        else:
            return None
        for response in self._open:
            if response.id == identity:
                return response
        if event.type == "response.created":
            for response in self._open:
                if not response.id:
                    response.id = identity
                    return response
        elif event.type in ("response.done", "transcription.done"):
            return None  # its beginning was not seen
        begun_ns = first.begin_ns if self._at_server else first.end_ns
        source = StartSource.WRITE if self._at_server else StartSource.READ
        begun = self._begin(first, last, begun_ns, source, wire_id=b"")
        if begun is not None:
            begun.id = identity
        return begun

    def _begin(
        self, first: Call, last: Call, start_ns: int, source: StartSource, *, wire_id: bytes
    ) -> _Response | None:
        output, facts = self._output, self._facts
        if len(self._open) >= MAX_OPEN:
            output.count("responses_not_seen", len(self._open))
            self.end(last.end_ns, "response_not_seen")
        generation = llm.realtime_reader(self._path, output)
        if generation is None:
            return None
        if self._session_event:
            generation.response_message(self._session_event, start_ns)
        response = _Response(
            key=output.new_key(),
            ordinal=self._next_ordinal,
            call=first,
            start_ns=start_ns,
            start_source=source,
            request_end_ns=last.end_ns,
            request_bytes=0,
            wire_id=wire_id,
            published=None,
            generation=generation,
        )
        self._next_ordinal += 1
        self._open.append(response)
        output.opened.append(
            Opened(
                key=response.key,
                tgid=first.tgid,
                tid=first.tid,
                start_ns=start_ns,
                role=facts.role,
                parent=None,
                wire_id=wire_id,
            )
        )
        self._assign(response, last.end_ns, begins=True)
        return response

    def _assign(self, response: _Response, time_ns: int, *, begins: bool, cut: bool = False) -> None:
        if self._at_server:
            call = response.call
            self._output.assignments.append(
                ThreadAssignment(
                    time_ns=time_ns,
                    tgid=call.tgid,
                    tid=call.tid,
                    exchange=response.key,
                    begins=begins,
                    loop=self._facts.nonblocking,
                    cut=cut,
                )
            )

    def _name(self, response: _Response, call: Call) -> None:
        if not response.named and response.generation.request_id:
            response.named = True
            self._output.named.append(
                Named(
                    key=response.key,
                    tgid=call.tgid,
                    request_id=response.generation.request_id,
                    time_ns=call.end_ns,
                )
            )

    def _finish(self, response: _Response, time_ns: int, error: str) -> None:
        self._open.remove(response)
        self._assign(response, time_ns, begins=False, cut=bool(error))
        facts, call, reader = self._facts, response.call, response.generation
        generation = reader.generation()
        self._output.exchanges.append(
            Exchange(
                key=response.key,
                connection=facts.identity,
                ordinal=response.ordinal,
                tgid=call.tgid,
                tid=call.tid,
                cgroup_id=call.cgroup_id,
                start_ns=response.start_ns,
                request_end_ns=response.request_end_ns,
                first_byte_ns=response.first_byte_ns,
                end_ns=time_ns,
                method="GET",
                path=self._path,
                query_present=False,
                protocol_version="13",
                status_code=_SWITCHED if response.first_byte_ns else 0,
                request_bytes=response.request_bytes,
                response_bytes=response.response_bytes,
                server=facts.server,
                client=facts.client,
                user_agent="",
                parent=None,
                error=error or reader.error,
                generation=generation,
                role=facts.role,
                start_source=response.start_source,
                protocol="websocket",
                tls=facts.tls,
                published=response.published,
                wire_id=response.wire_id,
            )
        )
        reader.drop()
