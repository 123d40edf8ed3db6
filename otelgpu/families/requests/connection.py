"""One connection of any protocol: the chunks that its system calls moved become bytes in order, and gaps.

In: the chunks of ``struct http_data_*`` in the order of their sequence, then the close. Out: calls on the
parser of the protocol that is detected by the first bytes; its results go to the output. It must not raise on any
bytes, read a clock, use numpy, or know of a protocol more than its
:class:`~otelgpu.families.requests.protocol.ProtocolSpec`.

Invariant: a parser is given each byte of a direction once, in order, by ``feed`` or by ``gap``, however
system calls and records split them. Where ``stream_offset`` jumps, bytes were not captured: a gap. Where a call
moved more bytes than came with its chunks, the rest is a gap as soon as nothing more of it can come; of a call whose
first chunk was lost nobody knows where it ends, so that is left to the next call's offset.

Example, a connection that was accepted, of which the process read ``GE`` and then ``T / HTTP/1.1…``: no
protocol recognises ``GE``, so it is kept; with the second call HTTP/1 answers YES, its parser is opened and fed both.

Up to 64 undecided bytes are kept in each direction. On a connection found open none are: the parser begins with the
first call whose bytes some protocol recognises as the start of a message.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence

from otelgpu.families.requests.endpoints import NO_ENDPOINTS, ConnectionEndpoints
from otelgpu.families.requests.parser_output import ParserOutput
from otelgpu.families.requests.protocol import Call, ConnectionFacts, Parser, ProtocolSpec, Recognition
from otelgpu.model.exchange import Published, Role
from otelgpu.model.shares import Share
from otelgpu.model.tasks import Asked

#: All chunks of a call are numbered this long after it returned at most.
NUMBERED_WITHIN_NS = 20_000
#: Bytes of a direction by which a protocol must be known.
MAX_UNDECIDED_BYTES = 64
#: Calls of a direction, on a connection found open, by which its protocol must be known.
MAX_UNDECIDED_CALLS = 4096
#: Results of calls that would block or were interrupted: no bytes moved, no error.
_WAITS = frozenset(-e for e in (errno.EAGAIN, errno.EINTR, 512, 513, 514, 516))  # 51x: ERESTART*
#: Results after which the connection carries nothing more.
_DEAD = frozenset(
    -e for e in (errno.EPIPE, errno.ECONNRESET, errno.ECONNABORTED, errno.ETIMEDOUT, errno.ENOTCONN)
)

#: As of Call: begin_ns, end_ns, tgid, tid, cgroup_id, arrival_ns, published, task, asked; stream_offset, result,
#: direction, data
DataChunk = tuple[int, int, int, int, int, int, Published | None, int, Asked | None, int, int, int, bytes]
#: Which protocol recognised some bytes, and whether the client sent them.
RecognitionResult = tuple[Recognition, ProtocolSpec | None, bool]

_UNRECOGNISED: RecognitionResult = (Recognition.NO, None, False)

_DROPPED = "not_reported"

_NO_CALL = Call(-1, 0, 0, 0, -1, 0, None)


class _Direction:
    """One direction: its offset, the call that moved bytes last, and the bytes kept until a protocol is detected."""

    __slots__ = ("call", "calls", "end_offset", "head", "may_begin_within", "missed", "offset", "writes")

    def __init__(self, *, writes: bool, late: bool, lossy: bool = False) -> None:
        self.writes = writes
        self.may_begin_within = (
            lossy  # of the call that its next chunk is of, the first one may have been lost
        )
        self.missed = False  # chunks were lost since its last one that may have been of it
        self.offset = -1 if late else 0  # of the next byte
        self.call = _NO_CALL
        self.end_offset = -1  # the stream offset at which the call's bytes end
        self.head = b""  # undecided bytes
        self.calls = 0  # undecided calls


Step = tuple[_Direction, Call, bytes, int]


class Connection:
    """State of one connection. ``facts.late``: its first bytes may have been moved before observation began."""

    __slots__ = (
        "_at_client",
        "_reads",
        "_specs",
        "_steps",
        "_take_streamed",
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
        "placed",
        "places",
        "put_off",
        "tgid",
    )

    def __init__(
        self, facts: ConnectionFacts, output: ParserOutput, specs: Sequence[ProtocolSpec], *, opened: bool
    ) -> None:
        self.facts = facts
        self.opened = opened
        self.ignored = False
        # For the owner, which knows processes and puts the chunks in order:
        self.tgid = -1
        self.last_ns = 0
        self.next_sequence = 0
        self.held: dict[int, DataChunk] = {}
        self.held_bytes = 0
        self.put_off = False  # what is held waits for a turn
        self.places: Share | None = None  # of which what is held has ``placed`` bytes
        self.placed = 0
        self.close_at: tuple[int, int] | None = None  # time_ns and number of chunks

        self.output = output
        self.endpoints = NO_ENDPOINTS
        self.parser: Parser | None = None
        self._take_streamed: Callable[[bytes, int, int, int], bool] | None = None  # of a StreamParser
        self._specs = specs
        self._reads = _Direction(writes=False, late=facts.late)
        self._writes = _Direction(writes=True, late=facts.late)
        self._steps: list[Step] = []  # what was fed before a protocol was detected
        self._at_client = facts.role is Role.CLIENT

    def learn(self, endpoints: ConnectionEndpoints) -> None:
        """Take the endpoints, of the record of its opening."""
        self.endpoints = endpoints
        if self.parser is None and self.facts.role is Role.UNKNOWN:
            self.facts.role = endpoints.role
            self._at_client = endpoints.role is Role.CLIENT
        endpoints.fill(self.facts)

    @property
    def busy(self) -> bool:
        """Whether something is under way that an idle connection would not have."""
        return self.parser is not None and self.parser.busy

    def take(self, chunk: DataChunk, write: bool) -> None:
        """Take the next chunk. Never raises on what is in it."""
        if self.ignored:
            return
        time_ns, end_ns, tgid, tid, cgroup, arrival_ns, published, task, asked, offset, result, _, data = (
            chunk
        )
        direction, other = (self._writes, self._reads) if write else (self._reads, self._writes)
        whole = (
            offset == direction.offset or not direction.may_begin_within
        )  # the chunk is the first of its call
        if (
            direction.offset < 0
        ):  # it counts from here on; if chunks were lost since then, there was a byte before
            direction.offset = offset - (direction.missed and offset > 0)
        call = direction.call
        fresh = time_ns != call.begin_ns or tid != call.tid
        if fresh:
            if direction.end_offset > direction.offset:
                self._settle(direction)
            if other.end_offset > other.offset and (
                tid == other.call.tid or time_ns > other.call.end_ns + NUMBERED_WITHIN_NS
            ):
                self._settle(other)
            known = whole or len(data) == result > 0  # where it begins and ends
            direction.missed = direction.may_begin_within = not known
            direction.end_offset = offset + result if known and result > 0 else -1
            arrival_ns = arrival_ns if known else 0  # of a byte before these
            direction.call = call = Call(
                time_ns, end_ns, arrival_ns, tgid, tid, cgroup, published, task, asked, not known
            )
        else:
            direction.missed = direction.may_begin_within = direction.missed and direction.end_offset < 0
        if write is self._at_client:
            self.facts.request_missed = direction.missed
        if result <= 0 and not data:
            self._nothing_moved(call, result, write)
            return
        if offset != direction.offset:
            data = self._align(direction, call, offset, data)
            offset = direction.offset
        if not data or self.ignored:
            return
        direction.offset = offset + len(data)
        parser = self.parser
        if parser is None:
            self._recognise(direction, call, data, offset, fresh=fresh)
            return
        parser.feed(call, data, offset, from_client=write is self._at_client)
        if parser.ignored or parser.successor is not None:
            self._move_on(parser)

    def take_streamed(self, chunk: DataChunk, write: bool) -> bool:
        """Take the next chunk if it is all that its call moved, and its parser has a short way for it.

        Where it returns True it has done what :meth:`take` does.
        """
        streamed = self._take_streamed
        if streamed is None or write is self._at_client:
            return False
        direction, other = (self._writes, self._reads) if write else (self._reads, self._writes)
        time_ns, end_ns, _, _, _, _, _, task, _, offset, _, _, data = chunk
        if offset != direction.offset or direction.missed or other.end_offset > other.offset:
            return False
        if not streamed(data, time_ns, end_ns, task):
            return False
        direction.offset = offset + len(data)
        return True

    def end_writes(self, chunk: DataChunk) -> None:
        """The process said that it sends no more: what it reads from now on it does not answer."""
        parser = self.parser
        if self.ignored or parser is None:
            return
        time_ns, end_ns, tgid, tid, cgroup_id, *_ = chunk
        self._settle(self._writes)
        if self._answers.missed:
            self.abort(end_ns, "connection_closed")
            return
        parser.end(Call(time_ns, end_ns, 0, tgid, tid, cgroup_id, None), from_client=self._at_client)
        if parser.ignored or parser.successor is not None:
            self._move_on(parser)

    def miss(self) -> None:
        """Chunks are missing, of either direction: where each goes on its next offset says, if there is one."""
        for direction in (self._reads, self._writes):
            direction.missed = direction.may_begin_within = True
        self.facts.request_missed = True

    @property
    def _answers(self) -> _Direction:
        return self._reads if self._at_client else self._writes

    @property
    def unsettled(self) -> bool:
        """Whether the last bytes that a call moved have not arrived, and may never."""
        reads, writes = self._reads, self._writes
        return not self.ignored and (reads.end_offset > reads.offset or writes.end_offset > writes.offset)

    def settle(self, before_ns: int) -> None:
        """Report as gaps what is missing of calls that returned by ``before_ns``; no more of it will come."""
        for direction in (self._reads, self._writes):
            if direction.call.end_ns <= before_ns:
                self._settle(direction)

    def close(self, time_ns: int) -> None:
        """The process closed it."""
        self._settle_all()
        if self.parser is not None and self._answers.missed:
            self.parser.abort(time_ns, "capture_gap")
        elif self.parser is not None:
            self.parser.close(time_ns)
        self._ignore()

    def abort(self, time_ns: int, error: str) -> None:
        """It carries nothing more: emit what is open, with that error unless it was answered, or may have been."""
        self._settle_all()
        if self.parser is not None:
            self.parser.abort(time_ns, "capture_gap" if self._answers.missed else error)
        self._ignore()

    def shed(self, time_ns: int) -> None:
        """Forget what is under way, not reported, for how it ends will not be known; go on as if found open now."""
        if self.ignored or (self.facts.late and self.parser is None):
            return
        shed = self._drop_open(time_ns)
        self.output.shed += shed
        self.output.count("requests_shed", len(shed))
        self._read_by(None)
        self.facts.late = self.facts.lossy = True
        self._steps.clear()
        self._reads = _Direction(writes=False, late=True, lossy=True)
        self._writes = _Direction(writes=True, late=True, lossy=True)

    def end_session(self, time_ns: int) -> None:
        """Nothing more will be known: count what is under way. What its threads do until then is still done for it."""
        self._settle_all()
        assignments = self.output.assignments
        before = len(assignments)
        self.output.count("requests_under_way", len(self._drop_open(time_ns)))
        del assignments[before:]
        self._ignore()

    def _drop_open(self, time_ns: int) -> list[int]:
        """End what is under way, which is not reported; the keys of it. What was answered is, and what had a gap."""
        exchanges = self.output.exchanges
        before = len(exchanges)
        if self.parser is not None:
            self.parser.abort(time_ns, _DROPPED)
        ended = exchanges[before:]
        exchanges[before:] = [exchange for exchange in ended if exchange.error != _DROPPED]
        return [exchange.key for exchange in ended if exchange.error == _DROPPED]

    def _ignore(self) -> None:
        """Take nothing more from this connection; its parser must have emitted what was open."""
        self.ignored = True
        self._read_by(None)
        self._steps.clear()

    def _settle_all(self) -> None:
        self._settle(self._reads)
        self._settle(self._writes)

    def _settle(self, direction: _Direction) -> None:
        size = direction.end_offset - direction.offset
        if size > 0 and not self.ignored:
            self._pass_over(direction, direction.call, size)

    def _align(self, direction: _Direction, call: Call, offset: int, data: bytes) -> bytes:
        """Advance to a chunk's offset: report a gap, or drop bytes that were seen before."""
        size = offset - direction.offset
        if size > 0:
            self._pass_over(direction, call, size)
            return data
        self.output.count("bytes_repeated", min(-size, len(data)))
        return data[-size:]

    def _pass_over(self, direction: _Direction, call: Call, size: int) -> None:
        offset = direction.offset
        direction.offset = offset + size
        parser = self.parser
        if parser is not None:
            parser.gap(call, size, offset, from_client=direction.writes is self._at_client)
            if parser.ignored or parser.successor is not None:
                self._move_on(parser)
            return
        self.output.count("late_bytes_skipped", size)
        if not self.facts.late:
            self._begin_late()

    def _nothing_moved(self, call: Call, result: int, write: bool) -> None:
        if result == 0:
            if write or self.parser is None:
                return
            if self._at_client and self._reads.missed:
                self.abort(call.end_ns, "connection_closed")
            else:
                self.parser.end(call, from_client=not self._at_client)
        elif result not in _WAITS:
            self.output.count("socket_errors")
            if result in _DEAD:
                self.abort(call.end_ns, "connection_closed")

    def _move_on(self, parser: Parser) -> None:
        """Continue with the successor, or ignore the connection."""
        while parser.successor is not None and not parser.ignored:
            parser = parser.successor
        if parser.ignored:
            self._ignore()
        else:
            self._read_by(parser)

    def _read_by(self, parser: Parser | None) -> None:
        self.parser = parser
        self._take_streamed = getattr(parser, "take_streamed", None)

    # Protocol detection

    def _recognise(self, direction: _Direction, call: Call, data: bytes, offset: int, *, fresh: bool) -> None:
        """Take bytes of a connection of unknown protocol; ``fresh``: the first of a call."""
        late = self.facts.late
        if late:
            direction.calls += fresh
            answer = self._ask(direction, data, late=True) if fresh else _UNRECOGNISED
        else:
            self._steps.append((direction, call, data, offset))
            direction.head += data
            answer = self._ask(direction, direction.head, late=False)
        recognition, spec, from_client = answer
        if spec is not None:
            self._use_protocol(spec, Role.CLIENT if direction.writes is from_client else Role.SERVER)
            self._replay(self._steps or [(direction, call, data, offset)])
        elif late:
            self.output.count("late_bytes_skipped", len(data))
            if min(self._reads.calls, self._writes.calls) >= MAX_UNDECIDED_CALLS:
                self._give_up()
        elif recognition is Recognition.NO or len(direction.head) >= MAX_UNDECIDED_BYTES:
            self._give_up()

    def _ask(self, direction: _Direction, data: bytes, *, late: bool) -> RecognitionResult:
        """Ask every protocol whether it recognises the bytes; the first that answers YES has them."""
        if self.facts.role is Role.UNKNOWN:
            spoke_first = not self._steps or self._steps[0][0] is direction
            ways = [True, False] if spoke_first else [False, True]
        else:
            ways = [direction.writes is self._at_client]
        best = _UNRECOGNISED
        for spec in self._specs:
            for from_client in ways:
                recognition = spec.recognise(data, from_client, late)
                if recognition is Recognition.YES:
                    if late and len(ways) > 1 and spec.sender_of is not None:
                        sender = spec.sender_of(data)
                        if sender is None:
                            break
                        from_client = sender
                    return recognition, spec, from_client
                if recognition is Recognition.MORE:
                    best = (recognition, None, from_client)
        return best

    def _use_protocol(self, spec: ProtocolSpec, role: Role) -> None:
        self.facts.role = role
        self._at_client = role is Role.CLIENT
        self.endpoints.fill(self.facts)
        self._read_by(spec.open(self.facts, self.output))

    def _replay(self, steps: list[Step]) -> None:
        """Feed the parser what came before it was opened."""
        self._steps = []
        self._reads.head = self._writes.head = b""
        for direction, call, data, offset in steps:
            parser = self.parser
            if parser is None:
                return
            parser.feed(call, data, offset, from_client=direction.writes is self._at_client)
            self._move_on(parser)

    def _begin_late(self) -> None:
        """Bytes are missing before a protocol was detected: treat it as found open."""
        self.facts.late = True
        self.output.count("late_bytes_skipped", sum(len(data) for _, _, data, _ in self._steps))
        self._steps.clear()

    def _give_up(self) -> None:
        self.output.count("protocol_unknown")
        self._ignore()
