"""Family http: batches of records in, thread assignments and finished exchanges out.

In: ``http_open``, ``http_data_256`` and its larger sizes, and ``http_close`` of
``bpf/http/http.h`` as structured arrays. Out: :class:`TrafficParsed`. It must not do I/O or read a clock.

A batch holds records of one kind, so chunks of a connection may come out of order between batches;
``sequence`` restores their order. Invariant: a connection takes chunk n only after chunk n-1, or after n-1 has been
given up and counted. Example: chunks 0, 2, 1 are taken as 0, then 1 and 2; chunks 0, 2 as 0, and 2 when
:meth:`HttpState.expire` is called with a time by which chunk 1 would have been fed; ``chunks_lost`` is one higher then.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np

from otelgpu.engine.facts import TrafficParsed
from otelgpu.families.requests.connection import Connection, DataChunk
from otelgpu.families.requests.endpoints import read_endpoints
from otelgpu.families.requests.parser_output import ParserOutput
from otelgpu.families.requests.protocol import ConnectionFacts, ProtocolSpec
from otelgpu.families.requests.protocols import BUILT_IN, installed
from otelgpu.families.requests.turns import Stopwatch, Turns
from otelgpu.model.context_sources import ContextSource
from otelgpu.model.exchange import Published, Role
from otelgpu.model.inputs import Batch, Records
from otelgpu.model.shares import Headroom, Pool, Refusals, Remembered
from otelgpu.model.tasks import Asked

MAX_CONNECTIONS = 65536
BUDGET_BYTES = 32 << 20
IDLE_NS = 10 * 60 * 1_000_000_000
#: A record is submitted this long after the time in it at most.
SUBMIT_NS = 100_000_000

#: Of a chunk that is kept, beside its bytes.
HELD_BYTES = 512

#: More than the body of one message is made of (``http_bulk_bytes`` in bpf/http/capture.h).
MOST_CHUNKS_MISSED = 64

_MAX_HELD_CHUNKS = 1024
_MAX_HELD_BYTES = 262144
_MAX_ENDED = 4096
#: Of chunks that wait for a turn, of which a process alone has half: some tenths of a second of small events.
_PUT_OFF_BYTES = 16 << 20
_FINAL_TURNS = 2
_EVICTION_LOOKS = 64
_EVICTIONS = 1024  # at a tick, while memory is short
_EXPIRE_EVERY_NS = 10_000_000_000
_FOREVER_NS = 1 << 63
_SEQUENCES = 1 << 32
_TASK = int(ContextSource.TASK)
_ASKED = struct.Struct("<2Q")  # of bpf/http/go_client.h
_NOT_ASKED = bytes(_ASKED.size)


class HttpState:
    """All connections of a session. ``write_direction`` is ``HTTP_DIRECTION_WRITE`` of the object's BTF.

    ``ended_direction``: likewise; -1: it has none.

    ``protocols``: those that are detected; by default the built-in ones and the installed plug-ins.

    ``stopwatch``: nanoseconds, by which a process and a container have a share of the time to parse; None: no bound.

    ``counters`` maps every name of :data:`~otelgpu.families.requests.parser_output.COUNTERS` to its count so far.
    The caller must call :meth:`expire` regularly (at every Tick), or chunks that wait for a lost record, and
    connections that were never closed, stay until they are evicted.
    """

    def __init__(
        self,
        *,
        write_direction: int,
        ended_direction: int = -1,
        max_connections: int = MAX_CONNECTIONS,
        budget_bytes: int = BUDGET_BYTES,
        idle_ns: int = IDLE_NS,
        capture_content: bool = False,
        protocols: Sequence[ProtocolSpec] | None = None,
        stopwatch: Stopwatch | None = None,
        headroom: Headroom | None = None,
    ) -> None:
        plugins = installed()
        self._protocols = (*BUILT_IN, *plugins.specs) if protocols is None else protocols
        self._headroom = headroom or Headroom()
        self._output = ParserOutput(budget_bytes, capture_content=capture_content, headroom=self._headroom)
        self._output.count("plugins_not_loaded", len(plugins.failed))
        self._places = Pool(_PUT_OFF_BYTES, headroom=self._headroom)
        self._turns = (
            Turns(stopwatch, self._output, self._places.held_by, headroom=self._headroom)
            if stopwatch is not None
            else None
        )
        self._connections: OrderedDict[int, Connection] = OrderedDict()  # least recently used first
        self._by_process: dict[int, dict[int, None]] = {}
        self._gone: list[
            tuple[int, int]
        ] = []  # (process, when it ended): something of it waits for a last turn
        self._waiting: dict[int, None] = {}  # connections that expire() must look at
        self._ended: Remembered[int] = Remembered(_MAX_ENDED)
        self._layouts: dict[tuple[str, int], ChunkLayout] = {}
        self._max_connections = max_connections
        self._idle_ns = idle_ns
        self._write_direction, self._ended_direction = write_direction, ended_direction
        self._next_idle_check_ns = 0

    @property
    def counters(self) -> dict[str, int]:
        """Counts so far, by name."""
        return self._output.counters

    @property
    def refused(self) -> Sequence[tuple[Refusals, str]]:
        """Who had his share, and of what."""
        found = [(self._output.refused, "what is kept of bodies and open requests")]
        if self._turns is not None:
            found.append((self._turns.refused, "the time to parse and of what may wait for it"))
        return found

    @property
    def connection_count(self) -> int:
        """Connections that are tracked."""
        return len(self._connections)

    @property
    def expires_ns(self) -> int:
        """When :meth:`expire` has something to do again, if nothing is fed meanwhile."""
        return 0 if self._waiting else self._next_idle_check_ns

    def feed(self, batch: Batch) -> TrafficParsed:
        """Take the records of a batch, in order. Never raises on their content."""
        kind = batch.kind
        if kind.startswith("http_data_"):
            self._data(kind, batch.records)
        elif kind == "http_open":
            self._open(batch.records)
        elif kind == "http_close":
            self._close(batch.records)
        else:
            self._output.count("unknown_kind")
        return self._taken()

    def process_gone(self, tgid: int, time_ns: int) -> TrafficParsed:
        """End the connections of a process, with the error ``process_exited`` for what was open.

        If some of them wait for a turn, they are ended when they have had it: by :meth:`expire`.
        """
        if self._turns is not None and self._turns.has_put_off(tgid):
            self._gone.append((tgid, time_ns))
        else:
            self._end_process(tgid, time_ns)
        return self._taken()

    def _end_process(self, tgid: int, time_ns: int) -> None:
        for identity in list(self._by_process.get(tgid, ())):
            connection = self._connections[identity]
            self._take_held(connection, give_up=True)
            connection.abort(time_ns, "process_exited")
            self._forget(connection)

    def expire(self, now_ns: int, *, final: bool = False) -> TrafficParsed:
        """Every record submitted before ``now_ns`` was fed: count what is missing as lost, drop idle connections.

        What was put off is parsed, as far as there is time, and everybody has his whole share of parsing again.
        ``final``: no more will come; there is time for some ticks, and what is beyond that is counted, as are requests
        that are under way.
        """
        if self._turns is not None:
            for _ in range(_FINAL_TURNS if final else 1):
                self._turns.tick(self._parse_put_off)
        gone, self._gone = self._gone, []
        for tgid, time_ns in gone:
            self._end_process(tgid, time_ns)
        if self._headroom.steps:
            self._fit(now_ns)
        for identity in list(self._waiting):
            connection = self._connections[identity]
            if final:
                self._take_held(connection, give_up=True)
            self._settle(connection, _FOREVER_NS if final else now_ns - SUBMIT_NS)
        if final:
            for connection in self._connections.values():
                connection.end_session(now_ns)
        if now_ns >= self._next_idle_check_ns:
            idle = [
                connection
                for connection in self._connections.values()
                if connection.last_ns < now_ns - self._idle_ns and not connection.busy
            ]
            for connection in idle:
                self._output.count("connections_expired")
                self._forget(connection)
            oldest_ns = min((each.last_ns for each in self._connections.values()), default=now_ns)
            self._next_idle_check_ns = max(
                now_ns + min(_EXPIRE_EVERY_NS, self._idle_ns), oldest_ns + self._idle_ns + 1
            )
        return self._taken()

    def _fit(self, now_ns: int) -> None:
        """Memory is short: who holds most forgets what is under way, and loses connections, until the others fit."""
        for share in self._output.most_first() if self._output.is_over else ():
            if not self._output.is_over:
                break
            for identity in list(self._by_process.get(share.process, ())):
                connection = self._connections[identity]
                self._take_held(connection, give_up=True)
                if identity in self._connections:
                    connection.shed(now_ns)
        beyond = len(self._connections) - (self._max_connections >> self._headroom.steps)
        for _ in range(min(beyond, _EVICTIONS)):
            self._evict()

    def _taken(self) -> TrafficParsed:
        if self._turns is not None:
            self._turns.end()
        return self._output.take()

    def _data(self, kind: str, records: Records) -> None:
        layout = self._layouts.get((kind, records.dtype.itemsize))
        if layout is None:
            layout = self._layouts[kind, records.dtype.itemsize] = ChunkLayout(records.dtype)
        connections, turns = self._connections, self._turns
        for row in layout.rows(records):
            (
                time_ns,
                duration_ns,
                tgid,
                tid,
                cgroup,
                trace_id,
                span_id,
                trace_flags,
                context_source,
                identity,
                arrival_ns,
                offset,
                result,
                sequence,
                captured,
                way,
                data,
            ) = row
            connection = connections.get(identity)
            if connection is None:
                if identity in self._ended:
                    self._output.count("chunks_after_close")
                    continue
                connection = self._appear(identity, tgid, cgroup, opened=False, late=True)
            else:
                connections.move_to_end(identity)
            if connection.tgid != tgid:
                self._move(connection, tgid)
            end_ns = time_ns + duration_ns
            connection.last_ns = end_ns
            published, task, asked = None, 0, None
            if context_source == _TASK:
                task = int.from_bytes(span_id, "little")
                if trace_id != _NOT_ASKED:
                    asked = Asked(*_ASKED.unpack(trace_id))
            elif context_source:
                published = Published(
                    trace_id=trace_id, span_id=span_id, flags=trace_flags, source=context_source
                )
            data = data[:captured]
            by = tgid, tid, cgroup, arrival_ns, published, task, asked
            chunk = time_ns, end_ns, *by, offset, result, way, data
            if sequence != connection.next_sequence:
                self._hold_back(connection, sequence, chunk)
            elif connection.put_off or not (  # as _is_turn has it, without a call for each chunk
                turns is None or connection.ignored or turns.begin(tgid, cgroup, len(data))
            ):
                self._hold_back(connection, sequence, chunk, put_off=True)
            else:
                connection.next_sequence = (sequence + 1) % _SEQUENCES
                write = way == self._write_direction
                if way == self._ended_direction:
                    connection.end_writes(chunk)
                elif captured != result or not connection.take_streamed(chunk, write):
                    connection.take(chunk, write)
                if connection.held or connection.close_at is not None:
                    self._take_held(connection)
                if captured < result and connection.unsettled:
                    self._waiting[identity] = None

    def _is_turn(self, connection: Connection, chunk: DataChunk) -> bool:
        """Whether a chunk may be parsed now: its process and its container have not had their shares."""
        turns = self._turns
        return turns is None or connection.ignored or turns.begin(chunk[2], chunk[4], len(chunk[-1]))

    def _hold_back(
        self, connection: Connection, sequence: int, chunk: DataChunk, *, put_off: bool = False
    ) -> None:
        """Keep a chunk that arrived out of order, or whose process has had its turn (``put_off``), within bounds."""
        if connection.ignored:
            return
        ahead = (sequence - connection.next_sequence) % _SEQUENCES
        if ahead >= _SEQUENCES // 2 or sequence in connection.held:
            self._output.count("chunks_late")
            return
        size = len(chunk[-1])
        if put_off or connection.put_off:
            fits = self._take_place(connection, chunk)
        else:
            fits = len(connection.held) < _MAX_HELD_CHUNKS and connection.held_bytes + size <= _MAX_HELD_BYTES
        if fits and connection.output.reserve(HELD_BYTES + size):
            connection.held[sequence] = chunk
            connection.held_bytes += size
            self._waiting[connection.facts.identity] = None
            if put_off:
                self._put_off(connection, chunk)
            return
        self._release(connection, 0, 0)  # a place, if it had one
        self._take_held(connection, give_up=True)
        self._skip_to(connection, sequence)
        self._take(connection, chunk, is_turn=self._is_turn(connection, chunk))
        self._take_held(connection)

    def _take_place(self, connection: Connection, chunk: DataChunk) -> bool:
        """Whether there is room for one more chunk that waits for a turn; it goes with what is held."""
        share, size = (
            connection.places or self._places.share_of(chunk[2], chunk[4]),
            HELD_BYTES + len(chunk[-1]),
        )
        if not share.reserve(size):
            return False
        connection.places = share
        connection.placed += size
        return True

    def _put_off(self, connection: Connection, chunk: DataChunk) -> None:
        """Have a connection wait for a turn of the process whose chunk is next."""
        if self._turns is not None and not connection.put_off:
            connection.put_off = True
            self._turns.put_off(chunk[2], connection.facts.identity)

    def _parse_put_off(self, identity: int) -> bool:
        """What a connection holds, as far as it is its turn now; False: it was put off again."""
        connection = self._connections.get(identity)
        if connection is None or not connection.put_off:
            return True
        connection.put_off = False
        self._take_held(connection)
        return not connection.put_off

    def _take(self, connection: Connection, chunk: DataChunk, *, is_turn: bool) -> None:
        """Have the next chunk read, or counted where it is not its turn."""
        connection.next_sequence = (connection.next_sequence + 1) % _SEQUENCES
        if is_turn and chunk[11] == self._ended_direction:
            connection.end_writes(chunk)
        elif is_turn:
            connection.take(chunk, chunk[11] == self._write_direction)
        else:
            self._output.count("chunks_shed")
            if self._turns is not None:
                self._turns.refused.add(chunk[2], chunk[4])
            connection.shed(chunk[1])
        if connection.unsettled:
            self._waiting[connection.facts.identity] = None

    def _skip_to(self, connection: Connection, sequence: int) -> None:
        """Give up the chunks before ``sequence``; those from before observation began do not count as lost."""
        missing = (sequence - connection.next_sequence) % _SEQUENCES
        if connection.opened or connection.next_sequence:
            self._output.count("chunks_lost", missing)
            connection.facts.lossy = True
            if missing > MOST_CHUNKS_MISSED:
                connection.shed(connection.last_ns)
            else:
                connection.miss()
        connection.next_sequence = sequence

    def _take_held(
        self, connection: Connection, *, give_up: bool = False, before_ns: int | None = None
    ) -> None:
        """Take the kept chunks that are next in order; with ``give_up``, all that ended by ``before_ns``.

        What is not to be parsed now is put off, or shed where all are given up.
        """
        held, at_once = connection.held, give_up and before_ns is None
        if at_once:
            connection.put_off = False
        elif connection.put_off:
            return
        while held:
            chunk = held.get(connection.next_sequence)
            if chunk is None:
                if not give_up:
                    break
                base = connection.next_sequence
                sequence = min(held, key=lambda number: (number - base) % _SEQUENCES)
                if before_ns is not None and held[sequence][1] > before_ns:
                    break
                self._skip_to(connection, sequence)
                continue
            is_turn = self._is_turn(connection, chunk)
            if not is_turn and not at_once:
                self._put_off(connection, chunk)
                return
            del held[connection.next_sequence]
            self._release(connection, 1, len(chunk[-1]))
            self._take(connection, chunk, is_turn=is_turn)
        if connection.close_at is not None:
            time_ns, chunks = connection.close_at
            if connection.next_sequence >= chunks or connection.ignored:
                self._end(connection, time_ns)

    def _settle(self, connection: Connection, before_ns: int) -> None:
        """Stop waiting for what should have arrived by now."""
        self._take_held(connection, give_up=True, before_ns=before_ns)
        if connection.put_off or connection.facts.identity not in self._connections:
            return
        connection.settle(before_ns)
        if connection.close_at is not None and connection.close_at[0] <= before_ns:
            time_ns, chunks = connection.close_at
            self._skip_to(connection, chunks)
            self._end(connection, time_ns, "capture_gap")  # the last records are missing
        elif not (connection.held or connection.unsettled or connection.close_at):
            self._waiting.pop(connection.facts.identity, None)

    def _release(self, connection: Connection, chunks: int, size: int) -> None:
        connection.held_bytes -= size
        connection.output.release(HELD_BYTES * chunks + size)
        if connection.places is not None:
            left = min(connection.placed, HELD_BYTES * len(connection.held) + connection.held_bytes)
            connection.places.release(connection.placed - left)
            connection.placed = left
            if not left:
                connection.places = None

    def _open(self, records: Records) -> None:
        for record in records:
            identity = int(record["connection"])
            connection = self._connections.get(identity)
            if connection is None:
                if identity in self._ended:
                    continue
                head = record["head"]
                connection = self._appear(
                    identity,
                    int(head["tgid"]),
                    int(head["cgroup_id"]),
                    opened=True,
                    late=bool(record["late"]),
                )
            self._move(connection, int(record["head"]["tgid"]))
            connection.last_ns = max(connection.last_ns, int(record["head"]["time_ns"]))
            connection.learn(read_endpoints(record))

    def _close(self, records: Records) -> None:
        for record in records:
            connection = self._connections.get(int(record["connection"]))
            if connection is None:
                continue
            time_ns, chunks = int(record["head"]["time_ns"]), int(record["sequence"])
            if connection.next_sequence >= chunks or connection.ignored:
                self._end(connection, time_ns)
            else:
                connection.close_at = (time_ns, chunks)
                self._waiting[connection.facts.identity] = None

    def _appear(self, identity: int, tgid: int, cgroup: int, *, opened: bool, late: bool) -> Connection:
        if not opened:
            self._output.count("connections_not_opened")
        facts = ConnectionFacts(identity=identity, role=Role.UNKNOWN, late=late)
        output = self._output.of_process(tgid, cgroup)
        connection = Connection(facts, output, self._protocols, opened=opened)
        self._connections[identity] = connection
        if len(self._connections) > self._max_connections:
            self._evict()
        return connection

    def _evict(self) -> None:
        oldest = self._oldest_of_most()
        self._output.count("connections_evicted")
        self._take_held(oldest, give_up=True)
        oldest.abort(oldest.last_ns, "connection_evicted")
        self._forget(oldest)

    def _oldest_of_most(self) -> Connection:
        """Of the process with the most connections, the one that was used least recently, if that is soon found."""
        most = max(self._by_process.values(), key=len)
        for identity in islice(self._connections, _EVICTION_LOOKS):
            if identity in most:
                return self._connections[identity]
        return self._connections[next(iter(most))]

    def _move(self, connection: Connection, tgid: int) -> None:
        """Note which process uses the connection."""
        self._leave(connection)
        connection.tgid = tgid
        self._by_process.setdefault(tgid, {})[connection.facts.identity] = None

    def _leave(self, connection: Connection) -> None:
        members = self._by_process.get(connection.tgid)
        if members is not None:
            members.pop(connection.facts.identity, None)
            if not members:
                del self._by_process[connection.tgid]

    def _end(self, connection: Connection, time_ns: int, unknown: str = "") -> None:
        """It was closed; ``unknown``: why nobody knows how what is open ended."""
        if unknown:
            connection.abort(time_ns, unknown)
        else:
            connection.close(time_ns)
        self._forget(connection)
        self._ended.add(connection.output.container, connection.facts.identity)

    def _forget(self, connection: Connection) -> None:
        chunks = len(connection.held)
        connection.held.clear()
        self._release(connection, chunks, connection.held_bytes)
        self._connections.pop(connection.facts.identity, None)
        self._waiting.pop(connection.facts.identity, None)
        self._leave(connection)


ChunkRow = tuple[int, int, int, int, int, bytes, bytes, int, int, int, int, int, int, int, int, int, bytes]

_HEAD_FIELDS = (
    *("time_ns", "duration_ns", "tgid", "tid", "cgroup_id"),
    *("trace_id", "span_id", "trace_flags", "context_source"),
)
_CHUNK_FIELDS = ("connection", "arrival_ns", "stream_offset", "result", "sequence", "captured", "direction")
_CODES = {"u8": "Q", "i8": "q", "u4": "I", "i4": "i", "u2": "H", "i2": "h", "u1": "B", "i1": "b"}


class ChunkLayout:
    """How to unpack records of one class, ``struct http_data_*``, into a tuple each, at a constant price per record.

    Offsets come from the dtype, which is the BTF's; a numpy field access costs a microsecond or so per batch and
    field, and traffic of mixed sizes comes in batches of one or two. Raises KeyError when the dtype lacks a field.
    """

    def __init__(self, dtype: np.dtype[np.void]) -> None:
        located = [_field_at(dtype, ("chunk", "head", name)) for name in _HEAD_FIELDS]
        located += [_field_at(dtype, ("chunk", name)) for name in _CHUNK_FIELDS]
        located.append(_field_at(dtype, ("data",)))
        fields = [(offset, _CODES.get(field.str[1:], f"{field.itemsize}s")) for offset, field in located]
        form = "<"
        position = 0
        for offset, code in sorted(fields):
            form += f"{offset - position}x{code}"
            position = offset + struct.calcsize("<" + code)
        self._rows = struct.Struct(f"{form}{dtype.itemsize - position}x")
        if sorted(fields) != fields:
            raise KeyError("fields of http_data in another order than known")

    def rows(self, records: Records) -> Iterator[ChunkRow]:
        """Yield (``_HEAD_FIELDS``…, ``_CHUNK_FIELDS``…, data) of each record."""
        return self._rows.iter_unpack(records.tobytes())


def _field_at(dtype: np.dtype[np.void], path: tuple[str, ...]) -> tuple[int, np.dtype[np.void]]:
    start = 0
    for name in path:
        assert dtype.fields is not None
        dtype, offset = dtype.fields[name][:2]
        start += offset
    return start, dtype
