"""Parser of ZeroMQ's wire protocol, for the messages between the processes of a serving engine.

In: calls, bytes and gaps of one connection, in order. Out: :class:`~otelgpu.model.engine_messages.EngineMessage` in
``output.messages``. Other ZeroMQ messages are parsed, never kept. Neither endpoint of a ZeroMQ connection
is a client or a server: ``from_client`` only distinguishes the directions.

A connection with CURVE, PLAIN or GSSAPI is given up, and counted; so is ZMTP 1 and 2 (before libzmq 4).
"""

from __future__ import annotations

from typing import Final

from otelgpu.families.requests.engines.messages import Envelope, ZmqEngineReader
from otelgpu.families.requests.parser_output import ParserOutput
from otelgpu.families.requests.protocol import Call, ConnectionFacts, Parser, ProtocolSpec, Recognition
from otelgpu.families.requests.zmtp.frames import (
    SIGNATURE_BYTES,
    Body,
    State,
    ZmtpFrameReader,
    could_be_signature,
    starts_message,
)
from otelgpu.model.exchange import Role


def recognise(data: bytes, from_client: bool, late: bool) -> Recognition:
    """Whether a direction begins with a ZMTP greeting or, on a connection found open, an engine's message."""
    if could_be_signature(data):
        return Recognition.YES if len(data) >= SIGNATURE_BYTES else Recognition.MORE
    return Recognition.YES if late and starts_message(data) else Recognition.NO


class ZmtpParser:
    """Reads one connection: see :class:`~otelgpu.families.requests.protocol.Parser`."""

    __slots__ = ("_connection", "_engine", "_output", "_received", "_role", "_sent")

    def __init__(self, facts: ConnectionFacts, output: ParserOutput) -> None:
        self._output = output
        self._connection = facts.identity
        self._role = facts.role
        self._engine = ZmqEngineReader(output, late=facts.late)
        self._sent = ZmtpFrameReader(output, self._take_sent, late=facts.late)
        self._received = ZmtpFrameReader(output, self._take_received, late=facts.late)

    @property
    def busy(self) -> bool:
        """Whether a message is under way in either direction."""
        return self._sent.busy or self._received.busy

    @property
    def successor(self) -> Parser | None:
        """None: ZMTP does not change to another protocol."""
        return None

    @property
    def ignored(self) -> bool:
        """Whether its mechanism or version is not read."""
        return State.STOPPED in (self._sent.state, self._received.state)

    def feed(self, call: Call, data: bytes, offset: int, *, from_client: bool) -> None:
        """Take the next bytes of a direction."""
        if not self.ignored:
            self._direction(from_client).feed(call, data)

    def gap(self, call: Call, size: int, offset: int, *, from_client: bool) -> None:
        """Note that ``size`` bytes of a direction were not captured."""
        if not self.ignored:
            self._direction(from_client).gap(call, size)

    def end(self, call: Call, *, from_client: bool) -> None:
        """A direction ended: nothing is open that its end would complete."""

    def close(self, time_ns: int) -> None:
        """Forget messages that are under way."""
        self._sent.stop()
        self._received.stop()

    def abort(self, time_ns: int, error: str) -> None:
        """Forget messages that are under way."""
        self.close(time_ns)

    def _direction(self, from_client: bool) -> ZmtpFrameReader:
        return self._sent if from_client == (self._role is Role.CLIENT) else self._received

    def _take_sent(self, bodies: list[Body], first: Call, last: Call) -> None:
        self._read(bodies, first, first.begin_ns, sent=True)

    def _take_received(self, bodies: list[Body], first: Call, last: Call) -> None:
        self._read(bodies, last, last.end_ns, sent=False)

    def _read(self, bodies: list[Body], call: Call, time_ns: int, *, sent: bool) -> None:
        envelope = Envelope(self._connection, time_ns, call.tgid, call.tid, sent, call.published)
        self._output.messages.extend(self._engine.read(bodies, envelope))


SPEC: Final = ProtocolSpec(name="zmtp", recognise=recognise, open=ZmtpParser)
