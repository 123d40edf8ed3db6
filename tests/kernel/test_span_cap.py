"""A limit of spans a second, live: what is reported, what is left out and what is lost make up what was called."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.kernel.observing import OTELGPU, probed, read_metrics, read_spans
from tests.kernel.test_overload_metrics import summed
from tests.rig.programs import program_command, program_environment

PROGRAMS = 4


def test_calls_in_spans_and_calls_left_out_make_up_the_calls(tmp_path: Path) -> None:
    traces = tmp_path / "traces.jsonl"
    options = ("--families=cuda", "--traces-spans-per-second=1", f"--export=file:{traces}")
    command = program_command("shared", "--launches=1009", "--mallocs=101")
    done = subprocess.run(
        [
            OTELGPU,
            "run",
            *options,
            "--",
            "sh",
            "-c",
            f'for n in {"x " * PROGRAMS}; do "$@"; done',
            "sh",
            *command,
        ],
        env=program_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    said = [dict[str, int](json.loads(line)["calls"]) for line in done.stdout.splitlines()]
    made = sum(sum(probed(calls).values()) for calls in said)
    spans = read_spans(traces)
    work = [span for span in spans if span["name"].startswith("cu")]
    reported = sum(int(span["attributes"].get("otelgpu.count", 1)) for span in work)
    left_out = sum(
        int(point["asInt"])
        for point in read_metrics(traces)["otelgpu.losses"]
        if point["attributes"]["otelgpu.reason"] == "capped_operations"
    )
    losses = summed(traces)[1]
    launches = sum(int(point["asInt"]) for point in read_metrics(traces)["gpu.cuda.kernel.launch.calls"])
    assert len(said) == PROGRAMS and left_out > 0
    assert reported + left_out + losses["ring_full"] + losses["detail_shed"] == made
    assert 0 <= PROGRAMS * 1009 - launches <= losses["ring_full"]  # metrics are of all calls
    assert f"intended correlate.capped_operations {left_out}" in done.stderr
