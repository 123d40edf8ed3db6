"""Streams of events of 40 KB and more, longer than what is captured of a body: their times and their tokens."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kernel.http2_ends import CLIENT, SERVER, ask, line_of, until_first_token
from tests.kernel.http2_ends import program as http2_program
from tests.kernel.observing import Session, Span
from tests.rig import ROOT
from tests.rig.http2_traffic import FIRST_S

TOKENS = 79
EVENT_BYTES = 40_000  # llama-server's with the probabilities of sixty tokens; 3 MiB in all
HTTP2_TOKENS = 19
HTTP2_CHUNKS = {40_000: 3, 200_000: 2}  # streams of each
HTTP2_RING = f"--ring-bytes={64 << 20}"
HTTP2_READ_BYTES = "50000"  # reads end anywhere in a frame, and none is as long as an event
CLOCK_S = 0.002  # between a clock read in Python and the call beside it, on a busy machine


@pytest.fixture(scope="module")
def program() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, str(ROOT / "tests/rig/large_events.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield process
        process.kill()


def asked(
    program: subprocess.Popen[str], traces: Path, **request: Any
) -> tuple[dict[str, float], list[Span]]:
    """What the program tells of one request, and its spans: the client's, the server's."""
    assert program.stdin is not None
    assert program.stdout is not None
    defaults = {"tokens": TOKENS, "event_bytes": EVENT_BYTES, "read_bytes": 65536, "pause_s": 0.005}
    with Session("attach", f"-p{program.pid}", traces=traces) as session:
        program.stdin.write(json.dumps(defaults | request) + "\n")
        program.stdin.flush()
        told = json.loads(program.stdout.readline())
        spans = session.spans(lambda span: "http.request.method" in span["attributes"], 2)
    return told, sorted(spans, key=lambda span: -int(span["kind"]))


@pytest.mark.parametrize("write", ["send", "writev"])
@pytest.mark.parametrize("usage", [True, False])
def test_a_long_stream_of_large_events_keeps_its_tokens_and_times(
    program: subprocess.Popen[str], tmp_path: Path, write: str, usage: bool
) -> None:
    """The times of one of three attempts: another program may have the processor between two clocks."""
    off = []
    for attempt in range(3):
        told, spans = asked(program, tmp_path / f"{attempt}.jsonl", write=write, usage=usage)
        assert told["bytes"] > 3 << 20
        for span in spans:
            reported = span["attributes"]
            assert "otelgpu.incomplete" not in reported
            assert "error.type" not in reported
            assert reported["gen_ai.usage.output_tokens"] == reported["otelgpu.gen_ai.chunks"] == TOKENS
            assert ("otelgpu.gen_ai.usage.estimated" in reported) == (not usage)
            assert reported["gen_ai.response.finish_reasons"] == ("stop",)
            assert reported["http.response.size"] >= told["bytes"]
        server = spans[-1]["attributes"]
        per_token = (told["last_s"] - told["first_s"]) / (TOKENS - 1)
        first_off = abs(server["gen_ai.latency.time_to_first_token"] - told["first_s"])
        each_off = abs(server["otelgpu.gen_ai.time_per_output_token"] - per_token)
        off.append((first_off, each_off))
        if max(off[-1]) <= CLOCK_S:
            break
    else:
        raise AssertionError(off)


@pytest.mark.parametrize("protocol", ["h2", "grpc"])
def test_large_chunks_of_http2_keep_tokens_times_and_statuses(protocol: str, tmp_path: Path) -> None:
    """Several at once over one connection, 0.8 or 4 MB each: less than a quarter of the ring, and so read whole."""
    with (
        http2_program("serve", protocol) as server,
        http2_program("ask", protocol, line_of(server).strip(), HTTP2_READ_BYTES) as client,
    ):
        ask(client, 1, 1)
        observed = f"-p{server.pid},{client.pid}"
        with Session("attach", observed, HTTP2_RING, traces=tmp_path / "traces.jsonl") as session:
            waited = [
                waited
                for chunk_bytes, streams in HTTP2_CHUNKS.items()
                for waited in ask(client, streams, streams, HTTP2_TOKENS, chunk_bytes)
            ]
            spans = session.spans(lambda span: span["kind"] in (SERVER, CLIENT), 2 * len(waited))
    for kind in (SERVER, CLIENT):
        found = [span for span in spans if span["kind"] == kind]
        assert len(found) == len(waited)
        for span in found:
            reported = span["attributes"]
            assert not reported.keys() & {"otelgpu.incomplete", "error.type"}
            assert reported["gen_ai.usage.output_tokens"] == HTTP2_TOKENS
            assert reported["otelgpu.gen_ai.chunks"] == HTTP2_TOKENS
        assert min(until_first_token(span) for span in found) > FIRST_S
    first = sorted(until_first_token(span) for span in spans if span["kind"] == CLIENT)
    for seconds, truth in zip(first, sorted(waited), strict=True):
        assert seconds <= truth + CLOCK_S
