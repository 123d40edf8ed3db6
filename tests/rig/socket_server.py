"""An HTTP/1.1 server that moves its bytes by one chosen pair of system calls, on a port for each pair.

In: nothing. Out: a JSON line ``{"pair": port, …}`` on stdout; it then serves until it is killed. Of a request it
understands Content-Length and chunked bodies; the path asks for the response: ``/chunked/…`` in chunks, ``/slow/…``
in two halves with a pause, ``/close/…`` with the connection closed after it, anything else with Content-Length.
Standard library only: it runs as a program of its own, `python socket_server.py`.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable

BODY = b"".join(b"%07d\n" % number for number in range(512))  # 4 KiB
READ_BYTES = 65_536


def _readv(connection: socket.socket, size: int) -> bytes:
    buffers = [bytearray(7), bytearray(100), bytearray(size)]
    count = os.readv(connection.fileno(), buffers)
    return b"".join(buffers)[:count]


def _recvmsg_into(connection: socket.socket, size: int) -> bytes:
    buffers = [bytearray(11), bytearray(size)]
    count, *_ = connection.recvmsg_into(buffers)
    return b"".join(buffers)[:count]


def _recv_peeked(connection: socket.socket, size: int) -> bytes:
    connection.recv(size, socket.MSG_PEEK)
    return connection.recv(size)


def _write(connection: socket.socket, data: bytes) -> None:
    while data:
        data = data[os.write(connection.fileno(), data) :]


def _send(connection: socket.socket, data: bytes) -> None:
    while data:
        data = data[connection.send(data) :]


def _writev(connection: socket.socket, data: bytes) -> None:
    while data:
        parts = [data[:3], data[3:40], data[40:]]
        data = data[os.writev(connection.fileno(), [part for part in parts if part]) :]


def _sendmsg(connection: socket.socket, data: bytes) -> None:
    while data:
        parts = [data[:10], data[10:30], data[30:31], data[31:]]
        data = data[connection.sendmsg([part for part in parts if part]) :]


def _sendmsg_of_many_parts(connection: socket.socket, data: bytes) -> None:
    while data:
        parts = [data[at : at + 3] for at in range(0, 3 * 140, 3)] + [data[420:]]
        data = data[connection.sendmsg([part for part in parts if part]) :]


def _sendfile(connection: socket.socket, data: bytes) -> None:
    head, blank, body = data.partition(b"\r\n\r\n")
    _send(connection, head + blank)
    with tempfile.TemporaryFile() as file:
        file.write(body)
        file.flush()
        sent = 0
        while sent < len(body):
            sent += os.sendfile(connection.fileno(), file.fileno(), sent, len(body) - sent)


Read = Callable[[socket.socket, int], bytes]
Write = Callable[[socket.socket, bytes], None]
PAIRS: dict[str, tuple[Read, Write]] = {
    "read-write": (lambda connection, size: os.read(connection.fileno(), size), _write),
    "recv-send": (lambda connection, size: connection.recv(size), _send),
    "recvfrom-sendall": (
        lambda connection, size: connection.recvfrom(size)[0],
        lambda connection, data: connection.sendall(data),
    ),
    "readv-writev": (_readv, _writev),
    "recvmsg-sendmsg": (lambda connection, size: connection.recvmsg(size)[0], _sendmsg),
    "recvmsg_into-many": (_recvmsg_into, _sendmsg_of_many_parts),
    "recv-sendfile": (lambda connection, size: connection.recv(size), _sendfile),
    "peek-send": (_recv_peeked, _send),
}


class _Input:
    """Bytes of a connection, as much as is asked for."""

    def __init__(self, connection: socket.socket, read: Read) -> None:
        self._connection, self._read, self._rest = connection, read, b""

    def _more(self, size: int = READ_BYTES) -> None:
        data = self._read(self._connection, size)
        if not data:
            raise EOFError
        self._rest += data

    def until(self, mark: bytes) -> bytes:
        while mark not in self._rest:
            self._more()
        found, _, self._rest = self._rest.partition(mark)
        return found

    def skip(self, size: int) -> None:
        while size > len(self._rest):
            size -= len(self._rest)
            self._rest = b""
            self._more(min(max(size, 1), 1 << 20))
        self._rest = self._rest[size:]


def _serve(connection: socket.socket, read: Read, write: Write) -> None:
    source = _Input(connection, read)
    with connection, contextlib.suppress(EOFError, OSError, ValueError, IndexError):
        while True:
            first, *lines = source.until(b"\r\n\r\n").split(b"\r\n")
            headers = {
                name.lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)
            }
            path = first.split()[1].decode()
            if headers.get(b"transfer-encoding") == b"chunked":
                while size := int(source.until(b"\r\n"), 16):
                    source.skip(size + 2)
                source.until(b"\r\n")
            else:
                source.skip(int(headers.get(b"content-length", 0)))
            _answer(connection, write, path)
            if path.startswith("/close/"):
                return


def _answer(connection: socket.socket, write: Write, path: str) -> None:
    if path.startswith("/chunked/"):
        write(connection, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for at in range(0, len(BODY), 1000):
            part = BODY[at : at + 1000]
            write(connection, b"%x\r\n%s\r\n" % (len(part), part))
        write(connection, b"0\r\n\r\n")
        return
    response = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(BODY), BODY)
    if path.startswith("/slow/"):
        write(connection, response[:100])
        time.sleep(0.05)
        response = response[100:]
    write(connection, response)


def _listen(listener: socket.socket, read: Read, write: Write) -> None:
    while True:
        connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=_serve, args=(connection, read, write), daemon=True).start()


def main() -> None:
    """Serve until killed."""
    ports = {}
    for name, (read, write) in PAIRS.items():
        listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        ports[name] = listener.getsockname()[1]
        threading.Thread(target=_listen, args=(listener, read, write), daemon=True).start()
    print(json.dumps(ports), flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
