"""What a running agent costs: CPU and memory at 20,000 calls a second, exported over OTLP, nothing lost.

The observed program serves HTTP requests on 4 threads: 20 a second with 1 000 CUDA calls each, then 200 a second
with 100 (200 kernels in turn, every tenth call a copy, a wait at the end). That is the worst case for folding,
since no two neighbours are equal.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time

from tests.bench.programs import FAST_DEVICE, BenchError, build_load, cpu_seconds, memory_mib, otelgpu
from tests.bench.rows import Budget, Row, median
from tests.bench.sink import Sink, running_sink

NAME = "agent"
RATE = 20_000
THREADS = 4
POLL_S = 0.5


def rows(quick: bool) -> list[Row]:
    seconds, warm_up_s = (1.0, 2.0) if quick else (20.0, 8.0)  # of a steady load: see otelgpu/pace.py
    return [row for calls in (1000, 100) for row in _measure(calls, seconds, warm_up_s)]


def _measure(calls: int, seconds: float, warm_up_s: float) -> list[Row]:
    serve = f"serve {RATE} {seconds + warm_up_s + 1} {calls} {THREADS}"
    environment = {**os.environ, **FAST_DEVICE, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}
    with running_sink() as sink, tempfile.TemporaryFile("w+") as output:
        command = otelgpu("run", "--export", f"otlp:{sink.url}", "--quiet", "--")
        process = subprocess.Popen(
            [*command, str(build_load()), "hello", serve],
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            share, memory = _sample(process, seconds, warm_up_s, output.fileno())
            process.wait(timeout=60)
        finally:
            if process.poll() is None:
                process.terminate()  # which it passes on to the load
                process.wait(timeout=30)
        output.seek(0)
        lines = output.read().splitlines()
    return _rows(calls, lines, share, memory, sink)


def _sample(
    process: subprocess.Popen[bytes], seconds: float, warm_up_s: float, output: int
) -> tuple[float, list[tuple[float, float]]]:
    """The share of a core, and (resident, peak) MiB every now and then, while the load runs."""
    deadline = time.monotonic() + 30
    while os.fstat(output).st_size == 0:  # the load says hello
        if process.poll() is not None or time.monotonic() > deadline:
            raise BenchError("otelgpu run did not start the load")
        time.sleep(0.02)
    time.sleep(warm_up_s)
    memory = []
    began, before = time.monotonic(), cpu_seconds(process.pid)
    while time.monotonic() < began + seconds:
        time.sleep(POLL_S)
        memory.append(memory_mib(process.pid))
    return (cpu_seconds(process.pid) - before) / (time.monotonic() - began), memory


def _rows(
    calls: int, lines: list[str], share: float, memory: list[tuple[float, float]], sink: Sink
) -> list[Row]:
    reported = [json.loads(line) for line in lines if line.startswith("{")]
    if len(reported) != 2:
        raise BenchError("the load did not finish:\n" + "\n".join(lines[-20:]))
    truth = reported[1]
    rate = truth["calls"] / (truth["ended_ns"] - truth["began_ns"]) * 1e9
    launches = truth["calls"] - truth["requests"] * (1 + (calls - 1) // 10)
    seen = sink.counter("gpu.cuda.kernel.launch.calls")
    of = f"{RATE // calls} requests/s"
    return [
        Row(
            bench=NAME,
            name=f"CPU, {of}",
            value=share * 100,
            unit="% of a core",
            budget=Budget(limit=5, kind="at most"),
            note=f"agent, {of}: {rate:,.0f} calls/s made, {sink.spans():,} spans received; launches made "
            f"{launches:,}, reported {seen:,}",
        ),
        Row(
            bench=NAME,
            name=f"RSS steady, {of}",
            value=median(now for now, _ in memory),
            unit="MiB",
            budget=Budget(limit=120, kind="at most"),
            note=f"agent, {of}: peak RSS {max(peak for _, peak in memory):.0f} MiB",
        ),
        Row(
            bench=NAME,
            name=f"launches lost, {of}",
            value=launches - seen,
            unit="calls",
            budget=Budget(limit=0, kind="at most"),
        ),
    ]
