"""An example of a protocol plug-in: commands of Redis and compatible servers become spans.

Format: RESP2 and RESP3, https://redis.io/docs/latest/develop/reference/protocol-spec/. A client sends arrays of
bulk strings, the server one value for each, in order. Keys and values are never kept, only the command's name.

What it leaves out, to stay an example: pub/sub (a server that pushes), inline commands, and connections found
open in the middle. After a gap that loses the framing the connection is ignored.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from otelgpu.families.requests.parser_output import ParserOutput
from otelgpu.families.requests.protocol import Call, ConnectionFacts, Parser, ProtocolSpec, Recognition
from otelgpu.model.exchange import Exchange, Opened, Role, StartSource, ThreadAssignment
from otelgpu_resp.values import InvalidResp, ValueReader

MAX_OPEN: Final = 1024


class Command:
    """A command without a reply so far."""

    def __init__(self, key: int, ordinal: int, call: Call, offset: int) -> None:
        self.key = key
        self.ordinal = ordinal
        self.call = call
        self.offset = offset
        self.name = ""
        self.request_bytes = 0
        self.request_end_ns = 0


class Resp:
    """The parser of one connection."""

    def __init__(self, facts: ConnectionFacts, output: ParserOutput) -> None:
        self.facts = facts
        self.output = output
        self.ignored = False
        self.successor: Parser | None = None
        self._at_server = facts.role is Role.SERVER
        self._requests, self._responses = ValueReader(), ValueReader()
        self._commands: deque[Command] = deque()
        self._ordinal = 0
        self._first: tuple[Call, int] | None = None  # where the command under way began
        self._answer_began_ns = 0

    @property
    def busy(self) -> bool:
        return bool(self._commands)

    def feed(self, call: Call, data: bytes, offset: int, *, from_client: bool) -> None:
        reader = self._requests if from_client else self._responses
        position = 0
        try:
            while position < len(data):
                if not reader.busy:
                    self._begin(call, offset + position, from_client=from_client)
                position = reader.feed(data, position)
                if not reader.busy:
                    self._end(call, offset + position, reader, from_client=from_client)
        except InvalidResp:
            self._give_up(call.end_ns, "invalid_resp")

    def gap(self, call: Call, size: int, offset: int, *, from_client: bool) -> None:
        if not (self._requests if from_client else self._responses).skip(size):
            self._give_up(call.end_ns, "capture_gap")

    def end(self, call: Call, *, from_client: bool) -> None:
        if not from_client:
            self._give_up(call.end_ns, "connection_closed")

    def close(self, time_ns: int) -> None:
        self._give_up(time_ns, "connection_closed")

    def abort(self, time_ns: int, error: str) -> None:
        self._give_up(time_ns, error)

    def _begin(self, call: Call, offset: int, *, from_client: bool) -> None:
        if from_client:
            self._first = (call, offset)
        else:
            self._answer_began_ns = call.begin_ns if self._at_server else call.end_ns

    def _end(self, call: Call, offset: int, reader: ValueReader, *, from_client: bool) -> None:
        if from_client:
            if len(self._commands) >= MAX_OPEN:
                raise InvalidResp
            self._open(call, offset, reader.first_text)
        elif self._commands:
            self._finish(self._commands.popleft(), call.end_ns, reader.error, answered=True)
        else:
            self.output.count("unsolicited")

    def _open(self, call: Call, end: int, name: str) -> None:
        first, offset = self._first or (call, end)
        command = Command(self.output.new_key(), self._ordinal, first, offset)
        self._ordinal += 1
        command.name = name.upper()
        command.request_bytes = end - offset
        command.request_end_ns = call.end_ns
        self._commands.append(command)
        self.output.opened.append(
            Opened(
                key=command.key,
                tgid=first.tgid,
                tid=first.tid,
                start_ns=self._start_ns(first),
                role=self.facts.role,
                parent=None,
                wire_id=self.facts.wire_id(offset),
            )
        )
        self._assign(command, call.end_ns, begins=True)

    def _start_ns(self, call: Call) -> int:
        return call.end_ns if self._at_server else call.begin_ns

    def _assign(self, command: Command, time_ns: int, *, begins: bool) -> None:
        if self._at_server:
            call = command.call
            self.output.assignments.append(
                ThreadAssignment(
                    time_ns=time_ns, tgid=call.tgid, tid=call.tid, exchange=command.key, begins=begins
                )
            )

    def _finish(self, command: Command, time_ns: int, error: str, *, answered: bool) -> None:
        call, facts = command.call, self.facts
        self._assign(command, time_ns, begins=False)
        self.output.exchanges.append(
            Exchange(
                key=command.key,
                connection=facts.identity,
                ordinal=command.ordinal,
                tgid=call.tgid,
                tid=call.tid,
                cgroup_id=call.cgroup_id,
                start_ns=self._start_ns(call),
                request_end_ns=command.request_end_ns,
                first_byte_ns=self._answer_began_ns if answered else 0,
                end_ns=time_ns,
                method=command.name,
                path="",
                query_present=False,
                protocol_version="",
                status_code=0,
                request_bytes=command.request_bytes,
                response_bytes=self._responses.size if answered else 0,
                server=facts.server,
                client=facts.client,
                user_agent="",
                parent=None,
                error=error,
                generation=None,
                role=facts.role,
                start_source=StartSource.READ if self._at_server else StartSource.WRITE,
                protocol="resp",
                tls=facts.tls,
                published=call.published,
                wire_id=facts.wire_id(command.offset),
                span_name=command.name or "resp",
                attributes=(("db.system.name", "redis"), ("db.operation.name", command.name)),
            )
        )

    def _give_up(self, time_ns: int, error: str) -> None:
        while self._commands:
            self._finish(self._commands.popleft(), time_ns, error, answered=False)
        self.ignored = True


def recognise(data: bytes, from_client: bool, late: bool) -> Recognition:
    """A client begins with an array of bulk strings: ``*2\\r\\n$3\\r\\nGET…``."""
    if late or not from_client or data[:1] != b"*":
        return Recognition.NO
    count, line_end, rest = data[1:].partition(b"\r\n")
    if (count and not count.isdigit()) or len(count) > 4:
        return Recognition.NO
    if not line_end or not rest:
        return Recognition.MORE
    return Recognition.YES if rest[:1] == b"$" else Recognition.NO


SPEC: Final = ProtocolSpec(name="resp", recognise=recognise, open=Resp)
