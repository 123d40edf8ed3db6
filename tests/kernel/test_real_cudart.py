"""The real libcudart of the nvidia packages: found by name; without a GPU its calls fail, and say how."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest

from otelgpu.families.cuda.results import result_name
from tests.kernel.observing import OTELGPU, PROBED, Watch, cuda_calls, probed, read_spans
from tests.rig import run_cuda_client, start_cuda_client

CALLS = 23


@pytest.fixture(params=["nvidia/cuda_runtime/lib/libcudart.so.12", "nvidia/cu13/lib/libcudart.so.13"])
def library(request: pytest.FixtureRequest) -> Path:
    path = Path(sysconfig.get_path("purelib"), request.param)
    if not path.exists():
        pytest.skip(f"{path} is not there: nvidia-cuda-runtime-cu12 or nvidia-cuda-runtime is not installed")
    return path


def test_every_failing_call_arrives_with_its_code(watching: Watch, library: Path) -> None:
    watching.source.prepare_file(library)
    with start_cuda_client(calls=CALLS, functions=("all",), late_ms=0, library=library) as client:
        watching.observe(client.pid)
        said = watching.during(client.finish)
    assert Path(said.library).samefile(library)
    made = probed(dict(said.calls))
    assert set(made) == set(PROBED)
    assert watching.calls(said.pid) == made
    names = watching.api_names()
    seen: dict[str, dict[int, int]] = {}
    for kind in ("launch", "graph_launch", "copy", "allocation", "free", "synchronization"):
        for record in watching.records(f"cuda_{kind}"):
            if status := int(record["status"]):
                codes = seen.setdefault(names[int(record["api"])], {})
                codes[status] = codes.get(status, 0) + 1
    assert seen == {name: codes for name, codes in said.failures.items() if name in PROBED}


def test_failing_calls_are_error_spans_named_by_their_code(library: Path, tmp_path: Path) -> None:
    traces = tmp_path / "traces.jsonl"
    said = run_cuda_client(
        prefix=(OTELGPU, "run", "--detail=all", "--quiet", f"--export=file:{traces}", "--"),
        calls=CALLS,
        functions=("cudaMalloc", "cudaDeviceSynchronize", "cudaLaunchKernel"),
        late_ms=0,
        library=library,
    )
    spans = read_spans(traces)
    assert cuda_calls(spans) == probed(dict(said.calls))
    for function, codes in said.failures.items():
        if function not in PROBED:
            continue
        failed = [s for s in spans if s["name"].split()[0] == function and s["status"].get("code") == 2]
        assert len(failed) == sum(codes.values())
        told = {(s["status"]["message"], s["attributes"]["error.type"]) for s in failed}
        assert told == {(result_name(code), result_name(code)) for code in codes}
    # Without a driver nothing but an error can come of an allocation.
    if not Path("/dev/nvidiactl").exists():
        assert said.failures["cudaMalloc"] == {35: CALLS}  # cudaErrorInsufficientDriver
