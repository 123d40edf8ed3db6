"""The server and the client of an HTTP/2 connection (``tests/rig/http2_traffic.py``), and what spans say of theirs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.kernel.observing import Span
from tests.rig import ROOT

SERVER, CLIENT = 2, 3  # span kinds


@contextmanager
def program(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """One end, until it is killed."""
    command = [sys.executable, str(ROOT / "tests/rig/http2_traffic.py"), *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as started:
        try:
            yield started
        finally:
            started.kill()


def line_of(process: subprocess.Popen[str]) -> str:
    """What it says next."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, f"{process.args} ended"
    return line


def ask(client: subprocess.Popen[str], streams: int, at_once: int, *of_each: int) -> list[float]:
    """Have generations made, each of so many tokens and bytes a chunk; the seconds until the first chunk came."""
    assert client.stdin is not None
    client.stdin.write(" ".join(map(str, (streams, at_once, *of_each))) + "\n")
    client.stdin.flush()
    waited: list[float] = json.loads(line_of(client))
    return waited


def until_first_token(span: Span) -> float:
    """Seconds, of a server; of a client until the first chunk."""
    reported = span["attributes"]
    server = span["kind"] == SERVER
    return float(
        reported["gen_ai.latency.time_to_first_token" if server else "gen_ai.response.time_to_first_chunk"]
    )
