"""What PyTorch's own readers make of a ``.pt.trace.json.gz``: the sums of kernels are those of our spans."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Final

import pytest

from tests.backends.programs import CACHE, missing_program
from tests.rig import fake_cudart_path, run_cuda_client
from tests.rig.spans import read_spans

_HERE: Final = Path(__file__).parent / "tensorboard"
OTELGPU: Final = str(Path(sys.executable).with_name("otelgpu"))
PYTHON: Final = CACHE / "tensorboard" / "bin" / "python"
LAUNCHES: Final = 60
KERNEL_US: Final = 300


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a program whose kernels were measured on the fake CUPTI."""
    if missing := missing_program("tensorboard", PYTHON, "tensorboard/requirements.txt"):
        pytest.skip(missing)
    if os.geteuid() != 0:
        pytest.skip("needs root, to observe the program")
    path = tmp_path_factory.mktemp("tensorboard") / "kernels.capture"
    command = (OTELGPU, "record", "--source=inject", "--device-time", "--quiet", "-o", str(path), "--")
    reported = run_cuda_client(
        prefix=command,
        calls=LAUNCHES,
        sleep_us=2000,
        linger_ms=300,
        env={
            "LD_LIBRARY_PATH": str(fake_cudart_path().parent),
            "FAKE_CUDART_DRIVER": "libcuda.so.1",
            "FAKE_CUDART_KERNEL_US": str(KERNEL_US),
        },
    )
    assert reported.calls["cudaLaunchKernel"] == LAUNCHES
    return path


def test_both_readers_find_the_kernels_that_our_spans_report(capture: Path, tmp_path: Path) -> None:
    trace, lines = tmp_path / "out.pt.trace.json.gz", tmp_path / "spans.jsonl"
    subprocess.run([OTELGPU, "replay", capture, "--quiet", "-o", trace, "-o", lines], check=True)
    read = subprocess.run(
        [PYTHON, _HERE / "read.py", trace], capture_output=True, text=True, check=True, timeout=120
    )
    reported = json.loads(read.stdout.splitlines()[-1])
    ours, count = kernels_of(lines)
    assert sum(count.values()) >= 0.9 * LAUNCHES  # measuring begins within the first
    board, holistic = reported["tensorboard"], reported["holistic"]
    assert {name: calls for name, (calls, _) in board["kernels"].items()} == count
    assert {name: us for name, (_, us) in board["kernels"].items()} == pytest.approx(ours, rel=0.01)
    assert holistic["kernels"] == pytest.approx(ours, rel=0.01)
    assert holistic["launched"] == sum(count.values())
    assert holistic["kernel_us"] == pytest.approx(sum(ours.values()), rel=0.01)
    assert {"Kernel", "Trace"} <= set(board["views"])
    assert (board["steps"], holistic["steps"]) == (["0"], [0])


def kernels_of(lines: Path) -> tuple[dict[str, float], Counter[str]]:
    """Microseconds on the device, and kernels, by name."""
    microseconds: defaultdict[str, float] = defaultdict(float)
    count: Counter[str] = Counter()
    for span in read_spans(lines):
        reported = span["attributes"]
        if "cuda.correlation.id" in reported and "cuda.kernel.name" in reported:
            microseconds[reported["cuda.kernel.name"]] += (span["end"] - span["start"]) / 1000
            count[reported["cuda.kernel.name"]] += 1
    return dict(microseconds), count
