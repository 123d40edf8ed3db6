"""A bound of what probes may cost: the busy process is observed in windows, the one beside it in all that it does."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from tests.kernel.observing import Session, read_metrics
from tests.rig import start_cuda_client
from tests.rig.cuda_client import CudaClient

ENDLESS, CALM = 2_000_000_000, 31


def by_process(traces: Path, metric: str) -> Counter[int]:
    found: Counter[int] = Counter()
    for point in read_metrics(traces)[metric]:
        found[point["resource"]["process.pid"]] += point.get("asDouble", 0) + int(point.get("asInt", 0))
    return found


def read_until(session: Session, client: CudaClient, text: str) -> list[str]:
    """What is said up to the line that says so of a client."""
    assert session.process.stderr is not None
    said = []
    for line in session.process.stderr:
        said.append(line)
        if f"process {client.pid}: {text}" in line:
            return said
    raise AssertionError(said)


@pytest.mark.alone(reason="a program launches as fast as it can, a processor's worth, until it is bounded")
def test_the_busy_process_is_observed_in_windows_and_the_calm_one_beside_it_always(tmp_path: Path) -> None:
    traces = tmp_path / "traces.jsonl"
    with (
        start_cuda_client(calls=ENDLESS) as busy,
        start_cuda_client(calls=CALM, sleep_us=20_000) as calm,
        Session(
            *("attach", f"-p{busy.pid}", f"-p{calm.pid}", "--families=cuda", "--detail=phases"),
            "--max-overhead=1",
            traces=traces,
        ) as session,
    ):
        busy.begin()
        said = read_until(session, busy, "to observe")
        calm.finish()
        session.stop()
    launches = by_process(traces, "gpu.cuda.kernel.launch.calls")
    unobserved_s = by_process(traces, "otelgpu.unobserved.duration")
    assert launches[calm.pid] == CALM and launches[busy.pid] > 0
    assert unobserved_s.keys() == {busy.pid} and unobserved_s[busy.pid] > 0
    assert f"process {calm.pid}: " not in "".join(said) + session.said
    assert "intended cuda.probes_taken_off 1" in session.said


@pytest.mark.alone(reason="a program takes all of a processor until it is bounded, and a rate is looked at")
def test_all_is_observed_again_once_it_is_calm(tmp_path: Path) -> None:
    with (
        start_cuda_client(calls=ENDLESS) as busy,
        Session(
            *("attach", f"-p{busy.pid}", "--families=cuda", "--detail=phases", "--max-overhead=20"),
            traces=tmp_path / "traces.jsonl",
        ) as session,
    ):
        busy.begin()
        read_until(session, busy, "to observe")
        os.kill(busy.pid, signal.SIGSTOP)
        read_until(session, busy, "all its calls are observed again")
        session.stop()
    assert "intended cuda.probes_kept_again 1" in session.said
