"""Calls inside calls: the outermost counts, what says a name is always kept, what was left is forgotten."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from otelgpu.kernel import libbpf
from otelgpu.kernel.uprobe_links import UprobeLinks
from otelgpu.sources import loading
from tests.kernel.observing import Watch
from tests.rig import missing_compiler

SOURCE = Path(__file__).parent / "data" / "cuda_nesting.c"
OUTERMOST = {
    "cudaMemcpy": 7,
    "cudaMallocManaged": 7,
    "cudaLaunchKernel": 11,
    "cudaEventRecord": 11,
    "cudaFree": 6,
    "cuMemcpyHtoD_v2": 5,
}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if tool := missing_compiler():
        pytest.skip(f"needs {tool}")
    made = tmp_path_factory.mktemp("nesting") / "program"
    options = ("-O1", "-Wall", "-Wextra", "-Werror", "-fno-optimize-sibling-calls", "-fcf-protection=none")
    subprocess.run(["gcc", *options, "-o", made, SOURCE], check=True)
    return made


def run(watching: Watch, program: Path) -> int:
    process = subprocess.Popen([program], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None and process.stderr.readline() == "ready\n"
    watching.observe(process.pid)
    watching.during(lambda: process.communicate("\n", timeout=30))
    assert process.returncode == 0
    return process.pid


@pytest.mark.parametrize("sessions", [True, False])
def test_the_outermost_call_is_recorded_and_what_was_left_is_counted(
    watch: Callable[..., Watch], program: Path, sessions: bool
) -> None:
    watching = watch(sessions=sessions)
    assert watching.calls(run(watching, program)) == OUTERMOST
    lost = {reason: count for (family, reason), count in watching.losses().items() if family == "cuda"}
    assert lost == {"call_abandoned": 3}


@pytest.mark.parametrize("sessions", [True, False])
def test_a_name_asked_for_within_a_launch_is_kept(
    watch: Callable[..., Watch], program: Path, sessions: bool
) -> None:
    watching = watch(sessions=sessions)
    run(watching, program)
    names = watching.records("cuda_name")
    assert {(bytes(n["text"]), int(n["length"])) for n in names} == {(b"flash_fwd", 9)}
    assert len(names) == OUTERMOST["cudaLaunchKernel"]


def test_without_return_probes_the_runtime_s_calls_of_the_driver_are_still_reported(
    watch: Callable[..., Watch], program: Path
) -> None:
    watching = watch(return_probes=False)
    # What is left by longjmp is recorded too, and of two functions at one place on the stack each.
    assert watching.calls(run(watching, program)) == OUTERMOST | {"cudaStreamSynchronize": 3, "cudaMalloc": 7}


def test_probes_of_others_on_the_returns_change_nothing(watch: Callable[..., Watch], program: Path) -> None:
    """The kernel's trampoline then lies where the return address was."""
    other = watch()
    other.source.prepare_file(program)
    watching = watch(return_probes=False)
    assert watching.calls(run(watching, program)) == OUTERMOST | {"cudaStreamSynchronize": 3, "cudaMalloc": 7}


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("sessions", [True, False])
def test_what_is_only_counted_contains_its_calls_too(
    watch: Callable[..., Watch], program: Path, sessions: bool, level: int
) -> None:
    watching = watch(sessions=sessions)
    watching.source.overloads[0].force(level)
    recorded = watching.calls(run(watching, program))
    watching.inputs += watching.source.losses()
    counted = watching.counted()
    expected = dict(OUTERMOST)
    if level == 2:
        expected["cudaStreamSynchronize"] = 3
        if sessions:  # without the return, a jump looks like a second call from one place
            expected["cudaMalloc"] = 7
    assert recorded | counted == expected
    assert not recorded.keys() & counted.keys()


def test_kernels_without_links_of_many_probes_see_the_same(
    watch: Callable[..., Watch], program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before Linux 6.6 each probe is a perf event of its own."""
    for module in (libbpf, loading):
        monkeypatch.setattr(module, "uprobe_links", lambda: UprobeLinks.SINGLE)
    watching = watch()
    pid = run(watching, program)
    assert watching.calls(pid) == OUTERMOST
    (probed_file,) = [found for found in watching.source.probed_files if found.path == str(program)]
    assert len(probed_file.links) == 2 * 9 + 2  # pairs, and the entries of two functions
