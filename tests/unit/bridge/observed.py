"""A process with the bridge, from inside: what a reader outside would see of the calling thread.

Programs of these tests are run by :func:`run`, for the runtime context is chosen once in a process.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[3]
LIBRARY = ROOT / "otelgpu/bridge/_publisher.abi3.so"

PREAMBLE = """
import asyncio, contextvars, os, sys, threading, time
from opentelemetry import context, trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from tests.unit.bridge.observed import published, expected, process_context

trace.set_tracer_provider(TracerProvider(resource=Resource({"service.name": "observed", "shards": 4})))
tracer = trace.get_tracer("tests")
def check(): assert published() == expected(), (published(), expected())
"""


class Published(NamedTuple):
    trace_id: int
    span_id: int
    trace_flags: int


def published() -> Published | None:
    """The calling thread's record (OTEP 4947); None when no span is published."""
    # dlsym() of a thread-local symbol is its address in the calling thread.
    address = ctypes.c_void_p.in_dll(ctypes.CDLL(str(LIBRARY)), "otel_thread_ctx_v1").value
    if address is None:
        return None
    record = ctypes.string_at(address, 28)
    if record[24] != 1:
        return None
    assert record[26:28] == b"\0\0"
    return Published(int.from_bytes(record[:16]), int.from_bytes(record[16:24]), record[25])


def expected() -> Published | None:
    """What opentelemetry-api says of the same moment."""
    from opentelemetry import trace

    now = trace.get_current_span().get_span_context()
    return Published(now.trace_id, now.span_id, now.trace_flags) if now.is_valid else None


def process_context() -> bytes | None:
    """The payload of this process's OTEL_CTX mapping (OTEP 4719); None without one."""
    with open("/proc/self/maps") as maps:
        starts = [line.split("-")[0] for line in maps if "OTEL_CTX" in line]
    if not starts:
        return None
    (start,) = starts  # one per process
    header = ctypes.string_at(int(start, 16), 32)
    assert header[:8] == b"OTEL_CTX"
    version, size = int.from_bytes(header[8:12], sys.byteorder), int.from_bytes(header[12:16], sys.byteorder)
    published_at, address = (int.from_bytes(header[at : at + 8], sys.byteorder) for at in (16, 24))
    assert version == 2
    assert published_at != 0
    return ctypes.string_at(address, size)


def run(
    program: str, folder: Path, *, python: str = sys.executable, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a program after PREAMBLE in a process with the bridge installed; fail with its output if it fails."""
    entry_points(folder)
    done = subprocess.run(
        [python, "-c", PREAMBLE + textwrap.dedent(program)],
        env={
            **os.environ,
            "PYTHONPATH": f"{folder}:{ROOT}",
            "OTEL_PYTHON_CONTEXT": "otelgpu",
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def entry_points(folder: Path) -> None:
    """What installing this tree's wheel adds, where an older one may be installed."""
    distribution = folder / "otelgpu_bridge_under_test-0.dist-info"
    distribution.mkdir(exist_ok=True)
    (distribution / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: otelgpu-bridge-under-test\nVersion: 0\n"
    )
    (distribution / "entry_points.txt").write_text(
        "[opentelemetry_context]\notelgpu = otelgpu.bridge:runtime_context\n"
    )
