"""The contract of a protocol: a function that recognises it by its first bytes, and a parser of its connections.

The connection (``connection.py``) puts system calls in order and finds the gaps; a parser is given the bytes of each
direction in order, and adds what it found to its :class:`~otelgpu.families.requests.parser_output.ParserOutput`:
``exchanges``, ``assignments``, ``opened``, ``named``, ``messages``, ``count()``. Parsers must not raise on any bytes,
do I/O, read a clock, or grow without bound: what they keep counts against the budget of the output's
``reserve``/``release``.

``from_client`` distinguishes directions whichever endpoint was observed: it is True for bytes that the client sends.
Where the role of the process is unknown, ``recognise`` is called for both directions.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Protocol

import msgspec
from msgspec import Struct

from otelgpu.model.exchange import UNKNOWN_ENDPOINT, Endpoint, Published, Role
from otelgpu.model.tasks import Asked

if TYPE_CHECKING:
    from otelgpu.families.requests.parser_output import ParserOutput


class Call(msgspec.Struct, frozen=True, eq=False, gc=False):
    """The system call (or TLS library call) that moved bytes. Times: CLOCK_MONOTONIC ns.

    Two calls may have equal facts; they are distinguished by identity. One is made for each call, so it is of
    the type that is fastest to create; it is never encoded.
    """

    begin_ns: int
    end_ns: int
    arrival_ns: int  # reads: when the call's first byte came to the host; 0: not known
    tgid: int
    tid: int
    cgroup_id: int
    published: Published | None
    task: int = 0  # that the thread ran, or wrote for (model/tasks.py); 0: none is known
    asked: Asked | None = None  # how that task had the thread's write; None: it is the thread's
    cut: bool = False  # its first bytes may have been lost


class ConnectionFacts(Struct, kw_only=True):
    """What is known of a connection besides its bytes."""

    identity: int
    role: Role
    tls: bool = False
    nonblocking: bool = False  # its calls never block: an event loop's
    late: bool = (
        False  # bytes were moved before observation began: the first ones may be the middle of a message
    )
    lossy: bool = False  # chunks of it were lost: whole messages may have been in them
    request_missed: bool = False  # ... and one of them may have been a request, after all that was seen
    pipelines: bool = False  # a request was read before the one before it was answered
    server: Endpoint = UNKNOWN_ENDPOINT
    client: Endpoint = UNKNOWN_ENDPOINT
    wire_key: bytes = b""  # 4-tuple or pair of Unix sockets, the same at both endpoints; empty: not known
    client_sequence: int | None = None  # TCP sequence number of the client's stream offset 0

    def wire_id(self, client_offset: int) -> bytes:
        """What both endpoints derive alike for a request at this stream offset; empty: not known."""
        if not self.wire_key or self.client_sequence is None:
            return b""
        return self.wire_key + ((self.client_sequence + client_offset) & 0xFFFFFFFF).to_bytes(4, "big")


class Recognition(Enum):
    """Whether a connection's bytes are of a protocol."""

    YES = "yes"
    NO = "no"
    MORE = "more"  # too few bytes to decide


class Parser(Protocol):
    """Reads one connection. Every method may be called at any time, in the order of the calls' sequence."""

    @property
    def busy(self) -> bool:
        """Whether something is under way that an idle connection would not have."""

    @property
    def successor(self) -> Parser | None:
        """The parser that reads on, once the connection changed to another protocol (101, h2c, WebSocket).

        The connection checks it after every call of ``feed``; the successor's bytes of that call were fed to
        it already.
        """

    @property
    def ignored(self) -> bool:
        """Whether the rest of the connection is ignored: invalid bytes, or a protocol that is not read."""

    def feed(self, call: Call, data: bytes, offset: int, *, from_client: bool) -> None:
        """Take the next bytes of a direction; ``offset``: of its first byte in the direction's stream.

        A call's bytes may come in several chunks, with the same ``call``.
        """

    def gap(self, call: Call, size: int, offset: int, *, from_client: bool) -> None:
        """Note that ``size`` bytes of a direction were not captured."""

    def end(self, call: Call, *, from_client: bool) -> None:
        """Note that a direction ended: its reader read end of file, or its writer shut it down."""

    def close(self, time_ns: int) -> None:
        """Note that the process closed the connection: emit what is open. Nothing follows."""

    def abort(self, time_ns: int, error: str) -> None:
        """Emit what is open with that ``error.type``, unless it was answered. Nothing follows."""


class StreamParser(Parser, Protocol):
    """A parser with a short way for what comes most often: a token of a streamed response."""

    def take_streamed(self, data: bytes, begin_ns: int, end_ns: int, task: int) -> bool:
        """Take all bytes that one call moved to the client, in place of ``feed``; False: ``feed`` has to."""


class ProtocolSpec(Struct, frozen=True, kw_only=True):
    """A protocol, as built in or as an entry point of group ``otelgpu.protocols`` gives it.

    ``recognise(data, from_client)`` looks at the first bytes of one direction of a connection, or, on a
    connection found open, of any call: ``late`` is True then. It must be quick and sure: YES is final.
    ``open(facts, output)`` makes a connection's parser. ``sender_of(data)``: of a protocol whose ends send alike,
    whether bytes that were recognised are the client's; None: they do not show it. It is asked where the role of the
    process is not known on a connection found open, which has no first bytes to know it by.
    """

    name: str
    recognise: Callable[[bytes, bool, bool], Recognition]
    open: Callable[[ConnectionFacts, ParserOutput], Parser]
    sender_of: Callable[[bytes], bool | None] | None = None
