"""What only a real GPU can prove; conftest.py says where these run. Figures go to gpu-results.json."""

from __future__ import annotations

import importlib.util
import json
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.gpu import probing
from tests.gpu.conftest import Gpu
from tests.rig.metrics import metrics_reported
from tests.rig.spans import attributes_of, read_spans

OTELGPU = Path(sys.executable).with_name("otelgpu")
SOURCES = {"uprobe": (), "inject": ("--source=inject",), "cupti": ("--source=inject", "--device-time")}
Figure = Callable[[str, Any], None]


@pytest.fixture
def observed(gpu: Gpu, tmp_path: Path) -> Callable[..., tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Runs a command under otelgpu: its last line of JSON, and every span and metric point that was reported."""

    def run(
        command: Sequence[str | Path], *options: str, env: dict[str, str] | None = None
    ) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        out = tmp_path / f"{len(list(tmp_path.iterdir()))}.jsonl"
        done = gpu.run(
            *(OTELGPU, "run", "--quiet", "--detail=all", f"--export=file:{out}", *options, "--", *command),
            env=env,
        )
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        return (json.loads(lines[-1]) if lines else {}), list(reported(out))

    return run


def reported(path: Path) -> Any:
    """Spans and metric points of an OTLP JSON lines file, attributes as a plain mapping."""
    yield from read_spans(path)
    for metric, _, points in metrics_reported(path):
        for point in points:
            yield {"metric": metric["name"], **point, "attributes": attributes_of(point)}


def kernel_spans(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Device spans: those alone have a correlation id."""
    return [span for span in found if "cuda.correlation.id" in span["attributes"]]


def _value(point: dict[str, Any]) -> float:
    return float(point.get("asInt", point.get("asDouble", 0)))


def test_check_comes_first(gpu: Gpu, figure: Figure) -> None:
    done = subprocess.run([OTELGPU, "check", "--json"], capture_output=True, text=True, timeout=100)
    report = json.loads(done.stdout)
    figure("otelgpu check", report)
    assert report


def test_which_driver_functions_a_runtime_launch_enters(gpu: Gpu, program: Path, figure: Figure) -> None:
    if why := probing.hindrance():
        pytest.skip(why)
    runtime = Path(gpu.environment["LD_LIBRARY_PATH"], "libcudart.so.12")
    exported = ("cuLaunchKernel", "cuLaunchKernelEx", "cuLaunchKernel_ptsz", "cuStreamSynchronize")
    places = [(gpu.driver, symbol) for symbol in exported]
    with probing.counting((runtime, "cudaLaunchKernel"), *places) as counts:
        gpu.run(program, "timed", "23", "100")
        hits = counts()
    figure("entries of exported functions for 23 runtime launches", hits)
    assert hits["cudaLaunchKernel"] == 23


def test_a_kernel_of_a_library_loaded_from_memory_is_named(program: Path, observed: Any) -> None:
    _, found = observed([program, "timed", "23", "100"])
    launches = Counter(span["name"] for span in found if span.get("name", "").startswith("cudaLaunchKernel"))
    assert launches == {"cudaLaunchKernel otelgpu_spin": 23}


def test_kernels_of_an_nvcc_program_are_named(nvcc: str, tmp_path: Path, observed: Any) -> None:
    binary, source = tmp_path / "kernels", Path(__file__).with_name("kernels.cu")
    subprocess.run([nvcc, "-o", binary, source], check=True, timeout=200)
    _, found = observed([binary])
    launches = Counter(span["name"] for span in found if "LaunchKernel" in span.get("name", ""))
    assert {name.split()[-1]: count for name, count in launches.items()} == {"scale_rows": 23, "add_one": 23}


def test_kernels_of_pytorch_are_named(gpu: Gpu, observed: Any, figure: Figure) -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("PyTorch is not installed in this environment")
    said, found = observed([sys.executable, Path(__file__).with_name("torch_program.py")])
    names = Counter(
        span["attributes"].get("cuda.kernel.name", "[unknown]")
        for span in found
        if "LaunchKernel" in span.get("name", "")
    )
    unknown = names["[unknown]"]
    figure("PyTorch", {**said, "launches": names.total(), "unnamed": unknown, "names": list(names)[:40]})
    assert names.total() >= 60  # 20 steps of two products, an activation and a softmax, fused at best in part
    assert unknown == 0
    # What is in use at the end is nothing: it ends before a report is due.
    peaks = [_value(point) for point in found if point.get("metric") == "gpu.cuda.memory.peak"]
    figure("PyTorch: peak by ledger, reserved by its allocator", [max(peaks), said["reserved"]])
    assert max(peaks) >= said["reserved"]


def test_device_durations_agree_with_events_within_5_percent(
    program: Path, observed: Any, figure: Figure
) -> None:
    said, found = observed(
        [program, "timed", "101", "2000"], *SOURCES["cupti"], env={"FAKE_CUDART_KERNEL_US": "2000"}
    )
    kernels = kernel_spans(found)
    assert {span["name"] for span in kernels} == {"otelgpu_spin"}
    assert len(kernels) >= 90  # what came before the first slice has none
    ours = statistics.median(span["end"] - span["start"] for span in kernels) / 1e6
    theirs = statistics.median(said["ms"])
    figure("CUPTI duration and cudaEvent time of 2 ms kernels, medians in ms", [ours, theirs])
    # Two events stand around a kernel and take a few µs; single launches may be disturbed.
    assert ours == pytest.approx(theirs, rel=0.05)
    launched = [span for span in found if span.get("name", "").startswith("cudaLaunchKernel")]
    assert {span.get("parentSpanId") for span in kernels} <= {span.get("parentSpanId") for span in launched}


def test_the_memory_ledger_agrees_with_the_program_and_the_device(
    gpu: Gpu, program: Path, observed: Any, figure: Figure
) -> None:
    said, found = observed([program, "memory", "400", "7"])
    live, of_device = zip(*said["checkpoints"], strict=True)
    usage = [int(p["asInt"]) for p in found if p.get("metric") == "gpu.cuda.memory.usage"]
    peak = [_value(p) for p in found if p.get("metric") == "gpu.cuda.memory.peak"]
    figure(
        "memory: peak by ledger, program, cudaMemGetInfo", [max(peak, default=0), max(live), max(of_device)]
    )
    assert usage
    assert max(peak) == max(live)
    # The device's account has what others take and give meanwhile; ours is exact.
    assert max(of_device) == pytest.approx(max(live), rel=0.05)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("kernel_us", [5, 0], ids=["5us", "0us"])
def test_what_observing_costs_a_decode_loop(
    gpu: Gpu, program: Path, observed: Any, figure: Figure, source: str, kernel_us: int
) -> None:
    """Of 5 µs the device is the slower side, which hides what the host spends; of 0 µs the host is."""
    command = [program, "decode", "1000", "100", str(kernel_us)]
    fast = {"FAKE_CUDART_KERNEL_US": str(kernel_us)}
    alone, under = [], []
    for _ in range(3):  # by turns, so that what else the machine does falls on both
        alone.append(json.loads(gpu.run(*command, env=fast).stdout)["step_us"])
        said, found = observed(command, *SOURCES[source], env=fast)
        under.append(said["step_us"])
    figure(
        f"decode loop of 100 launches of {kernel_us} µs a step, by {source}",
        {
            "step_us alone": statistics.median(alone),
            "step_us observed": statistics.median(under),
            "slower": statistics.median(under) / statistics.median(alone),
        },
    )
    launches = sum(span.get("name", "").startswith("cudaLaunchKernel") for span in found)
    assert launches >= 1
