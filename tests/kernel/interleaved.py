"""Servers whose handlers interleave, under load: which of their calls are linked to their own request."""

from __future__ import annotations

import http.client
import http.server
import os
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import h2.connection
import h2.events

from tests.kernel.observing import OTELGPU, read_spans
from tests.kernel.staged import Staged
from tests.rig.spans import Span

FIRST = "/job/1"
"""Asked before the others: the libraries that it loads have their probes when those come. It is not counted."""


class _Backend(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        time.sleep(0.001 * (int(self.path.rpartition("/")[2]) % 3))
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *_: object) -> None:
        """Nothing."""


class _Server(http.server.ThreadingHTTPServer):
    request_queue_size = 1024
    daemon_threads = True


@contextmanager
def backend() -> Iterator[int]:
    """The port of a server that answers whatever it is asked."""
    with _Server(("127.0.0.1", 0), _Backend) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


def ask(port: int, numbers: Sequence[int], *, pause_s: float = 0.0) -> None:
    """One after the other on a connection."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    for number in numbers:
        connection.request("GET", f"/job/{number}")
        assert connection.getresponse().read()
        time.sleep(pause_s)
    connection.close()


def ask_at_once(port: int, numbers: Sequence[int], *, tls: bool = False) -> None:
    """All at the same time on a connection, as streams of HTTP/2."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    session = h2.connection.H2Connection()
    session.initiate_connection()
    for stream, number in enumerate(numbers):
        path = [(":path", f"/job/{number}"), (":authority", "localhost")]
        session.send_headers(
            2 * stream + 1, [(":method", "GET"), (":scheme", "http"), *path], end_stream=True
        )
    with (
        socket.create_connection(("127.0.0.1", port), timeout=60) as plain,
        context.wrap_socket(plain) if tls else plain as connection,
    ):
        open_streams = len(numbers)
        while open_streams:
            connection.sendall(session.data_to_send())
            events = session.receive_data(connection.recv(1 << 16))
            open_streams -= sum(isinstance(event, h2.events.StreamEnded) for event in events)


@dataclass
class Links:
    """How many calls are linked to the request that made them, to another, to none; by what the right ones are."""

    right: int = 0
    wrong: int = 0
    none: int = 0
    sources: Counter[str] = field(default_factory=Counter)

    def add(self, own: str, linked: str | None, source: str = "") -> None:
        """``own`` and ``linked``: paths of requests; None: it is linked to none."""
        if own == FIRST:
            return
        if linked is None:
            self.none += 1
        elif linked == own:
            self.right += 1
            self.sources[source] += 1
        else:
            self.wrong += 1

    @property
    def all(self) -> int:
        return self.right + self.wrong + self.none

    def __str__(self) -> str:
        return f"{self.right} right, {self.none} unattributed, {self.wrong} wrong of {self.all}"


def judged(spans: Sequence[Span]) -> tuple[Links, Links]:
    """Of cudaMalloc(N), and of requests for /called/N: each is of the request for /job/N."""
    paths = {
        span["spanId"]: str(span["attributes"]["url.path"])
        for span in spans
        if str(span["attributes"].get("url.path", "")).startswith("/job/")
    }
    calls, outbound = Links(), Links()
    for span in spans:
        attributes = span["attributes"]
        if span["name"] == "cudaMalloc":
            linked = paths.get(span.get("parentSpanId", ""))
            calls.add(f"/job/{attributes['cuda.size']}", linked, attributes["otelgpu.context.source"])
        elif (
            str(attributes.get("url.full", attributes.get("url.path", "")))
            .rpartition("/")[0]
            .endswith("/called")
        ):
            number = str(attributes.get("url.full", attributes.get("url.path", ""))).rpartition("/")[2]
            outbound.add(f"/job/{number}", paths.get(span.get("parentSpanId", "")))
    return calls, outbound


@dataclass(frozen=True, kw_only=True)
class Scene:
    """A server that prints its port, and who asks it: ``clients`` at once, each for ``requests`` numbers of its own."""

    command: Sequence[str]
    clients: int
    requests: int
    asking: Callable[[int, Sequence[int]], None] = ask
    environment: Mapping[str, str] = field(default_factory=dict)

    def ask_all(self, port: int) -> None:
        """Have the server asked all that it is to be asked."""
        self.asking(port, [1])
        time.sleep(0.5)
        with ThreadPoolExecutor(self.clients) as together:
            starts = range(10_000, 10_000 + self.clients * 1000, 1000)
            asked = [
                together.submit(self.asking, port, range(start, start + self.requests)) for start in starts
            ]
            for done in asked:
                done.result()
        time.sleep(0.3)

    def play(self, stage: Staged) -> int:
        """Start the server, have it asked, end it; its process id."""
        pid, port = stage.start(*self.command, **self.environment)
        try:
            self.ask_all(int(port))
        finally:
            os.kill(pid, signal.SIGTERM)
        return pid


def observe(scene: Scene, folder: Path) -> list[Span]:
    """The spans of a server under a session of its own, which knows of its program before it begins."""
    traces = folder / "traces.jsonl"
    prefix = [OTELGPU, "run", "--quiet", "--detail=all", f"--export=file:{traces}", "--"]
    environ = os.environ | scene.environment
    with subprocess.Popen(
        [*prefix, *scene.command], env=environ, stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        scene.ask_all(int(program.stdout.readline()))
        program.terminate()
        program.wait(30)
    return read_spans(traces)


Key = TypeVar("Key")


def play_all(scenes: Mapping[Key, Scene], folder: Path) -> dict[Key, list[Span]]:
    """The spans of each scene's server: one session observes all, played one after the other."""
    with Staged(folder) as stage:
        pids = {key: scene.play(stage) for key, scene in scenes.items()}
    found: defaultdict[object, list[Span]] = defaultdict(list)
    for span in read_spans(stage.traces):
        found[span["resource"].get("process.pid")].append(span)
    return {key: found[pid] for key, pid in pids.items()}
