"""What the bridge costs a service: attach and detach, a callback of an event loop, and the import.

Each runtime context is measured in a process of its own, in turn, several rounds: opentelemetry-api's own, the
bridge, and the bridge's publishing written in Python (ctypes) as the baseline of doing it without C.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.bench.programs import BenchError
from tests.bench.rows import Budget, Row, median, spread
from tests.unit.bridge.observed import ROOT, entry_points

NAME = "bridge"

PROGRAM = """
import contextvars, ctypes, json, sys, timeit
began = timeit.default_timer()
from opentelemetry import context
imported = (timeit.default_timer() - began) * 1e3
from opentelemetry import trace
from opentelemetry.context.contextvars_context import ContextVarsRuntimeContext
from opentelemetry.sdk.trace import TracerProvider

kind, number = sys.argv[1], int(sys.argv[2])

class InPython(ContextVarsRuntimeContext):
    record = ctypes.create_string_buffer(28)
    def publish(self):
        now = trace.get_current_span().get_span_context()
        self.record[24] = 0
        if now.is_valid:
            self.record[:24] = now.trace_id.to_bytes(16) + now.span_id.to_bytes(8)
            self.record[25], self.record[24] = int(now.trace_flags), 1
    def attach(self, value):
        token = super().attach(value)
        self.publish()
        return token
    def detach(self, token):
        super().detach(token)
        self.publish()

if kind == "python":
    context._RUNTIME_CONTEXT = InPython()
assert type(context._RUNTIME_CONTEXT).__name__ == {
    "plain": "ContextVarsRuntimeContext", "bridge": "PublishingContext", "python": "InPython"}[kind]
trace.set_tracer_provider(TracerProvider())
tracer = trace.get_tracer("bench")
outer, inner = (trace.set_span_in_context(tracer.start_span(name)) for name in ("outer", "inner"))
def pair(): context.detach(context.attach(inner))
def nothing(): pass
empty = contextvars.copy_context()
def callback(): empty.run(nothing)
def best(call): return min(timeit.repeat(call, number=1000, repeat=number)) / 1000 * 1e9
times = {"import": imported, "pair": best(pair), "callback": best(callback)}
token = context.attach(outer)
times["nested pair"] = best(pair)
times["callback, span to none"] = best(callback)
print(json.dumps(times))
"""

# 300 ns, where opentelemetry-api's own pair took 188 ns: a ratio holds on slower machines too.
PAIR = Budget(limit=300 / 188, kind="at most", of="ratio")

WHAT = {
    "pair": "attach and detach a span",
    "nested pair": "attach and detach inside of another span",
    "callback": "Context.run, no spans",
    "callback, span to none": "Context.run, the span changes twice",
    "import": "import opentelemetry.context",
}


def rows(quick: bool) -> list[Row]:
    rounds, repeats = (1, 20) if quick else (5, 100)
    times: dict[str, list[dict[str, float]]] = {"plain": [], "bridge": [], "python": []}
    with tempfile.TemporaryDirectory() as folder:
        entry_points(Path(folder))
        for _ in range(rounds):
            for kind, found in times.items():
                found.append(_measure(kind, repeats, folder))
    plain, bridge, python = (
        {each: [one[each] for one in found] for each in WHAT} for found in times.values()
    )
    return [
        Row(
            bench=NAME,
            name=name,
            value=median(bridge[each]),
            unit="ms" if each == "import" else "ns",
            baseline="opentelemetry-api's own",
            baseline_value=median(plain[each]),
            budget=PAIR if each == "pair" else None,
            note=f"{spread(bridge[each])}; published by Python code: {median(python[each]):,.0f}",
        )
        for each, name in WHAT.items()
    ]


def _measure(kind: str, repeats: int, folder: str) -> dict[str, float]:
    runtime = "otelgpu" if kind == "bridge" else "contextvars_context"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, kind, str(repeats)],
        env={**os.environ, "PYTHONPATH": f"{folder}:{ROOT}", "OTEL_PYTHON_CONTEXT": runtime},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise BenchError(f"the {kind} runtime context: {done.stderr.strip().splitlines()[-1]}")
    times: dict[str, float] = json.loads(done.stdout)
    return times
