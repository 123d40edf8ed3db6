"""A TCP proxy on the way to a server, which turns bad when reported to. Nothing here knows otelgpu or OTLP."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from enum import Enum
from typing import Final

_PIECE: Final = 65_536
_RESET_AFTER: Final = 1000  # bytes of a request
_GARBAGE: Final = bytes(range(256)) * 4


class Fault(Enum):
    """What happens to a connection, and to those that are open already."""

    NONE = "passes everything on"
    SLOW = "answers 10 s later"
    BLACK_HOLE = "takes everything and never answers"
    RESET = "is reset in the middle of a request"
    GARBAGE = "answers with what is no answer"


class FaultyProxy:
    """Listens at ``port`` of the loopback interface; ``fault`` may be changed at any time."""

    slow_s = 10.0

    def __init__(self, upstream_port: int) -> None:
        self._upstream_port = upstream_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._ended = threading.Event()
        self.port: int = self._listener.getsockname()[1]
        self.fault = Fault.NONE
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Take no more connections, and end those that wait."""
        self._ended.set()
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self._upstream_port))
                except OSError:
                    client.close()
                    continue
                for pump, source, sink in ((self._ask, client, server), (self._answer, server, client)):
                    threading.Thread(target=pump, args=(source, sink), daemon=True).start()

    def _ask(self, client: socket.socket, server: socket.socket) -> None:
        taken = 0
        with client, server, contextlib.suppress(OSError):
            while data := client.recv(_PIECE):
                taken = taken + len(data) if self.fault is Fault.RESET else 0
                if self.fault is Fault.GARBAGE:
                    client.sendall(_GARBAGE)
                elif self.fault is Fault.RESET and taken >= _RESET_AFTER:
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    break
                elif self.fault in (Fault.NONE, Fault.SLOW):
                    server.sendall(data)
            server.shutdown(socket.SHUT_RDWR)  # the other thread reads there, which keeps it open

    def _answer(self, server: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(_PIECE):
                if self.fault is Fault.SLOW:
                    self._ended.wait(self.slow_s)
                if self.fault in (Fault.NONE, Fault.SLOW):
                    client.sendall(data)


@contextlib.contextmanager
def faulty_proxy(upstream_port: int) -> Iterator[FaultyProxy]:
    """One, until the end of the block."""
    proxy = FaultyProxy(upstream_port)
    try:
        yield proxy
    finally:
        proxy.close()
