"""HTTP/2 connections that have worked for a while when otelgpu comes: their generations, at both ends."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kernel.observing import Session, Span
from tests.rig import ROOT
from tests.rig.http2_traffic import FIRST_S, MODEL, TOKENS

BEFORE, AFTER, AT_ONCE = 23, 64, 8
SERVER, CLIENT = 2, 3  # span kinds


@contextmanager
def program(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(ROOT / "tests/rig/http2_traffic.py"), *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as started:
        try:
            yield started
        finally:
            started.kill()


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, f"{process.args} ended"
    return line


def ask(client: subprocess.Popen[str], streams: int) -> list[float]:
    """Have generations made; the seconds until the first chunk of each came."""
    assert client.stdin is not None
    client.stdin.write(f"{streams} {AT_ONCE}\n")
    client.stdin.flush()
    waited: list[float] = json.loads(line_of(client))
    return waited


@pytest.mark.parametrize("protocol", ["h2", "grpc"])
def test_generations_have_their_tokens_and_times(protocol: str, tmp_path: Path) -> None:
    with program("serve", protocol) as server:
        port = line_of(server).strip()
        with program("ask", protocol, port) as client:
            ask(client, BEFORE)
            with Session(
                "attach", f"-p{server.pid},{client.pid}", traces=tmp_path / "traces.jsonl"
            ) as session:
                waited = ask(client, AFTER)
                spans = session.spans(lambda span: span["kind"] in (SERVER, CLIENT), 2 * AFTER)
    for kind in (SERVER, CLIENT):
        found = [span for span in spans if span["kind"] == kind]
        assert len(found) == AFTER
        for span in found:
            check(span, protocol)
        first = sorted(until_first_token(span) for span in found)
        for reported, truth in zip(first, sorted(waited), strict=True):
            assert FIRST_S < reported <= truth + 0.001


def until_first_token(span: Span) -> float:
    """Seconds, of a server; of a client until the first chunk."""
    reported = span["attributes"]
    server = span["kind"] == SERVER
    return float(
        reported["gen_ai.latency.time_to_first_token" if server else "gen_ai.response.time_to_first_chunk"]
    )


def check(span: Span, protocol: str) -> None:
    reported = span["attributes"]
    assert reported["gen_ai.request.model"] == reported["gen_ai.response.model"] == MODEL
    assert reported["gen_ai.usage.output_tokens"] == reported["otelgpu.gen_ai.chunks"] == TOKENS
    assert not reported.keys() & {
        "error.type",
        "otelgpu.incomplete",
        "http.route",
        "url.template",
        "url.path",
    }
    if protocol == "grpc":
        assert "rpc.method" not in reported
        assert (reported["otelgpu.rpc.request.messages"], reported["otelgpu.rpc.response.messages"]) == (
            1,
            TOKENS,
        )
