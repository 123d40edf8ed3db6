"""Servers, their upstream and their clients as processes."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from tests.rig.ports import free_port
from tests.rig.spans import Span
from tests.servers.compare import Compared, Observed, compare
from tests.servers.load import Load, Outcome
from tests.servers.stacks import ROOT, Stack

FOLDER: Final = Path(__file__).parent
_START_S: Final = 600.0
"""vLLM and SGLang import for minutes where others compile; one that ends is not waited for."""
_LOAD_S: Final = 240.0
_STOP_S: Final = 20.0


class Upstream:
    """What all servers ask."""

    def __init__(self, folder: Path) -> None:
        self.calls_path = folder / "calls"
        self._process = subprocess.Popen(
            [sys.executable, FOLDER / "upstream.py", self.calls_path], stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.url = f"http://127.0.0.1:{int(self._process.stdout.readline())}"

    def calls(self) -> list[tuple[int, int]]:
        """The (number, which) of all calls that it answered."""
        lines = self.calls_path.read_text().splitlines()
        return [(int(number), int(which)) for *_, number, which in (line.split("/") for line in lines)]

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server that answers."""

    stack: Stack
    port: int
    process: subprocess.Popen[bytes]
    folder: Path

    def pids(self) -> list[int]:
        """It and its children."""
        return sorted(_tree(self.process.pid))

    def ttft_s(self) -> dict[int, float]:
        """By its own clock, by request."""
        path = self.folder / "truth"
        lines = path.read_text().splitlines() if path.exists() else []
        return {line["number"]: line["ttft_s"] for line in map(json.loads, lines)}

    def ask(self, first: int, together: int, rounds: int, least_s: float = 0.0) -> list[Outcome]:
        """Put it under a load (load.py): what its clients saw."""
        load = Load(
            port=self.port,
            first=first,
            together=together,
            rounds=rounds,
            least_s=least_s,
            round=self.stack.round,
        )
        done = subprocess.run(
            [sys.executable, "-m", f"tests.servers.{self.stack.load}", json.dumps(asdict(load))],
            capture_output=True,
            text=True,
            timeout=_LOAD_S,
            check=False,
            cwd=ROOT,
        )
        if done.returncode:
            raise RuntimeError(f"{self.stack.name}: {done.stderr[-2000:]}\n{self.output()}")
        return [Outcome(**line) for line in map(json.loads, done.stdout.splitlines())]

    def cpu_s(self) -> float:
        """Processor time of it and its children, those that ended too, so far: a hook's is its caller's."""
        return sum(map(_ticks, self.pids())) / os.sysconf("SC_CLK_TCK")

    def output(self) -> str:
        """The end of what it printed."""
        return (self.folder / "output").read_text(errors="replace")[-2000:]

    def compare(self, outcomes: list[Outcome], upstream: Upstream, spans: list[Span]) -> Compared:
        """What was exported of it with what was so."""
        numbers = {outcome.number for outcome in outcomes}
        calls = [call for call in upstream.calls() if call[0] in numbers]
        observed = Observed(
            outcomes=outcomes,
            ttft_s=self.ttft_s(),
            calls=calls,
            spans=spans,
            answers=self.stack.answers,
        )
        return compare(observed, self.port)


@contextlib.contextmanager
def started(stack: Stack, upstream: Upstream, folder: Path) -> Iterator[Server]:
    """Start a server, wait until it answers, end it. Raises RuntimeError with what it printed."""
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            stack.argv(port),
            env=stack.environ(upstream.url, folder / "truth"),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
        )
    server = Server(stack=stack, port=port, process=process, folder=folder)
    try:
        _wait_until_it_answers(server)
        yield server
    finally:
        process.terminate()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_it_answers(server: Server) -> None:
    until = time.monotonic() + _START_S
    while time.monotonic() < until and server.process.poll() is None:
        try:
            with _connected(server):
                return
        except urllib.error.HTTPError as error:
            if error.code == HTTPStatus.NOT_FOUND:  # Ollama has no such route
                return
        except OSError:
            pass
        time.sleep(0.05)
    raise RuntimeError(f"{server.stack.name} does not answer: {server.output()}")


def _connected(server: Server) -> contextlib.AbstractContextManager[Any]:
    """A response, or, of a server that speaks no HTTP/1.1, a connection. Raises OSError."""
    if server.stack.load == "load_grpc":
        return socket.create_connection(("127.0.0.1", server.port))
    return urllib.request.urlopen(f"http://127.0.0.1:{server.port}/health")  # type: ignore[no-any-return]


def _ticks(pid: int) -> int:
    """Of a process and its children that ended; none of one that has: they are its parent's."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]))
    return 0


def _tree(pid: int) -> Iterator[int]:
    yield pid
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from _tree(int(child))
