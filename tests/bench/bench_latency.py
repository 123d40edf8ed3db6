"""What a server's clients notice: the time of a request with otelgpu attached to the server, and without.

One client on one kept-alive connection asks one request after the other. Each round is bare, attached, bare again; the
attached one is compared with the mean of its neighbours, so that a machine that grows slower does not count. The value
is the median of the rounds' differences.
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from tests.bench.programs import attached
from tests.bench.rows import Row, median, spread
from tests.rig import ROOT, start_llm_server

NAME = "latency"
WARM_UP = 20
RANKS = {"p50": 0.5, "p99": 0.99}
COMPLETION = json.dumps(
    {
        "model": "tiny-llm",
        "stream": True,
        "max_tokens": 16,
        "messages": [{"role": "user", "content": "Why was the first token of this request slow?"}],
    }
).encode()


@dataclass(frozen=True, slots=True)
class Asked:
    """A server to ask, what to ask it, and how an answer ends."""

    pid: int
    port: int
    request: bytes
    end: bytes

    def microseconds(self, count: int) -> dict[str, float]:
        """Time of a request at each rank."""
        with socket.create_connection(("127.0.0.1", self.port)) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for _ in range(WARM_UP):
                self._ask(connection)
            taken = sorted(self._ask(connection) for _ in range(count))
        return {name: taken[int(rank * (len(taken) - 1))] for name, rank in RANKS.items()}

    def _ask(self, connection: socket.socket) -> float:
        began = time.perf_counter_ns()
        connection.sendall(self.request)
        answer = b""
        while not answer.endswith(self.end):
            piece = connection.recv(65_536)
            if not piece:
                raise OSError("the server hung up")
            answer += piece
        return (time.perf_counter_ns() - began) / 1000


@contextlib.contextmanager
def _trivial() -> Iterator[Asked]:
    command = [sys.executable, str(ROOT / "tests" / "rig" / "crowd_server.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = json.loads(process.stdout.readline())["http"]
        yield Asked(process.pid, port, b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n", b"\r\n\r\nok")
        process.kill()


@contextlib.contextmanager
def _streaming() -> Iterator[Asked]:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n"
    request = head + b"Content-Length: %d\r\n\r\n%s" % (len(COMPLETION), COMPLETION)
    with start_llm_server() as server:
        port = urlsplit(server.url).port
        assert port is not None
        yield Asked(server.worker_pid, port, request, b"\r\n0\r\n\r\n")


def _rows(asked: Asked, name: str, options: Sequence[str], rounds: int, count: int) -> list[Row]:
    bare: dict[str, list[float]] = {rank: [] for rank in RANKS}
    added: dict[str, list[float]] = {rank: [] for rank in RANKS}
    before = asked.microseconds(count)
    for _ in range(rounds):
        with attached(asked.pid, *options):
            observed = asked.microseconds(count)
        after = asked.microseconds(count)
        for rank in RANKS:
            bare[rank].append((before[rank] + after[rank]) / 2)
            added[rank].append(observed[rank] - bare[rank][-1])
        before = after
    return [
        Row(
            bench=NAME,
            name=f"{name}, {rank}: otelgpu adds",
            value=median(added[rank]),
            unit="µs",
            baseline="a request without otelgpu",
            baseline_value=median(bare[rank]),
            note=f"{name}, {rank}: adds {spread(added[rank])} of {count}",
        )
        for rank in RANKS
    ]


def rows(quick: bool) -> list[Row]:
    """A server that does nothing else, and one that streams tokens, its CUDA calls unobserved and observed."""
    rounds, requests, streams = (1, 200, 10) if quick else (5, 5000, 400)
    found = []
    with _trivial() as asked:
        found += _rows(asked, "keep-alive GET", (), rounds, requests)
    with _streaming() as asked:
        found += _rows(asked, "16 streamed tokens", ("--families=http",), rounds, streams)
        found += _rows(asked, "the same with its 200 CUDA calls", (), rounds, streams)
    return found
