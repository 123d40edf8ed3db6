"""Both ends of an HTTP/2 connection as the h2 library plays them, and what a parser makes of the bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import h2.config
import h2.connection
import h2.events

from otelgpu.families.requests.http2.parser import Http2
from otelgpu.families.requests.parser_output import COUNTERS, ParserOutput
from otelgpu.families.requests.protocol import Call, ConnectionFacts
from otelgpu.model.exchange import Endpoint, Exchange, Role

MS = 1_000_000
TGID, READER, WRITER = 100, 7, 8
BUDGET = 1 << 24
Field = tuple[str, str]
Wire = list[tuple[bool, bytes]]  # from the client?, what one system call moved


def request_fields(path: str = "/v1/x", *more: Field, method: str = "POST") -> list[Field]:
    return [(":method", method), (":scheme", "http"), (":authority", "h"), (":path", path), *more]


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


class Pair:
    """A client and a server: what either sends is recorded, one entry a call, and given to the other."""

    def __init__(self) -> None:
        self.client = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=True, header_encoding="utf-8")
        )
        self.server = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=False, header_encoding="utf-8")
        )
        self.wire: Wire = []
        self.events: list[h2.events.Event] = []  # of the server
        self.client.initiate_connection()
        self.flush()

    def flush(self) -> None:
        """Move what is waiting, both ways, until nothing is."""
        moved = True
        while moved:
            moved = False
            for from_client in (True, False):
                sender, receiver = (self.client, self.server) if from_client else (self.server, self.client)
                data = sender.data_to_send()
                if data:
                    moved = True
                    self.wire.append((from_client, data))
                    events = receiver.receive_data(data)
                    if from_client:
                        self.events += events

    def request(
        self, fields: Iterable[Field] | None = None, body: bytes = b"", *, end: bool = True, number: int = 0
    ) -> int:
        number = number or self.client.get_next_available_stream_id()
        self.client.send_headers(number, list(fields or request_fields()), end_stream=end and not body)
        if body:
            self.client.send_data(number, body, end_stream=end)
        self.flush()
        return number

    def respond(
        self,
        number: int,
        status: int = 200,
        body: bytes = b"",
        *more: Field,
        trailers: list[Field] | None = None,
        end: bool = True,
    ) -> None:
        ends_here = end and not trailers
        self.server.send_headers(number, [(":status", str(status)), *more], end_stream=ends_here and not body)
        if body:
            self.server.send_data(number, body, end_stream=ends_here)
        if trailers:
            self.server.send_headers(number, trailers, end_stream=True)
        self.flush()


@dataclass
class Observed:
    """A parser with its output, and system calls that take 5 ms each, 10 ms apart."""

    role: Role = Role.SERVER
    late: bool = False
    budget: int = BUDGET
    now_ns: int = 1000 * MS
    offsets: dict[bool, int] = field(default_factory=lambda: {True: 0, False: 0})

    def __post_init__(self) -> None:
        self.output = ParserOutput(self.budget)
        self.facts = ConnectionFacts(
            identity=1,
            role=self.role,
            late=self.late,
            server=Endpoint(address="127.0.0.1", port=80),
            client=Endpoint(address="127.0.0.1", port=4000),
            wire_key=b"key",
            client_sequence=1000,
        )
        self.parser = Http2(self.facts, self.output)

    def call(self, from_client: bool, *, tid: int = 0, arrival_ns: int = 0) -> Call:
        self.now_ns += 10 * MS
        reads = from_client is (self.role is Role.SERVER)
        return Call(
            self.now_ns - 5 * MS, self.now_ns, arrival_ns, TGID, tid or (READER if reads else WRITER), 3, None
        )

    def feed(
        self, from_client: bool, data: bytes, *, call: Call | None = None, cuts: Iterable[int] = ()
    ) -> Call:
        """Feed one call's bytes, in chunks that end at ``cuts``."""
        call = call or self.call(from_client)
        start = 0
        for stop in (*sorted(cut for cut in cuts if 0 < cut < len(data)), len(data)):
            self.parser.feed(call, data[start:stop], self.offsets[from_client], from_client=from_client)
            self.offsets[from_client] += stop - start
            start = stop
        return call

    def gap(self, from_client: bool, size: int, *, call: Call | None = None) -> None:
        self.parser.gap(
            call or self.call(from_client), size, self.offsets[from_client], from_client=from_client
        )
        self.offsets[from_client] += size

    def wire(self, wire: Wire, cut: Callable[[bytes], Iterable[int]] = lambda data: ()) -> Observed:
        for from_client, data in wire:
            self.feed(from_client, data, cuts=cut(data))
        return self

    @property
    def exchanges(self) -> list[Exchange]:
        return self.output.exchanges

    @property
    def counted(self) -> dict[str, int]:
        assert self.output.counters.keys() == COUNTERS.keys()
        return {name: times for name, times in self.output.counters.items() if times}

    def close(self) -> Observed:
        self.now_ns += 10 * MS
        self.parser.close(self.now_ns)
        return self

    @property
    def held_bytes(self) -> int:
        """What is still reserved of the budget."""
        free = 0
        step = self.budget
        while step:
            if self.output.reserve(step):
                free += step
            else:
                step //= 2
        self.output.release(free)
        return self.budget - free
