"""The real libcudart of the nvidia packages: found by name; without a GPU its calls fail, and say how."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest

from otelgpu.families.gpu.cuda.results import result_name
from otelgpu.model.operations import DEVICE_KINDS
from otelgpu.processes.elf_files import open_elf
from tests.kernel.observing import OTELGPU, PROBED, Watch, cuda_calls, probed, read_spans
from tests.rig import run_cuda_client, start_cuda_client
from tools.cuda_calls import calls

CALLS = 23


@pytest.fixture(params=["nvidia/cuda_runtime/lib/libcudart.so.12", "nvidia/cu13/lib/libcudart.so.13"])
def library(request: pytest.FixtureRequest) -> Path:
    path = Path(sysconfig.get_path("purelib"), request.param)
    if not path.exists():
        pytest.skip(f"{path} is not there: nvidia-cuda-runtime-cu12 or nvidia-cuda-runtime is not installed")
    return path


def test_every_function_that_the_library_has_is_probed(watching: Watch, library: Path) -> None:
    watching.source.prepare_file(library)
    probed_file = watching.probed_file(library)
    assert probed_file.refused == ()
    with open_elf(library) as file:
        exported = set(file.image.function_offsets({call.symbol for call in calls()}))
    assert set(probed_file.symbols) == exported
    assert len(exported) > 150
    assert {call.symbol for call in calls() if call.library == "libcuda"}.isdisjoint(exported)


def test_every_failing_call_arrives_with_its_code(watching: Watch, library: Path) -> None:
    watching.source.prepare_file(library)
    with start_cuda_client(calls=CALLS, functions=("all",), late_ms=0, library=library) as client:
        watching.observe(client.pid)
        said = watching.during(client.finish)
    assert Path(said.library).samefile(library)
    made = probed(dict(said.calls))
    assert len(made) > 10
    assert watching.calls(said.pid) == made
    names = watching.api_names()
    seen: dict[str, dict[int, int]] = {}
    for kind in DEVICE_KINDS:
        for record in watching.records(f"cuda_{kind.name.lower()}"):
            if status := int(record["status"]):
                codes = seen.setdefault(names[int(record["api"])], {})
                codes[status] = codes.get(status, 0) + 1
    reported = {call.symbol for call in calls() if call.symbol in PROBED and not call.entry_only}
    assert seen == {name: codes for name, codes in said.failures.items() if name in reported}


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
        if function not in PROBED or function == "cudaEventRecord":  # of which the return is not seen
            continue
        failed = [s for s in spans if s["name"].split()[0] == function and s["status"].get("code") == 2]
        assert len(failed) == sum(codes.values())
        reported = {(s["status"]["message"], s["attributes"]["error.type"]) for s in failed}
        assert reported == {(result_name(function, code), result_name(function, code)) for code in codes}
    # Without a driver nothing but an error can come of an allocation.
    if not Path("/dev/nvidiactl").exists():
        assert said.failures["cudaMalloc"] == {35: CALLS}  # cudaErrorInsufficientDriver
