"""A publisher that we have not written: ddtrace, which shares its thread and process context (OTEP 4947, 4719)."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from otelgpu.model.context_sources import IS_PUBLISHED
from otelgpu.model.inputs import ProcessSeen
from otelgpu.model.resource import Resource
from tests.kernel.observing import Watch
from tests.rig import fake_cudart_path

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ddtrace") is None, reason="needs ddtrace, which is not installed"
)
PROGRAM = Path(__file__).parent / "data" / "traced.py"
THREADS, CALLS = 3, 29
NO_AGENT = "http://127.0.0.1:9"  # the discard port: nobody listens


@pytest.fixture
def traced() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, PROGRAM, fake_cudart_path(), str(THREADS), str(CALLS)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | {"DD_TRACE_AGENT_URL": NO_AGENT, "DD_SERVICE": "checkout", "DD_ENV": "staging"},
    )
    yield process
    process.kill()
    process.communicate()


def resource_of(watching: Watch, tgid: int) -> Resource:
    """As it was described last."""
    return [s for s in watching.inputs if isinstance(s, ProcessSeen) and s.tgid == tgid][-1].resource


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


@pytest.mark.parametrize("observed", ["from its start", "once it runs"])
def test_records_carry_ddtrace_s_own_ids(
    watching: Watch, traced: subprocess.Popen[str], observed: str
) -> None:
    if observed == "from its start":
        watching.observe(traced.pid)
    assert watching.during(lambda: line_of(traced)) == "ready\n"
    if observed == "once it runs":
        watching.observe(traced.pid)
    watching.pump(0.5)

    def make_calls() -> dict[str, list[str] | None]:
        assert traced.stdin is not None
        traced.stdin.write("\n")
        traced.stdin.flush()
        said: dict[str, list[str] | None] = json.loads(line_of(traced))
        return said

    said = watching.during(make_calls)
    found = {}
    for record in watching.records("cuda_free"):
        head = record["head"]
        ids = [bytes(head["trace_id"]).hex(), bytes(head["span_id"]).hex()]
        found[str(int(record["object"]))] = ids if IS_PUBLISHED[int(head["context_source"])] else None
    assert len(said) == THREADS * CALLS * 4
    assert found == said
    assert found["8589934596"] is None and found["8589934597"] is not None
    assert watching.losses() == {}

    described = resource_of(watching, traced.pid)
    assert described.get("service.name") == "checkout"
    assert described.get("deployment.environment.name") == "staging"
    assert described.get("process.pid") == traced.pid
    context = watching.source._process_contexts.of(traced.pid)
    assert context is not None
    assert context.schema_version == "tlsdesc_v1_dev"
    assert context.attribute_keys[0] == "datadog.local_root_span_id"
