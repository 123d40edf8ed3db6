"""Traffic over sockets, both endpoints in one process, on request: what a test lets otelgpu observe.

In: a JSON line ``[name, argument, …]`` on stdin for each scenario. Out: a JSON line with what it returned.
Standard library only: it runs as a program of its own, ``python socket_traffic.py``.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import socket
import ssl
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

REQUEST: Final = b"POST /moved HTTP/1.1\r\nHost: h\r\nContent-Length: 2900\r\n\r\n" + b"q" * 2900
RESPONSE: Final = b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n" + b"a" * 5000
_libc = ctypes.CDLL(None, use_errno=True)


class _Iovec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("bytes", ctypes.c_size_t)]


class _Mmsghdr(ctypes.Structure):
    """struct mmsghdr, x86-64."""

    _fields_ = [
        ("name", ctypes.c_void_p),
        ("name_bytes", ctypes.c_uint64),
        ("vectors", ctypes.POINTER(_Iovec)),
        ("vector_count", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("control_bytes", ctypes.c_size_t),
        ("flags", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
    ]


def _messages(buffers: list[Any]) -> tuple[Any, list[Any]]:
    """One message for each buffer."""
    kept = [_Iovec(ctypes.addressof(buffer), len(buffer)) for buffer in buffers]
    messages = (_Mmsghdr * len(buffers))()
    for message, vector in zip(messages, kept, strict=True):
        message.vectors, message.vector_count = ctypes.pointer(vector), 1
    return messages, kept


def _recvmmsg(end: socket.socket, size: int) -> bytes:
    buffers = [ctypes.create_string_buffer(100), ctypes.create_string_buffer(size)]
    messages, _kept = _messages(buffers)
    end.setblocking(True)
    count = _libc.recvmmsg(end.fileno(), messages, 1, 0, None)
    assert count > 0, os.strerror(ctypes.get_errno())
    return b"".join(b.raw[: m.bytes] for b, m in zip(buffers[:count], messages, strict=False))


def _sendmmsg(end: socket.socket, data: bytes) -> None:
    parts = [data[:50], data[50:700], data[700:]]
    buffers = [ctypes.create_string_buffer(part, len(part)) for part in parts]
    messages, _kept = _messages(buffers)
    end.setblocking(True)
    assert _libc.sendmmsg(end.fileno(), messages, 3, 0) == 3


def _readv(end: socket.socket, size: int) -> bytes:
    buffers = [bytearray(7), bytearray(100), bytearray(size)]
    count = os.readv(end.fileno(), buffers)
    return b"".join(buffers)[:count]


def _parts(data: bytes, count: int) -> list[bytes]:
    """So many parts, the first few of them empty or short."""
    return [
        b"",
        data[:3],
        *(data[at : at + 20] for at in range(3, 3 + 20 * count, 20)),
        data[3 + 20 * count :],
    ]


def _sendfile(end: socket.socket, data: bytes) -> None:
    end.sendall(data[:60])
    with tempfile.TemporaryFile() as file:
        file.write(data[60:])
        file.flush()
        sent = 0
        while sent < len(data) - 60:
            sent += os.sendfile(end.fileno(), file.fileno(), sent, len(data) - 60 - sent)


def _splice_out(end: socket.socket, data: bytes) -> None:
    end.sendall(data[:60])
    out, into = os.pipe()
    os.write(into, data[60:])
    left = len(data) - 60
    while left:
        left -= os.splice(out, end.fileno(), left)
    os.close(out)
    os.close(into)


Read = Callable[[socket.socket, int], bytes]
Write = Callable[[socket.socket, bytes], object]
READS: Final[dict[str, Read]] = {
    "read": lambda end, size: os.read(end.fileno(), size),
    "recv": lambda end, size: end.recv(size),
    "readv": _readv,
    "recvmsg": lambda end, size: end.recvmsg(size)[0],
    "recvmmsg": _recvmmsg,
    "small": lambda end, size: end.recv(10),
}
WRITES: Final[dict[str, Write]] = {
    "write": lambda end, data: os.write(end.fileno(), data),
    "send": lambda end, data: end.sendall(data),
    "writev": lambda end, data: os.writev(end.fileno(), _parts(data, 4)),
    "sendmsg": lambda end, data: end.sendmsg(_parts(data, 40)),
    "sendmmsg": _sendmmsg,
    "sendfile": _sendfile,
    "splice": _splice_out,
}


_listeners: list[socket.socket] = []


def connected_pair(family: str = "tcp", *, listening: bool = False) -> tuple[socket.socket, socket.socket]:
    """(client, server) of a new connection. ``listening``: whether its listener stays."""
    if family == "unix":
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(Path(tempfile.mkdtemp(), "socket")))
    else:
        listener = socket.socket(socket.AF_INET6 if family == "tcp6" else socket.AF_INET)
        listener.bind(("::1" if family == "tcp6" else "127.0.0.1", 0))
    listener.listen()
    client = socket.socket(listener.family)
    client.connect(listener.getsockname())
    server, _ = listener.accept()
    if listening:
        _listeners.append(listener)
    else:
        listener.close()
    return client, server


def _take(end: socket.socket, read: Read, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += read(end, 65_536)
    return data


def talk(family: str, read: str, write: str) -> dict[str, int]:
    """A request and its response."""
    client, server = connected_pair(family)
    WRITES[write](client, REQUEST)
    assert _take(server, READS[read], len(REQUEST)) == REQUEST
    WRITES[write](server, RESPONSE)
    assert _take(client, READS[read], len(RESPONSE)) == RESPONSE
    found = {"client": client.fileno(), "server": server.fileno()}
    client.close()
    server.close()
    return found


def say(first: str, who: str) -> dict[str, int]:
    """One end says something first (hexadecimal), and the other reads it; then an answer, and more."""
    client, server = connected_pair()
    speaker, listener = (client, server) if who == "client" else (server, client)
    data = bytes.fromhex(first)
    for _ in range(3):
        speaker.sendall(data)
        _take(listener, READS["recv"], len(data))
        listener.sendall(b"\0answer")
        _take(speaker, READS["recv"], 7)
    client.close()
    server.close()
    return {}


def say_slowly(parts: list[str], pause_s: float = 0) -> dict[str, int]:
    """The client says something in several writes, of which an empty one is a pause."""
    client, server = connected_pair()
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for part in map(bytes.fromhex, parts):
        if not part:
            time.sleep(pause_s)
        client.sendall(part)
        _take(server, READS["recv"], len(part))
    client.close()
    server.close()
    return {}


def move(parts: list[str], reads: list[int]) -> dict[str, int]:
    """The client says something in several writes, and the server reads so many bytes of it in each of its calls."""
    client, server = connected_pair()

    def say_all() -> None:
        for part in parts:
            client.sendall(bytes.fromhex(part))

    saying = threading.Thread(target=say_all)
    saying.start()
    for size in reads:
        assert len(server.recv(size, socket.MSG_WAITALL)) == size
    saying.join()
    client.close()
    server.close()
    return {}


def busy(family: str, delay_s: float, accepted_late: bool) -> dict[str, int]:
    """A client sends while the server is busy: when it did, and when the server began to read."""
    listener = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(listener.getsockname())
    server = None if accepted_late else listener.accept()[0]
    before = time.monotonic_ns()
    client.sendall(REQUEST)
    sent = time.monotonic_ns()
    time.sleep(delay_s)
    if server is None:
        server = listener.accept()[0]
    read_at = time.monotonic_ns()
    _take(server, READS["recv"], len(REQUEST))
    second_before = time.monotonic_ns()
    client.sendall(REQUEST)
    second_sent = time.monotonic_ns()
    time.sleep(delay_s)
    _take(server, READS["recv"], len(REQUEST))
    client.close()
    server.close()
    listener.close()
    return {
        "before": before,
        "sent": sent,
        "read_at": read_at,
        "second_before": second_before,
        "second_sent": second_sent,
    }


def busy_with_parts(count: int, pause_s: float) -> list[int]:
    """A client sends ten bytes at a time while the server is busy, which then reads each: when each was sent."""
    client, server = connected_pair()
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sent = []
    for part in range(count):
        sent.append(time.monotonic_ns())
        client.sendall(b"GET /parts" if not part else b"and so on.")
        time.sleep(pause_s)
    for _ in range(count):
        server.recv(10)
    client.close()
    server.close()
    return sent


_held: list[tuple[socket.socket, socket.socket]] = []


def hold(family: str, count: int) -> list[list[int]]:
    """Connections that stay open: their descriptors, client's and server's."""
    _held.extend(connected_pair(family, listening=True) for _ in range(count))
    return [[client.fileno(), server.fileno()] for client, server in _held[-count:]]


def talk_on(index: int) -> dict[str, int]:
    """A request and its response on a connection that is held."""
    client, server = _held[index]
    client.sendall(REQUEST)
    _take(server, READS["recv"], len(REQUEST))
    server.sendall(RESPONSE)
    _take(client, READS["recv"], len(RESPONSE))
    return {"client": client.fileno(), "server": server.fileno()}


def let_go() -> dict[str, int]:
    """Close what is held."""
    for pair in _held:
        for end in pair:
            end.close()
    for listener in _listeners:
        listener.close()
    _held.clear()
    _listeners.clear()
    return {}


def reuse() -> dict[str, int]:
    """A descriptor becomes a file without a close() that could be seen, and is read and written."""
    client, server = connected_pair()
    client.sendall(REQUEST)
    _take(server, READS["recv"], len(REQUEST))
    with tempfile.TemporaryFile() as file:
        file.write(b"GET /secret of a file")
        file.flush()
        os.dup2(file.fileno(), server.fileno())
        os.pread(server.fileno(), 5, 0)
        os.lseek(server.fileno(), 0, os.SEEK_SET)
        os.read(server.fileno(), 100)
    found = {"server": server.fileno()}
    server.close()
    client.close()
    return found


def refused() -> dict[str, int]:
    """A connection that nobody takes."""
    listener = socket.create_server(("127.0.0.1", 0))
    address = listener.getsockname()
    listener.close()
    with socket.socket() as client:
        assert client.connect_ex(address)
    return {}


def connect_without_waiting(again: bool) -> dict[str, int]:
    """A client that does not block, as those of event loops. ``again``: it calls connect() to hear how it went."""
    listener = socket.create_server(("127.0.0.1", 0))
    client = socket.socket()
    client.setblocking(False)
    client.connect_ex(listener.getsockname())
    server, _ = listener.accept()
    if again:
        client.connect_ex(listener.getsockname())
    client.setblocking(True)
    client.sendall(REQUEST)
    _take(server, READS["recv"], len(REQUEST))
    server.sendall(RESPONSE)
    _take(client, READS["recv"], len(RESPONSE))
    for end in (client, server, listener):
        end.close()
    return {}


_tls: list[tuple[ssl.SSLSocket, ssl.SSLSocket]] = []


def _contexts(certificate: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A server's and a client's that believes everything."""
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(certificate)
    asking = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    asking.check_hostname, asking.verify_mode = False, ssl.CERT_NONE
    return serving, asking


def hold_tls(certificate: str) -> dict[str, int]:
    """A TLS connection that stays open."""
    serving, asking = _contexts(certificate)
    client, server = connected_pair()
    done: list[ssl.SSLSocket] = []
    thread = threading.Thread(target=lambda: done.append(serving.wrap_socket(server, server_side=True)))
    thread.start()
    wrapped = asking.wrap_socket(client)
    thread.join()
    _tls.append((wrapped, done[0]))
    return {"client": wrapped.fileno(), "server": done[0].fileno()}


def talk_tls(request: str, response: str) -> dict[str, int]:
    """A request and its response (hexadecimal) on the TLS connection that was made last."""
    client, server = _tls[-1]
    for speaker, listener, data in (
        (client, server, bytes.fromhex(request) or REQUEST),
        (server, client, bytes.fromhex(response) or RESPONSE),
    ):
        speaker.sendall(data)
        left = len(data)
        while left:
            left -= len(listener.recv(65_536))
    return {}


def let_go_tls() -> dict[str, int]:
    """Close them."""
    while _tls:
        for end in _tls.pop():
            end.close()
    return {}


def busy_tls(certificate: str, delay_s: float, in_memory: bool, parts: int) -> list[list[int]]:
    """Three requests, each sent in so many TLS records while the server is busy: [before, after] of each's sending.

    ``in_memory``: the server reads its socket itself and gives the bytes to TLS, as event loops do; the first request
    then comes with the end of the handshake in one read.
    """
    serving, asking = _contexts(certificate)
    client, server = connected_pair()
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sent: list[list[int]] = []
    may_send, has_sent = threading.Semaphore(0), threading.Semaphore(0)
    size = len(REQUEST) // parts + 1

    def ask() -> None:
        with asking.wrap_socket(client) as wrapped:
            if in_memory:
                time.sleep(delay_s)  # between the end of the handshake and the request
            for _ in range(3):
                before = time.monotonic_ns()
                for at in range(0, len(REQUEST), size):
                    wrapped.sendall(REQUEST[at : at + size])
                sent.append([before, time.monotonic_ns()])
                has_sent.release()
                may_send.acquire()

    thread = threading.Thread(target=ask)
    thread.start()
    session = _InMemory(serving, server) if in_memory else serving.wrap_socket(server, server_side=True)
    for _ in range(3):
        has_sent.acquire()
        time.sleep(delay_s)
        left = len(REQUEST)
        while left:
            left -= len(session.read(65_536))
        may_send.release()
    thread.join()
    server.close()
    return sent


class _InMemory:
    """A server's TLS session on memory buffers. The handshake is begun at once, and ended by the first read."""

    def __init__(self, context: ssl.SSLContext, end: socket.socket) -> None:
        self._end = end
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._session = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._incoming.write(end.recv(65_536))
        with contextlib.suppress(ssl.SSLWantReadError):
            self._session.do_handshake()
        end.sendall(self._outgoing.read())

    def read(self, size: int) -> bytes:
        while True:
            with contextlib.suppress(ssl.SSLWantReadError):
                return self._session.read(size)
            self._incoming.write(self._end.recv(65_536))


def loop_tls(certificate: str, count: int) -> dict[str, int]:
    """Requests that name the client's port, on TLS connections whose both ends an event loop serves by turns."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(3):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async def ask(port: int, context: ssl.SSLContext) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        for _ in range(3):
            own = writer.get_extra_info("sockname")[1]
            writer.write(b"GET /%d HTTP/1.1\r\nHost: h\r\n\r\n" % own)
            await reader.readuntil(b"\r\n\r\n")
        writer.close()

    async def run() -> None:
        serving, asking = _contexts(certificate)
        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=serving)
        port = server.sockets[0].getsockname()[1]
        await asyncio.gather(*(ask(port, asking) for _ in range(count)))
        server.close()

    asyncio.run(run())
    return {}


def batched_tls(certificate: str) -> dict[str, int]:
    """A server that reads all its sockets before it hands the bytes to their TLS sessions."""
    serving, asking = _contexts(certificate)
    pairs = [connected_pair(), connected_pair()]

    def ask(client: socket.socket) -> None:
        own = client.getsockname()[1]
        with asking.wrap_socket(client) as wrapped:
            wrapped.sendall(b"GET /%d HTTP/1.1\r\nHost: h\r\n\r\n" % own)
            wrapped.recv(1000)

    threads = [threading.Thread(target=ask, args=(client,)) for client, _ in pairs]
    for thread in threads:
        thread.start()
    waiting = {}
    for _, server in pairs:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        session = serving.wrap_bio(incoming, outgoing, server_side=True)
        waiting[server] = (incoming, outgoing, session)
    while waiting:
        for server, data in [(server, server.recv(65_536)) for server in waiting]:
            incoming, outgoing, session = waiting[server]
            incoming.write(data)
            with contextlib.suppress(ssl.SSLWantReadError):
                session.do_handshake()
                session.read(65_536)
                session.write(b"HTTP/1.1 204 No Content\r\n\r\n")
                del waiting[server]
            server.sendall(outgoing.read())
    for thread in threads:
        thread.join()
    for _, server in pairs:
        server.close()
    return {}


DO: Final[dict[str, Callable[..., Any]]] = {
    function.__name__: function
    for function in (
        talk, say, say_slowly, move, busy, busy_with_parts, loop_tls, batched_tls, hold, talk_on, let_go, reuse,
        refused, connect_without_waiting, hold_tls, talk_tls, let_go_tls, busy_tls,
    )
}  # fmt: skip


def main() -> None:
    """Serve until stdin ends."""
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        print(json.dumps(DO[name](*arguments)), flush=True)


if __name__ == "__main__":
    main()
