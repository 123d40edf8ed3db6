"""A TCP proxy that records a connection, and a parser that is shown the recording."""

from __future__ import annotations

import queue
import socket
import threading
import time
from dataclasses import dataclass, field

from tests.unit.families.requests.http2_traffic import MS, Observed


@dataclass
class Recording:
    """What went over one connection, and when, in the order in which the proxy saw it."""

    wire: list[tuple[bool, bytes, int]] = field(default_factory=list)
    ends: int = 0


class Proxy:
    """Forwards TCP and records. ``limit``: bytes that are read at once."""

    def __init__(self, port: int, limit: int = 1 << 16) -> None:
        self._target, self._limit = port, limit
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.recordings: queue.Queue[Recording] = queue.Queue()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._target))
            recording = Recording()
            self.recordings.put(recording)
            for from_client, source, sink in ((True, client, server), (False, server, client)):
                threading.Thread(
                    target=self._forward, args=(recording, from_client, source, sink), daemon=True
                ).start()

    def _forward(
        self, recording: Recording, from_client: bool, source: socket.socket, sink: socket.socket
    ) -> None:
        try:
            while data := source.recv(self._limit):
                recording.wire.append((from_client, data, time.monotonic_ns()))
                sink.sendall(data)
        except OSError:
            pass
        finally:
            recording.ends += 1
            for side in (source, sink):
                try:
                    side.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass

    def finish(self) -> Recording:
        """Wait until the first connection has ended, and return what went over it."""
        recording = self.recordings.get(timeout=5)
        deadline = time.monotonic() + 5
        while recording.ends < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        self._listener.close()
        return recording


def replay(observed: Observed, recording: Recording, skipped: int = 0) -> Observed:
    for from_client, data, time_ns in recording.wire[skipped:]:
        observed.now_ns = time_ns - 10 * MS
        observed.feed(from_client, data)
    return observed.close()
