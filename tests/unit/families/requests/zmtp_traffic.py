"""ZeroMQ traffic in one line: frames by hand, and what libzmq itself puts on a socket.

A :class:`Chunk` is what one system call moved; ``play`` gives chunks to a parser.
"""

from __future__ import annotations

import contextlib
import socket
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import zmq

from otelgpu.families.requests.parser_output import ParserOutput
from otelgpu.families.requests.protocol import Call, ConnectionFacts
from otelgpu.families.requests.zmtp.parser import ZmtpParser
from otelgpu.model.engine_messages import EngineMessage
from otelgpu.model.exchange import Role

MS = 1_000_000
RECEIVE_TIMEOUT_MS = 10_000


@dataclass(frozen=True)
class Chunk:
    """Bytes that one call moved; a number of bytes in ``data``: that many were not captured."""

    from_client: bool
    data: bytes | int


def frame(body: bytes, *, more: bool = False, command: bool = False, long: bool = False) -> bytes:
    long = long or len(body) > 255
    return bytes([more | long << 1 | command << 2]) + len(body).to_bytes(8 if long else 1, "big") + body


def message(*bodies: bytes) -> bytes:
    return b"".join(frame(body, more=body is not bodies[-1]) for body in bodies)


def greeting(mechanism: bytes = b"NULL", version: int = 3) -> bytes:
    return b"\xff" + bytes(8) + b"\x7f" + bytes([version, 1]) + mechanism.ljust(20, b"\0") + bytes(32)


READY = frame(b"\x05READY\x0bSocket-Type\0\0\0\x04PUSH", command=True)


def call(begin_ns: int, tid: int = 7) -> Call:
    return Call(begin_ns, begin_ns + MS, 0, 100, tid, 1, None)


def parser(
    *, role: Role = Role.CLIENT, late: bool = False, budget: int = 64 << 20
) -> tuple[ZmtpParser, ParserOutput]:
    output = ParserOutput(budget)
    return ZmtpParser(ConnectionFacts(identity=1, role=role, late=late), output), output


def play(
    chunks: Iterable[Chunk], *, role: Role = Role.CLIENT, late: bool = False, budget: int = 64 << 20
) -> ParserOutput:
    """Feed each chunk as a call of its own, 10 ms apart, then close. The budget must be whole again after it."""
    reader, output = parser(role=role, late=late, budget=budget)
    offsets = {True: 0, False: 0}
    for number, chunk in enumerate(chunks):
        size = chunk.data if isinstance(chunk.data, int) else len(chunk.data)
        moved = call(number * 10 * MS)
        if isinstance(chunk.data, int):
            reader.gap(moved, size, offsets[chunk.from_client], from_client=chunk.from_client)
        else:
            reader.feed(moved, chunk.data, offsets[chunk.from_client], from_client=chunk.from_client)
        offsets[chunk.from_client] += size
    reader.close(0)
    assert output.reserve(budget), "bytes of the budget were not given back"
    return output


def sent(data: bytes) -> list[EngineMessage]:
    """The messages of bytes that a client sends after its greeting."""
    return play([Chunk(True, greeting() + READY), Chunk(True, data)]).messages


def losses(output: ParserOutput) -> dict[str, int]:
    return {name: count for name, count in output.counters.items() if count}


@contextlib.contextmanager
def _proxy(folder: Path, record: list[Chunk]) -> Iterator[str]:
    """Relays one connection from an address that it gives to `folder`/server, and records it."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(folder / "client"))
    listener.listen()
    ends: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def relay(source: socket.socket, target: socket.socket, from_client: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 20):
                record.append(Chunk(from_client, data))
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def accept() -> None:
        with contextlib.suppress(OSError):
            client, _ = listener.accept()
            server = socket.socket(socket.AF_UNIX)
            ends.extend((client, server))
            server.connect(str(folder / "server"))
            other = threading.Thread(target=relay, args=(server, client, False))
            threads.append(other)
            other.start()
            relay(client, server, True)

    threads.append(threading.Thread(target=accept))
    threads[0].start()
    try:
        yield f"ipc://{folder}/client"
    finally:
        for end in (listener, *ends):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        for thread in threads:
            thread.join()


def record(
    client: int,
    server: int,
    messages: Iterable[list[bytes]],
    configure: Callable[[zmq.Socket, bool], None] | None = None,
) -> list[Chunk]:
    """What libzmq sends when a socket of type `client` connects to one of type `server` and sends messages."""
    chunks: list[Chunk] = []
    with tempfile.TemporaryDirectory(prefix="zmtp-") as name, zmq.Context() as context:
        receiver, sender = context.socket(server), context.socket(client)
        for end, is_server in ((receiver, True), (sender, False)):
            end.setsockopt(zmq.LINGER, 0)
            end.setsockopt(zmq.RCVTIMEO, RECEIVE_TIMEOUT_MS)
            if configure is not None:
                configure(end, is_server)
        receiver.bind(f"ipc://{name}/server")
        with _proxy(Path(name), chunks) as address:
            sender.connect(address)
            for parts in messages:
                sender.send_multipart(parts)
                assert receiver.recv_multipart()[-len(parts) :] == parts
            sender.close()
            receiver.close()
    return chunks
