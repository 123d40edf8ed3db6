"""Clients that mean harm, or know no better: memory stays bounded, losses have reasons, others are served and seen."""

from __future__ import annotations

import gzip
import http.client
import json
import resource
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

from tests.kernel.observing import Session, read_metrics, read_spans
from tests.rig import ROOT
from tests.rig.priority import FIRST
from tests.rig.spans import Span

pytestmark = pytest.mark.long

SERVER = ROOT / "tests/rig/crowd_server.py"
MEMORY_MIB = 150
CROWD_MIB = 200  # 2.3 KB for each connection, 1 KB for its request, and all their spans as text at once
MEGABYTE = 1 << 20
HUNDRED_MEGABYTES = 100 * MEGABYTE
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[int, dict[str, int]]]:
    """The process id of a server that stands anything, and its ports: ``http`` and ``sink``."""
    with subprocess.Popen([sys.executable, str(SERVER)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.pid, json.loads(process.stdout.readline())
        assert process.poll() is None, "the server ended"
        process.kill()


@pytest.fixture
def many_files() -> Iterator[None]:
    """As many descriptors as this process may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _number(span: Span) -> int:
    return int(span["attributes"]["url.path"].rpartition("/")[2])


class Watched:
    """A session on the server, and good requests on a connection of their own until the end of the block.

    At its end: the requests were answered and are spans, the session's memory kept within bounds; ``losses`` then
    holds what it counted of family http, by reason.
    """

    def __init__(
        self, server: tuple[int, dict[str, int]], folder: Path, memory_mib: int = MEMORY_MIB
    ) -> None:
        pid, self.ports = server
        self._memory_mib = memory_mib
        self._traces = folder / "traces.jsonl"
        # Whom other tests leave too little of a processor loses some of what floods it, and says so.
        self._session = Session("attach", f"-p{pid}", traces=self._traces, prefix=FIRST)
        self._done = threading.Event()
        self._asked = 0
        self._answered: Counter[int] = Counter()
        self._thread = threading.Thread(target=self._ask)
        self.losses: Counter[str] = Counter()
        self.peak_mib = 0

    def __enter__(self) -> Self:
        self._session.__enter__()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._done.set()
        self._thread.join()
        try:
            if kind is None:
                self._session.spans(lambda span: self._is(span, "/good/"), self._asked, limit_s=20)
                status = Path(f"/proc/{self._session.process.pid}/status").read_text()
                self.peak_mib = int(status.partition("VmHWM:")[2].split()[0]) >> 10
        finally:
            self._session.stop()
        if kind is not None:
            return
        assert self._answered == {200: self._asked}
        assert self._session.process.returncode == 0, self._session.said
        assert self.peak_mib <= self._memory_mib
        for point in read_metrics(self._traces).get("otelgpu.losses", ()):
            if point["attributes"]["otelgpu.family"] == "http":
                self.losses[point["attributes"]["otelgpu.reason"]] += int(point["asInt"])
        print(f"\npeak {self.peak_mib} MiB, {self._asked} good requests, {dict(self.losses)}")

    def _ask(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.ports["http"], timeout=20)
        while not self._done.is_set():
            connection.request("GET", f"/good/{self._asked}")
            self._asked += 1
            answer = connection.getresponse()
            answer.read()
            self._answered[answer.status] += 1
            time.sleep(0.005)
        connection.close()

    @staticmethod
    def _is(span: dict[str, object], prefix: str) -> bool:
        reported = span["attributes"]
        assert isinstance(reported, dict)
        return str(reported.get("url.path", "")).startswith(prefix)

    def seen(self, prefix: str) -> int:
        """How many requests under a path became spans; after the end."""
        return sum(self._is(span, prefix) for span in read_spans(self._traces))

    def catch_up(self) -> None:
        """Wait until a good request that begins from now on is a span: so is, or is lost, what was before it.

        Whom it watches has a share of the rings, and of what may wait to be parsed. A machine that is busy with other
        things leaves that to the program late.
        """
        after = self._asked
        self._session.first(lambda span: self._is(span, "/good/") and _number(span) >= after, limit_s=60)

    def connect(self, port: str = "http") -> socket.socket:
        """A connection to one of the server's ports."""
        return socket.create_connection(("127.0.0.1", self.ports[port]), timeout=20)

    def send(self, port: str, *parts: bytes, pause_s: float = 0) -> None:
        """Send, wait until the server has read all of it, and hang up. With a pause it reads part by part."""
        with self.connect(port) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for part in parts:
                connection.sendall(part)
                time.sleep(pause_s)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(MEGABYTE):
                pass


def test_ten_thousand_open_connections(
    server: tuple[int, dict[str, int]], many_files: None, tmp_path: Path
) -> None:
    with Watched(server, tmp_path, CROWD_MIB) as watched:
        connections: list[socket.socket] = []
        while len(connections) < 10_000:
            connections += [watched.connect() for _ in range(1000)]
            watched.catch_up()
        for first in range(0, len(connections), 1000):
            some = connections[first : first + 1000]
            for number, connection in enumerate(some, first):
                connection.sendall(b"GET /crowd/%d HTTP/1.1\r\n\r\n" % number)
            for connection in some:
                assert connection.recv(4096).startswith(b"HTTP/1.1 200")
            watched.catch_up()
        for first in range(0, len(connections), 1000):
            for connection in connections[first : first + 1000]:
                connection.close()
            watched.catch_up()
    assert watched.seen("/crowd/") == 10_000
    assert watched.losses.keys() <= {"open_before_not_looked_for"}  # where it begins late; none of these was


def test_heads_that_come_a_byte_a_second(server: tuple[int, dict[str, int]], tmp_path: Path) -> None:
    with Watched(server, tmp_path) as watched:
        connections = [watched.connect() for _ in range(500)]
        for byte in b"GET ":
            for connection in connections:
                connection.sendall(bytes((byte,)))
            time.sleep(1)
        for connection in connections[::2]:
            connection.sendall(b"/slow HTTP/1.1\r\n\r\n")
            assert connection.recv(4096).startswith(b"HTTP/1.1 200")
        for connection in connections:
            connection.close()
    assert watched.seen("/slow") == 250
    assert watched.losses == {"requests_incomplete": 250}


@pytest.mark.parametrize(
    ("port", "start", "reason"),
    [
        ("http", b"POST /x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", "not_http"),
        ("http", b"GET /x HTTP/1.1\r\n\r\n", "not_http"),
        ("sink", PREFACE + bytes(3) + b"\4" + bytes(5), "http2_invalid"),
        ("sink", b"\xff" + bytes(8) + b"\x7f\3\0NULL".ljust(55, b"\0"), "zmtp_malformed"),
    ],
    ids=["chunks", "requests", "http2", "zmtp"],
)
def test_garbage_after_a_valid_start(
    server: tuple[int, dict[str, int]], port: str, start: bytes, reason: str, tmp_path: Path
) -> None:
    garbage = bytes((number * 167 + 13) & 0xFF for number in range(4096))
    with Watched(server, tmp_path) as watched:
        for _ in range(50):
            watched.send(port, start, *(garbage for _ in range(16)))
    assert watched.losses[reason] == 50


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


HEADERS, RST_STREAM, SETTINGS, CONTINUATION = 1, 3, 4, 9
END_STREAM, END_HEADERS = 1, 4
BLOCK = b"\x82\x86\x84\x41\x01h"  # GET http / of h (RFC 7541, appendix A)


def test_streams_that_are_reset_at_once(server: tuple[int, dict[str, int]], tmp_path: Path) -> None:
    """CVE-2023-44487."""
    with Watched(server, tmp_path) as watched:
        flood = b"".join(
            frame(HEADERS, END_STREAM | END_HEADERS, number, BLOCK) + frame(RST_STREAM, 0, number, bytes(4))
            for number in range(1, 100_001, 2)
        )
        watched.send("sink", PREFACE + frame(SETTINGS, 0, 0), flood)
    assert watched.losses["http2_floods"] == 1
    assert watched.seen("/") < 50_000


def test_header_blocks_that_never_end(server: tuple[int, dict[str, int]], tmp_path: Path) -> None:
    """CVE-2024-27316 and its relatives."""
    with Watched(server, tmp_path) as watched:
        more = frame(CONTINUATION, 0, 1, b"\x00\x01a\x7f\xe9\x06" + b"v" * 1000)  # a: vvv…
        start = PREFACE + frame(SETTINGS, 0, 0) + frame(HEADERS, 0, 1, BLOCK)
        watched.send("sink", start, *[more * 8] * 100, pause_s=0.002)
        watched.send("sink", start, frame(CONTINUATION, 0, 1) * 100_000)
    assert (watched.losses["http2_headers_too_large"], watched.losses["http2_invalid"]) == (1, 2)


def test_messages_of_a_hundred_megabytes(server: tuple[int, dict[str, int]], tmp_path: Path) -> None:
    padding = [b" " * MEGABYTE] * 100
    grpc = b"\0" + HUNDRED_MEGABYTES.to_bytes(4, "big")
    block = b"\x83\x86\x44\x04/a/b\x41\x01h\x5f\x10application/grpc"
    data = frame(0, 0, 1, bytes(16_384))
    with Watched(server, tmp_path) as watched:
        head = b"POST /v1/chat/completions HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        start = b'{"model":"large-1","messages":"'
        watched.send("http", head % (len(start) + HUNDRED_MEGABYTES), start, *padding)
        watched.send(
            "sink",
            PREFACE + frame(SETTINGS, 0, 0) + frame(HEADERS, END_HEADERS, 1, block),
            frame(0, 0, 1, grpc),
            *[data * 64] * 100,
        )
        watched.send(
            "sink",
            b"\xff" + bytes(8) + b"\x7f\3\0NULL".ljust(55, b"\0"),
            b"\4\x05\5READY",
            b"\2" + HUNDRED_MEGABYTES.to_bytes(8, "big"),
            *padding,
        )
    assert watched.seen("/v1/chat/completions") == 1
    assert watched.losses["bodies_not_kept"] == 1


def test_bodies_that_inflate_a_thousandfold(server: tuple[int, dict[str, int]], tmp_path: Path) -> None:
    body = gzip.compress(b'{"model":"m","messages":"%s"}' % (b" " * (64 << 20)))
    head = (
        b"POST /v1/chat/completions HTTP/1.1\r\nContent-Type: application/json\r\nContent-Encoding: gzip\r\n"
    )
    with Watched(server, tmp_path) as watched:
        for _ in range(20):
            watched.send("http", head + b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
            time.sleep(0.3)  # all at once they would be beyond the share of parsing: tests/hostile
    assert watched.seen("/v1/chat/completions") == 20
    assert watched.losses["inflate_too_large"] == 40
