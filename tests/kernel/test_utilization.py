"""`diagnose utilization` on live programs with a device of the fake runtime and the fake NVML.

They go before what else the machine does: a thread that gets no CPU feeds no device.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gallery.programs.device import FAKES
from tests.gallery.programs.products import CALLS, FLOPS
from tests.gallery.utilization import CASES, NOTHING, Said, diagnose
from tests.kernel.observing import OTELGPU
from tests.rig import ROOT, fake_cudart_path
from tests.rig.priority import FIRST

pytestmark = pytest.mark.long

TRIES = 3
"""Of a program with a cause: on a machine on which others work it may be idle for another reason."""
MOST_MISSED = 1
"""Of all programs with a cause, which was not named first in any try. Of the healthy nothing may ever be said."""
missed: list[str] = []


@pytest.fixture(scope="module", autouse=True)
def fakes() -> None:
    fake_cudart_path()


def said_of(name: str) -> Said:
    """Of who is healthy one look decides."""
    said = diagnose(name)
    for _ in range(TRIES - 1):
        if CASES[name].cause in (said.cause, ""):
            break
        said = diagnose(name)
    return said


LIVE = [name for name, case in CASES.items() if case.live]
"""One for each thing that has to be seen; of the others recordings are judged, in tests/unit/diagnose."""


@pytest.mark.parametrize("name", LIVE)
def test_the_cause_is_named_first_and_nothing_is_said_of_the_healthy(name: str) -> None:
    said, wanted = said_of(name), CASES[name].cause or NOTHING
    if wanted == NOTHING:
        assert said.cause == NOTHING, said.text
        return
    if said.cause != wanted:
        missed.append(f"{name}: {said.cause}")
        assert len(missed) <= MOST_MISSED, f"{missed}: {said.text}"
        return
    for each in CASES[name].says:
        assert each in said.text


def test_a_recording_says_the_same_and_a_page_is_written(tmp_path: Path) -> None:
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "OTELGPU_DETAIL": "all", "LD_LIBRARY_PATH": str(FAKES)}
    environ |= {"FAKE_CUDART_KERNEL_US": "2000", "FAKE_CUDART_COPY_GB_PER_S": "10"}
    program = [sys.executable, "-m", "tests.gallery.programs", "pageable_copy", str(tmp_path)]
    recording, page = tmp_path / "job.jsonl", tmp_path / "report.html"
    kinds = "cpu,offcpu,syscall,file,cuda,nccl"
    subprocess.run(
        [
            *FIRST,
            OTELGPU,
            "profile",
            "-t",
            kinds,
            "--export",
            f"file:{recording}",
            "-o",
            tmp_path / "x.folded",
            "--",
            *program,
        ],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        timeout=120,
        check=True,
    )
    done = subprocess.run(
        [OTELGPU, "diagnose", "utilization", recording, "--json", "-o", page],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 3, done.stderr
    report = json.loads(done.stdout)
    assert "host_transfer" in [each["cause"] for each in report["verdicts"]]
    assert any("copies that block" in each["text"] for each in report["verdicts"][0]["evidence"])
    assert "host_transfer" in page.read_text()


def test_flops_of_matrix_products_are_those_of_the_shapes_that_cublas_was_called_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTELGPU_HOLD_ON_LOAD", "true")  # cuBLAS is loaded late, and every call of it counts
    said = diagnose("matrix_products", "--flops")
    found = {each.name: each for each in said.document.figures}
    assert "from 320 calls of cuBLAS; what other kernels did is not counted" in found["mfu"].text
    rate, busy = found["matrix_flops_per_second"].value, found["launches_per_second"].value
    assert rate is not None and busy is not None
    launches = 10 * CALLS / 4
    assert rate * launches / busy == pytest.approx(FLOPS, rel=1e-6)  # the same seconds
