"""One connection, whatever it speaks: chunks of what its system calls moved become bytes in order, and holes.

In: the chunks of ``struct http_data_*`` in the order of their sequence, then the close. Out: calls on the
parser of the protocol that the first bytes report; its results go to the output. It must not raise on any
bytes, read a clock, know numpy, or know a protocol but by its
:class:`~otelgpu.families.requests.protocol.ProtocolSpec`.

Invariant: a parser is given each byte of a direction once, in order, by ``feed`` or by ``gap``, whichever way
system calls and records cut them. Where ``stream_offset`` jumps, bytes were not captured: a gap. Where a call
moved more bytes than came with its chunks, the rest is a gap as soon as nothing more of it can come.

Example, a connection that was accepted, of which the process read ``GE`` and then ``T / HTTP/1.1…``: nobody
knows ``GE``, so it is kept; with the second call HTTP/1 says yes, its parser is opened, and it is fed both calls.

Undecided bytes are kept up to 64 in a direction. On a connection found open they are not: the parser begins
with the first call whose bytes some protocol knows for the start of something.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence

from otelgpu.families.requests.endpoints import NO_ENDPOINTS, ConnectionEndpoints
from otelgpu.families.requests.parser_output import ParserOutput
from otelgpu.families.requests.protocol import Call, ConnectionFacts, Parser, ProtocolSpec, Recognition
from otelgpu.model.exchange import Published, Role

#: All chunks of a call are numbered this long after it returned at most.
NUMBERED_WITHIN_NS = 20_000
#: Bytes of a direction by which a protocol must be known.
MAX_UNDECIDED_BYTES = 64
#: Calls of a direction, on a connection found open, by which its protocol must be known.
MAX_UNDECIDED_CALLS = 4096
#: Results that say "not now": nothing moved and nothing is wrong.
_WAITS = frozenset(-e for e in (errno.EAGAIN, errno.EINTR, 512, 513, 514, 516))  # 51x: ERESTART*
#: Results after which the connection carries nothing more.
_DEAD = frozenset(
    -e for e in (errno.EPIPE, errno.ECONNRESET, errno.ECONNABORTED, errno.ETIMEDOUT, errno.ENOTCONN)
)

#: time_ns, end_ns, tgid, tid, cgroup_id, arrival_ns, published, stream_offset, result, direction, data
DataChunk = tuple[int, int, int, int, int, int, Published | None, int, int, int, bytes]
#: What the protocols say of some bytes: who of them is sure, and whether they are the client's.
Answer = tuple[Recognition, ProtocolSpec | None, bool]

_NOBODY: Answer = (Recognition.NO, None, False)

_NO_CALL = Call(-1, 0, 0, 0, -1, 0, None)


class _Stream:
    """One direction: where it stands, the call that moved bytes last, and what is kept of its start."""

    __slots__ = ("call", "calls", "end_offset", "head", "offset", "writes")

    def __init__(self, *, writes: bool, late: bool) -> None:
        self.writes = writes
        self.offset = -1 if late else 0  # of the next byte
        self.call = _NO_CALL
        self.end_offset = -1  # the stream offset at which the call's bytes end
        self.head = b""  # undecided bytes
        self.calls = 0  # undecided calls


Step = tuple[_Stream, Call, bytes, int]


class Connection:
    """State of one connection. ``facts.late``: its first bytes may have been moved before we looked."""

    __slots__ = (
        "_at_client",
        "_reads",
        "_specs",
        "_steps",
        "_writes",
        "close_at",
        "endpoints",
        "facts",
        "held",
        "held_bytes",
        "ignored",
        "last_ns",
        "next_sequence",
        "opened",
        "output",
        "parser",
        "tgid",
    )

    def __init__(
        self, facts: ConnectionFacts, output: ParserOutput, specs: Sequence[ProtocolSpec], *, opened: bool
    ) -> None:
        self.facts = facts
        self.opened = opened
        self.ignored = False
        # For the owner, which knows processes and brings the chunks into order:
        self.tgid = -1
        self.last_ns = 0
        self.next_sequence = 0
        self.held: dict[int, DataChunk] = {}
        self.held_bytes = 0
        self.close_at: tuple[int, int] | None = None  # time_ns and number of chunks

        self.output = output
        self.endpoints = NO_ENDPOINTS
        self.parser: Parser | None = None
        self._specs = specs
        self._reads = _Stream(writes=False, late=facts.late)
        self._writes = _Stream(writes=True, late=facts.late)
        self._steps: list[Step] = []  # what an undecided connection was reported
        self._at_client = facts.role is Role.CLIENT

    def learn(self, endpoints: ConnectionEndpoints) -> None:
        """Take what the record of its opening reports."""
        self.endpoints = endpoints
        if self.parser is None and self.facts.role is Role.UNKNOWN:
            self.facts.role = endpoints.role
            self._at_client = endpoints.role is Role.CLIENT
        endpoints.report(self.facts)

    @property
    def busy(self) -> bool:
        """Whether something is under way that an idle connection would not have."""
        return self.parser is not None and self.parser.busy

    def take(self, chunk: DataChunk, write: bool) -> None:
        """Take the next chunk. Never raises on what is in it."""
        if self.ignored:
            return
        time_ns, end_ns, tgid, tid, cgroup_id, arrival_ns, published, offset, result, _, data = chunk
        stream, other = (self._writes, self._reads) if write else (self._reads, self._writes)
        if stream.offset < 0:
            stream.offset = offset
        call = stream.call
        fresh = time_ns != call.begin_ns or tid != call.tid
        if fresh:
            if stream.end_offset > stream.offset:
                self._settle(stream)
            if other.end_offset > other.offset and (
                tid == other.call.tid or time_ns > other.call.end_ns + NUMBERED_WITHIN_NS
            ):
                self._settle(other)
            stream.call = call = Call(time_ns, end_ns, arrival_ns, tgid, tid, cgroup_id, published)
            stream.end_offset = offset + result if result > 0 else -1
        if result <= 0 and not data:
            self._nothing_moved(call, result, write)
            return
        if offset != stream.offset:
            data = self._align(stream, call, offset, data)
            offset = stream.offset
        if not data or self.ignored:
            return
        stream.offset = offset + len(data)
        parser = self.parser
        if parser is None:
            self._recognise(stream, call, data, offset, fresh=fresh)
            return
        parser.feed(call, data, offset, from_client=write is self._at_client)
        if parser.ignored or parser.successor is not None:
            self._move_on(parser)

    @property
    def unsettled(self) -> bool:
        """Whether a call moved bytes of which the end has not come, and may never."""
        reads, writes = self._reads, self._writes
        return not self.ignored and (reads.end_offset > reads.offset or writes.end_offset > writes.offset)

    def settle(self, before_ns: int) -> None:
        """Pass over what calls that returned by ``before_ns`` left out; no more of it will come."""
        for stream in (self._reads, self._writes):
            if stream.call.end_ns <= before_ns:
                self._settle(stream)

    def close(self, time_ns: int) -> None:
        """The process closed it."""
        self._settle_all()
        if self.parser is not None:
            self.parser.close(time_ns)
        self._ignore()

    def abort(self, time_ns: int, error: str) -> None:
        """It carries nothing more: give out what is open, with that error unless it was answered."""
        self._settle_all()
        if self.parser is not None:
            self.parser.abort(time_ns, error)
        self._ignore()

    def _ignore(self) -> None:
        """Take nothing more from this connection; its parser must have given out what was open."""
        self.ignored = True
        self.parser = None
        self._steps.clear()

    def _settle_all(self) -> None:
        self._settle(self._reads)
        self._settle(self._writes)

    def _settle(self, stream: _Stream) -> None:
        size = stream.end_offset - stream.offset
        if size > 0 and not self.ignored:
            self._pass_over(stream, stream.call, size)

    def _align(self, stream: _Stream, call: Call, offset: int, data: bytes) -> bytes:
        """Bring the stream to a chunk's offset: pass over a hole, or drop what was there before."""
        size = offset - stream.offset
        if size > 0:
            self._pass_over(stream, call, size)
            return data
        self.output.count("bytes_repeated", min(-size, len(data)))
        return data[-size:]

    def _pass_over(self, stream: _Stream, call: Call, size: int) -> None:
        offset = stream.offset
        stream.offset = offset + size
        parser = self.parser
        if parser is not None:
            parser.gap(call, size, offset, from_client=stream.writes is self._at_client)
            if parser.ignored or parser.successor is not None:
                self._move_on(parser)
            return
        self.output.count("late_bytes_skipped", size)
        if not self.facts.late:
            self._begin_late()

    def _nothing_moved(self, call: Call, result: int, write: bool) -> None:
        if result == 0:
            if not write and self.parser is not None:
                self.parser.end(call, from_client=not self._at_client)
        elif result not in _WAITS:
            self.output.count("socket_errors")
            if result in _DEAD:
                self.abort(call.end_ns, "connection_closed")

    def _move_on(self, parser: Parser) -> None:
        """Let the successor read on, or nobody."""
        while parser.successor is not None and not parser.ignored:
            parser = parser.successor
        if parser.ignored:
            self._ignore()
        else:
            self.parser = parser

    # Which protocol it speaks

    def _recognise(self, stream: _Stream, call: Call, data: bytes, offset: int, *, fresh: bool) -> None:
        """Take bytes of a connection of which nobody knows what it speaks; ``fresh``: the first of a call."""
        late = self.facts.late
        if late:
            stream.calls += fresh
            answer = self._ask(stream, data, late=True) if fresh else _NOBODY
        else:
            self._steps.append((stream, call, data, offset))
            stream.head += data
            answer = self._ask(stream, stream.head, late=False)
        recognition, spec, from_client = answer
        if spec is not None:
            self._use_protocol(spec, Role.CLIENT if stream.writes is from_client else Role.SERVER)
            self._replay(self._steps or [(stream, call, data, offset)])
        elif late:
            self.output.count("late_bytes_skipped", len(data))
            if min(self._reads.calls, self._writes.calls) >= MAX_UNDECIDED_CALLS:
                self._give_up()
        elif recognition is Recognition.NO or len(stream.head) >= MAX_UNDECIDED_BYTES:
            self._give_up()

    def _ask(self, stream: _Stream, data: bytes, *, late: bool) -> Answer:
        """Ask every protocol whether it knows the bytes; the first that is sure has them."""
        if self.facts.role is Role.UNKNOWN:
            spoke_first = not self._steps or self._steps[0][0] is stream
            ways = [True, False] if spoke_first else [False, True]
        else:
            ways = [stream.writes is self._at_client]
        best = _NOBODY
        for spec in self._specs:
            for from_client in ways:
                recognition = spec.recognise(data, from_client, late)
                if recognition is Recognition.YES:
                    return recognition, spec, from_client
                if recognition is Recognition.MORE:
                    best = (recognition, None, from_client)
        return best

    def _use_protocol(self, spec: ProtocolSpec, role: Role) -> None:
        self.facts.role = role
        self._at_client = role is Role.CLIENT
        self.endpoints.report(self.facts)
        self.parser = spec.open(self.facts, self.output)

    def _replay(self, steps: list[Step]) -> None:
        """Report the parser what came before it."""
        self._steps = []
        self._reads.head = self._writes.head = b""
        for stream, call, data, offset in steps:
            parser = self.parser
            if parser is None:
                return
            parser.feed(call, data, offset, from_client=stream.writes is self._at_client)
            self._move_on(parser)

    def _begin_late(self) -> None:
        """Bytes are missing before a protocol was known: as if it had been found open."""
        self.facts.late = True
        self.output.count("late_bytes_skipped", sum(len(data) for _, _, data, _ in self._steps))
        self._steps.clear()

    def _give_up(self) -> None:
        self.output.count("protocol_unknown")
        self._ignore()
