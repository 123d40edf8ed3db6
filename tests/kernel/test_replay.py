"""A capture replayed gives what the session itself exported."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from examples.llm_server.client import Load, run
from tests.kernel.observing import OTELGPU, read_spans, run_otelgpu
from tests.rig import start_llm_server


def canonical(path: Path) -> list[dict[str, Any]]:
    return sorted(read_spans(path), key=lambda span: (span["traceId"], span["spanId"]))


@pytest.mark.parametrize("detail", ["ops", "all"])
def test_replay_gives_the_spans_of_the_session(tmp_path: Path, detail: str) -> None:
    live, replayed = tmp_path / "live.jsonl", tmp_path / "replayed.jsonl"
    capture = tmp_path / "session.capture"
    prefix = (OTELGPU, "record", f"--export=file:{live}", f"--detail={detail}", "-o", str(capture), "--")
    with start_llm_server(prefix=prefix) as server:
        for stream in (True, False):
            outcomes = run(
                Load(
                    url=server.url,
                    requests=15,
                    concurrency=5,
                    stream=stream,
                    max_tokens=6,
                    api="chat",
                    model="example-7b",
                    prompt="Say it again.",
                    traceparent=stream,
                )
            )
            assert all(outcome.status == 200 for outcome in outcomes)
    done = run_otelgpu("replay", f"--detail={detail}", "-o", str(replayed), str(capture))
    assert done.returncode == 0, done.stderr
    expected = canonical(live)
    assert len(expected) > 100
    assert canonical(replayed) == expected


def test_replay_needs_no_privilege_and_no_capture_of_its_own(tmp_path: Path) -> None:
    capture, traces = tmp_path / "session.capture", tmp_path / "traces.jsonl"
    done = run_otelgpu("record", "-o", str(capture), "--", "true")
    assert done.returncode == 0, done.stderr
    without = ("setpriv", "--bounding-set=-all", "--inh-caps=-all", "--", OTELGPU)
    replayed = subprocess.run(
        [*without, "replay", "-o", str(traces), str(capture)], capture_output=True, text=True, check=False
    )
    assert replayed.returncode == 0, replayed.stderr
