"""A bound of what probes may cost: the busy process is observed in windows, the one beside it in all that it does."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.kernel.observing import Session, read_metrics
from tests.rig import start_cuda_client

BUSY, CALM = 2_000_003, 61  # primes


def launches_by_process(traces: Path) -> Counter[int]:
    found: Counter[int] = Counter()
    for point in read_metrics(traces)["gpu.cuda.kernel.launch.calls"]:
        found[point["resource"]["process.pid"]] += int(point["asInt"])
    return found


def test_the_busy_process_is_observed_in_windows_and_the_calm_one_beside_it_always(tmp_path: Path) -> None:
    traces = tmp_path / "traces.jsonl"
    with (
        start_cuda_client(calls=BUSY) as busy,
        start_cuda_client(calls=CALM, sleep_us=10_000) as calm,
        Session(
            *("attach", f"-p{busy.pid}", f"-p{calm.pid}", "--families=cuda", "--detail=phases"),
            "--max-overhead=1",
            traces=traces,
        ) as session,
    ):
        calm.begin()
        made = busy.finish()  # with its probes on all the time it takes half a minute
        calm.finish()
        session.stop()
    launches = launches_by_process(traces)
    assert launches[calm.pid] == CALM
    assert 0 < launches[busy.pid] < made.calls["cudaLaunchKernel"] == BUSY
    assert f"process {busy.pid}: to observe" in session.said
    assert f"process {calm.pid}: " not in session.said
    assert "intended cuda.launch_probes_taken_off 1" in session.said
    assert "lost     nothing" in session.said


def test_it_is_observed_always_again_once_it_is_calm(tmp_path: Path) -> None:
    traces = tmp_path / "traces.jsonl"
    with (
        start_cuda_client(calls=300_007, linger_ms=60_000) as busy,
        Session(
            *("attach", f"-p{busy.pid}", "--families=cuda", "--detail=phases", "--max-overhead=30"),
            traces=traces,
        ) as session,
    ):
        busy.begin()
        assert session.process.stderr is not None
        said = [session.process.stderr.readline() for _ in range(2)]
    assert f"process {busy.pid}: to observe" in said[0]
    assert f"process {busy.pid}: all its launches are observed again" in said[1]
