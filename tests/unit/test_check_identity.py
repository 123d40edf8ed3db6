"""``check`` says where a process runs and how that is known, and what it only says of itself."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from otelgpu.check.inspection import ProcessInspector
from otelgpu.check.process_report import ProcessReport
from otelgpu.cli.listing import Listing, Report
from otelgpu.processes.coverage import Observed
from otelgpu.processes.kubernetes import OwnPod
from otelgpu.processes.resources import ResourceDetector
from tests.unit.processes.processes_builders import POD

OWN = OwnPod(node="node-1")


def report(process: Observed) -> Report:
    report = ProcessReport(pid=process.pid, process=process)
    return Report(features=(), families=(), collector=(), processes=(report,), asked=True)


def test_each_part_is_reported_with_where_it_is_from(capsys: pytest.CaptureFixture[str]) -> None:
    process = Observed(
        pid=7,
        name="llm",
        executable="/llm",
        identity=(
            ("container.image.tags", ("1.2", "1"), "mountinfo"),
            ("k8s.pod.uid", POD, "cgroup"),
        ),
        claimed=(("k8s.pod.name", "victim\x1b[2J"),),
    )
    Listing(Console(file=sys.stdout)).write(report(process))
    said = capsys.readouterr().out
    assert "is      container.image.tags 1.2, 1 (mountinfo)" in said
    assert f"is      k8s.pod.uid {POD} (cgroup)" in said
    assert "claims  k8s.pod.name victim\N{REPLACEMENT CHARACTER}[2J, which nothing confirms" in said
    (shown,) = report(process).shown()["processes"]
    assert shown["identity"]["k8s.pod.uid"] == {"value": POD, "from": "cgroup"}
    assert shown["claimed"] == {"k8s.pod.name": "victim\x1b[2J"}


@pytest.fixture
def liar() -> Iterator[int]:
    claims = {"OTEL_RESOURCE_ATTRIBUTES": "k8s.pod.name=victim,service.name=mine"}
    with subprocess.Popen(["sleep", "60"], env=os.environ | claims) as process:
        try:
            environment = Path(f"/proc/{process.pid}/environ")
            until = time.monotonic() + 10
            while b"victim" not in environment.read_bytes():  # until exec has set it up
                assert time.monotonic() < until
                time.sleep(0.001)
            yield process.pid
        finally:
            process.kill()


def test_a_running_process_is_reported_with_its_claims(liar: int) -> None:
    found = ProcessInspector({}, resource_detector=ResourceDetector(own=OWN)).observe(liar)
    assert found is not None
    assert ("k8s.node.name", "node-1", "downward_api") in found.identity
    assert found.claimed == (("k8s.pod.name", "victim"),)
