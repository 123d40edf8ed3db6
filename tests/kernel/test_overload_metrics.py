"""Beyond capacity: what the exported metrics count, and what they say was lost, make up what was called, exactly."""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from tests.kernel.observing import OTELGPU, probed, read_metrics
from tests.rig import run_cuda_client
from tests.rig.programs import program_command, program_environment

CALLS: Final = 50_021  # prime
SOURCES: Final = {
    "uprobe": ("--ring-bytes=65536",),
    "inject": ("--ring-bytes=524288", "--source=inject"),  # an eighth of it for each thread
}


def summed(traces: Path) -> tuple[int, Counter[str]]:
    """Calls in the metrics that count calls, and the losses of the family by reason."""
    metrics = read_metrics(traces)
    losses: Counter[str] = Counter()
    for point in metrics["otelgpu.losses"]:
        if point["attributes"]["otelgpu.family"] == "cuda":
            losses[point["attributes"]["otelgpu.reason"]] += int(point["asInt"])
    calls = sum(int(p["asInt"]) for name in metrics if name.endswith(".calls") for p in metrics[name])
    return calls, losses


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("detail", ["ops", "phases"])
def test_calls_and_losses_in_the_metrics_make_up_the_calls(source: str, detail: str, tmp_path: Path) -> None:
    traces = tmp_path / "traces.jsonl"
    options = (*SOURCES[source], "--families=cuda", f"--detail={detail}", f"--export=file:{traces}")
    said = run_cuda_client(
        prefix=(OTELGPU, "run", *options, "--"), calls=CALLS, functions=("cudaLaunchKernel",), threads=3
    )
    made = sum(probed(dict(said.calls)).values())
    calls, losses = summed(traces)
    print(f"\n{source}: {made} made, {calls} in the metrics, {dict(losses)}")
    assert calls + losses["ring_full"] == made >= CALLS
    launches = sum(int(p["asInt"]) for p in read_metrics(traces)["gpu.cuda.kernel.launch.calls"])
    assert launches <= said.calls["cudaLaunchKernel"]
    assert losses["ring_full"] + losses["detail_shed"] > 0  # it was beyond capacity
    counted = re.search(r"counted only\D+(\d+)", said.stderr)
    assert (int(counted[1]) if counted else 0) == losses["detail_shed"]


def test_calls_of_several_processes_that_end_meanwhile_make_up_the_calls(tmp_path: Path) -> None:
    """Those counted in place of being recorded are reported before their process is forgotten."""
    traces = tmp_path / "traces.jsonl"
    command = program_command("shared", "--launches=20011", "--mallocs=2003")
    options = (*SOURCES["uprobe"], "--families=cuda", f"--export=file:{traces}")
    script = 'for n in 1 2 3 4 5; do "$@" & "$@" & wait; done'
    done = subprocess.run(
        [OTELGPU, "run", *options, "--", "sh", "-c", script, "sh", *command],
        env=program_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    said = [dict[str, int](json.loads(line)["calls"]) for line in done.stdout.splitlines()]
    made = sum(sum(probed(calls).values()) for calls in said)
    metrics = read_metrics(traces)
    losses = summed(traces)[1]
    assert len(said) == 10
    assert losses["detail_shed"] > 0
    recorded = re.search(r"records +(\d+) cuda\D", done.stderr)
    assert recorded
    names = len(said) * 4  # a kernel's registration is a record too: two, and what they are called
    assert 0 <= int(recorded[1]) + losses["detail_shed"] + losses["ring_full"] - made <= names
    launches = sum(int(p["asInt"]) for p in metrics["gpu.cuda.kernel.launch.calls"])
    allocations = sum(int(p["asInt"]) for p in metrics["gpu.cuda.memory.allocation.calls"])
    missing = sum(calls["cudaLaunchKernel"] + calls["cudaMalloc"] for calls in said) - launches - allocations
    assert 0 <= missing <= losses["ring_full"]
