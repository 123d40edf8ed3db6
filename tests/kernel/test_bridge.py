"""otelgpu.bridge as otelgpu reads it: every CUDA call of a Python service carries the span it was made under."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from otelgpu.model.context_sources import IS_PUBLISHED
from tests.kernel.observing import Watch
from tests.rig import fake_cudart_path
from tests.unit.bridge.observed import LIBRARY, PREAMBLE, ROOT, entry_points

pytestmark = pytest.mark.skipif(
    not LIBRARY.exists(), reason="otelgpu.bridge has no library: no Python.h at build time"
)

TASKS, STEPS = 40, 5

# cudaFree(number) of the fake says which task made the call; 0 is made outside of all spans.
SERVICE = """
import ctypes, json, random
free = ctypes.CDLL(sys.argv[1]).cudaFree
free.argtypes = [ctypes.c_void_p]
spans = {}
async def task(number):
    with tracer.start_as_current_span("task") as span:
        ids = span.get_span_context()
        spans[number] = (f"{ids.trace_id:032x}", f"{ids.span_id:016x}")
        for _ in range(STEPS):
            await asyncio.sleep(random.random() / 200)
            free(number)
            await asyncio.to_thread(free, number)
            free(number)
async def main():
    await asyncio.gather(*(task(number) for number in range(1, TASKS + 1)))
    free(None)
    print(json.dumps(spans))
print("ready", flush=True)
sys.stdin.readline()
RUN(main())
"""


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_every_call_of_every_task_carries_its_span(watching: Watch, tmp_path: Path, loop: str) -> None:
    if importlib.util.find_spec(loop) is None:
        pytest.skip(f"needs {loop}")
    entry_points(tmp_path)
    program = f"import {loop}\nTASKS, STEPS, RUN = {TASKS}, {STEPS}, {loop}.run\n"
    service = subprocess.Popen(
        [sys.executable, "-c", PREAMBLE + program + SERVICE, str(fake_cudart_path())],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}", "OTEL_PYTHON_CONTEXT": "otelgpu"},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert service.stdout is not None
        assert service.stdout.readline() == "ready\n"
        watching.observe(service.pid)
        said = watching.during(lambda: service.communicate("\n", timeout=30)[0])
    finally:
        service.kill()
        service.communicate()
    spans = {int(number): tuple(ids) for number, ids in json.loads(said).items()}

    calls: dict[int, list[tuple[str, str]]] = {}
    for record in watching.records("cuda_free"):
        head = record["head"]
        ids = bytes(head["trace_id"]).hex(), bytes(head["span_id"]).hex()
        number = int(record["object"])
        published = IS_PUBLISHED[int(head["context_source"])]
        assert published == bool(number)
        ids = ids if published else ("0" * 32, "0" * 16)  # of others it is the task
        calls.setdefault(number, []).append(ids)
    assert calls.pop(0) == [("0" * 32, "0" * 16)]
    assert {number: set(ids) for number, ids in calls.items()} == {n: {ids} for n, ids in spans.items()}
    assert {len(ids) for ids in calls.values()} == {3 * STEPS}
