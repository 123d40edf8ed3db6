"""The script of ``helm test`` beside a real agent: its request is a trace in a real Jaeger."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.backends.jaeger import Jaeger
from tests.backends.programs import ChildProcess, answers
from tests.rig import ROOT
from tests.rig.ports import free_ports

SCRIPT: Final = ROOT / "deploy/helm/otelgpu/files/request.py"


@pytest.fixture
def interpreter(tmp_path: Path) -> Path:
    """Under a name of its own, for the agent to look at nothing else."""
    copy = tmp_path / f"python-{os.getpid()}"
    shutil.copy(Path(sys.executable).resolve(), copy)
    return copy


@pytest.fixture
def agent(jaeger: Jaeger, interpreter: Path, tmp_path: Path) -> Iterator[str]:
    """Where it answers; it sends to Jaeger."""
    (port,) = free_ports(1)
    command = ["-m", "otelgpu", "agent", "--families=http", f"--executable={interpreter.name}"]
    settings = {
        "OTELGPU_HEALTH_ADDRESS": f"127.0.0.1:{port}",
        "OTEL_EXPORTER_OTLP_ENDPOINT": jaeger.address,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
    }
    process = ChildProcess([sys.executable, *command], tmp_path / "agent.log", {**os.environ, **settings})
    try:
        process.wait_until(lambda: answers(f"http://127.0.0.1:{port}/readyz"))
        yield f"http://127.0.0.1:{port}"
    finally:
        process.stop()


def run(interpreter: Path, **settings: str) -> tuple[int, str]:
    """Exit code, and the line it said."""
    environment = {"PYTHONHOME": sys.base_prefix, "TIMEOUT_SECONDS": "40", **settings}
    done = subprocess.run(
        [interpreter, "-s", SCRIPT], env=environment, capture_output=True, text=True, timeout=90, check=False
    )
    return done.returncode, (done.stdout + done.stderr).strip()


def test_the_request_is_found_in_the_backend_by_the_id_that_it_was_given(
    agent: str, jaeger: Jaeger, interpreter: Path
) -> None:
    code, said = run(interpreter, TRACES_URL=jaeger.trace_url("{id}"))
    assert code == 0, said
    (trace,) = (word for word in said.split() if len(word) == 32)
    assert {
        span["attributes"]["url.path"] for span in jaeger.trace(trace) if "url.path" in span["attributes"]
    } == {"/otelgpu-helm-test"}


def test_the_requests_are_among_what_the_agent_says_it_delivered(agent: str, interpreter: Path) -> None:
    code, said = run(interpreter, AGENT_URL=agent)
    assert code == 0, said
    assert said.startswith("found: the agent delivered ")


def test_a_request_that_no_agent_saw_is_not_found(agent: str, jaeger: Jaeger, interpreter: Path) -> None:
    unobserved = interpreter.with_name("other")
    shutil.copy(interpreter, unobserved)
    code, said = run(unobserved, TRACES_URL=jaeger.trace_url("{id}"), TIMEOUT_SECONDS="10")
    assert code == 1 and "the backend has no trace" in said
    code, said = run(unobserved, AGENT_URL=agent, TIMEOUT_SECONDS="10")
    assert code == 1 and said.startswith("not found: the agent delivered 0 spans while ")
