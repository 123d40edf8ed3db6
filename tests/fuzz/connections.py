"""Fuzz targets of connections: a fuzzer's bytes as the calls of a process, of any protocol.

The first byte gives the role of the process and whether the connection was found open; then each call is a
byte of what it is (its direction, a gap before it, a gap in its end, end of file), a length, and its bytes.
"""

from __future__ import annotations

from otelgpu.families.requests.connection import Connection, DataChunk
from otelgpu.families.requests.parser_output import ParserOutput
from otelgpu.families.requests.protocol import ConnectionFacts
from otelgpu.families.requests.protocols import BUILT_IN
from otelgpu.model.exchange import Role
from tests.unit.spanwriter.heads_read import reads_alike

BUDGET_BYTES = 1 << 17
WRITE, HOLE, CUT, EOF = 1, 2, 4, 8
SERVER, CLIENT, LATE = 1, 2, 4
_TASK = 7  # that all calls are of

_HANDSHAKE = (
    b"GET /v1/realtime HTTP/1.1\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n",
    b"HTTP/1.1 101 x\r\nupgrade: websocket\r\nsec-websocket-extensions: permessage-deflate\r\n\r\n",
)


def call(what: int, data: bytes = b"") -> bytes:
    """A call of at most 255 bytes, as the targets read it."""
    return bytes((what, len(data))) + data


class _Calls:
    """A process's calls on one connection."""

    def __init__(self, role: Role, *, late: bool) -> None:
        self.output = ParserOutput(BUDGET_BYTES)
        facts = ConnectionFacts(identity=1, role=role, late=late)
        self.connection = Connection(facts, self.output, BUILT_IN, opened=True)
        self.now_ns = 0
        self.offsets = [0, 0]

    def move(self, write: bool, data: bytes, *, result: int) -> None:
        self.now_ns += 100_000
        begin, offset = self.now_ns, self.offsets[write]
        chunk: DataChunk = (begin, begin + 1, 1, 1, 1, 0, None, _TASK, None, offset, result, int(write), data)
        self.connection.take(chunk, write)
        self.offsets[write] = offset + max(result, len(data))

    def end(self) -> None:
        self.connection.close(self.now_ns + 1)
        output = self.output
        assert output.reserve(BUDGET_BYTES)
        keys = [exchange.key for exchange in output.exchanges]
        assert len(keys) == len(set(keys))
        held = sorted(assignment.exchange for assignment in output.assignments if assignment.begins)
        assert held == sorted(
            assignment.exchange for assignment in output.assignments if not assignment.begins
        )


def heads(data: bytes) -> None:
    """The first byte says whose messages; the rest is read by the compiled library and by llhttp alone, alike."""
    assert reads_alike(data[1:], is_request=data[:1] == b"q")


def connection(data: bytes) -> None:
    """Any calls."""
    first = data[0] if data else 0
    calls = _Calls(Role((first & 3) % 3), late=bool(first & LATE))
    _run(calls, data[1:])


def websocket(data: bytes) -> None:
    """Any calls behind a WebSocket's handshake, at a client's end."""
    calls = _Calls(Role.CLIENT, late=False)
    for write, text in ((True, _HANDSHAKE[0]), (False, _HANDSHAKE[1])):
        calls.move(write, text, result=len(text))
    _run(calls, data)


def _run(calls: _Calls, data: bytes) -> None:
    position = 0
    while position + 2 <= len(data):
        what, size = data[position], data[position + 1]
        part = data[position + 2 : position + 2 + size]
        position += 2 + size
        write = bool(what & WRITE)
        if what & HOLE:
            calls.offsets[write] += what
        if what & EOF:
            calls.move(False, b"", result=0)
        else:
            calls.move(write, part, result=len(part) + (what if what & CUT else 0))
    calls.end()


HEAD_SEEDS = (
    b"qGET /a?b HTTP/1.1\r\nhost: x\r\nUser-Agent: c/8\r\n\r\n",
    b"qPOST / HTTP/1.1\r\nconnection: close\r\nContent-Length: 2\r\ntraceparent: 00-a-b-01\r\n\r\n{}",
    b"rHTTP/1.1 200 OK\r\nserver: x\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n",
    b"rHTTP/1.0 404\r\ncontent-length: 0\r\n\r\nHTTP/1.1 200 OK\r\nupgrade: h2c\r\n\r\n",
)
CONNECTION_SEEDS = (
    bytes((SERVER,))
    + call(0, b"GET /a HTTP/1.1\r\n\r\nPOST /v1/completions HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}")
    + call(WRITE, b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc")
    + call(WRITE | CUT, b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"),
    bytes((CLIENT,))
    + call(WRITE, b"GET / HTTP/1.1\r\n\r\n")
    + call(0, b"HTTP/1.1 200 OK\r\n\r\nuntil the end")
    + call(EOF),
    bytes((LATE,)) + call(0, b"of something") + call(HOLE, b"GET /b HTTP/1.1\r\n\r\n"),
    b"\0"
    + call(0, b"GE")
    + call(0, b"T / HTTP/1.1\r\nupgrade: h2c\r\n\r\n")
    + call(WRITE, b"HTTP/1.1 101 x\r\n\r\n"),
    b"\0"
    + call(0, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")
    + call(WRITE, b"\0\0\0\x04\0\0\0\0\0"),
    b"\0" + call(WRITE, b"\xff\0\0\0\0\0\0\0\1\x7f\3\0NULL" + bytes(48)),
)
WEBSOCKET_SEEDS = (
    call(WRITE, b"\x81\x9b\0\0\0\0" + b'{"type": "response.create"}')
    + call(0, b"\x81\x3e" + b'{"type": "response.created", "response": {"id": "resp_1"}}     ')
    + call(HOLE, b"\x81\x02{}")
    + call(0, b"\x88\x00"),
    call(0, b"\x01\x03Hel\x89\x00\x80\x02lo") + call(0, b"\xc1\x07\xf2\x48\xcd\xc9\xc9\x07\x00"),
)
