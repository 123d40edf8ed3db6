"""How soon there is something to see, how soon probes are on, and how soon they are off.

Times of whole programs, medians: they include Python's start, and vary with the machine's load.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Final

from otelgpu.engine import registry
from otelgpu.kernel.scope import Scope
from otelgpu.model.inputs import Batch
from otelgpu.model.operations import OperationKind
from otelgpu.sources.live import LiveSettings, LiveSource
from tests.bench.programs import (
    BUILD,
    FAST_DEVICE,
    BenchError,
    attached,
    build_load,
    observer,
    otelgpu,
    running_load,
)
from tests.bench.rows import Budget, Row, median, spread
from tests.bench.sink import running_sink
from tests.rig import CudaClientResult, start_cuda_client

NAME = "start"
LATE_CALLS = 2_000
PHASES = """
import time
began = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
from otelgpu.cli.main import main
from otelgpu.cli import observe
from otelgpu.engine import registry
from otelgpu.kernel.scope import Scope
from otelgpu.sources.live import LiveSettings, LiveSource
families = registry.with_records()
imported = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
source = LiveSource(families, Scope(processes=({pid},)), LiveSettings(ring_bytes={{}}))
loaded = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
source.observe({pid})
attached = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
print(began, imported, loaded, attached)
"""


def rows(quick: bool) -> list[Row]:
    return [
        *_first_span(1 if quick else 9),
        *_phases(1 if quick else 9),
        *_late(2 if quick else 20),
        *_detach(1 if quick else 9),
    ]


SETTLE_S: Final = 2.0
"""The kernel takes the probes of the round before off in the background, and makes who attaches wait for it."""


def _now_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


# -- from exec to the first span ------------------------------------------------------------------


def _first_span(rounds: int) -> list[Row]:
    """The load serves one request with one launch at once; then it waits, so that no exit hurries the flush."""
    _once()  # the first one compiles to bytecode
    program, arrival, ends = [], [], []
    for _ in range(rounds):
        time.sleep(SETTLE_S)
        exec_to_main, exec_to_span, main_to_span = _once()
        program.append(exec_to_main)
        arrival.append(exec_to_span)
        ends.append(main_to_span)
    return [
        Row(
            bench=NAME,
            name="exec of otelgpu run to first span received",
            value=median(arrival) / 1e6,
            unit="ms",
            budget=Budget(limit=1000, kind="at most"),
            note=f"first span: {spread([ns / 1e6 for ns in arrival])}",
        ),
        Row(bench=NAME, name="… of it until the program runs", value=median(program) / 1e6, unit="ms"),
        Row(
            bench=NAME,
            name="… of it request, drain (up to 200 ms), export",
            value=median(ends) / 1e6,
            unit="ms",
        ),
    ]


def _once() -> tuple[int, int, int]:
    environment = {**os.environ, **FAST_DEVICE, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}
    with running_sink() as sink:
        command = otelgpu("run", "--quiet", "--export", f"otlp:{sink.url}", "--", str(build_load()))
        began = _now_ns()
        process = subprocess.Popen(
            [*command, "hello", "serve 1000 0.001 2 1", "wait 2000"],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        arrived = sink.first_traces_ns(timeout_s=20)
        stdout, _ = process.communicate(timeout=60)
    if arrived is None:
        raise BenchError(f"no span within 20 s; the load said {stdout!r}")
    main_ns = json.loads(stdout.splitlines()[0])["main_ns"]
    return main_ns - began, arrived - began, arrived - main_ns


def _phases(rounds: int) -> list[Row]:
    """Where the time before the program runs goes, measured in fresh interpreters; and attach as a command."""
    columns: list[list[float]] = [[], [], [], []]
    commands = []
    with running_load() as load:
        for _ in range(rounds):
            exec_ns = _now_ns()
            done = subprocess.run(
                [sys.executable, "-c", PHASES.format(pid=load.pid)],
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                raise BenchError(done.stderr)
            times = [exec_ns, *map(int, done.stdout.split())]
            for column, before, after in zip(columns, times, times[1:], strict=False):
                column.append((after - before) / 1e6)
            command = otelgpu("attach", "-p", str(load.pid), "--quiet", "--export", "file:/dev/null")
            began = _now_ns()
            with observer(command, "observing", settle_s=0):
                commands.append((_now_ns() - began) / 1e6)
    names = ("Python starts", "imports", "BPF objects load", "attach to a running process")
    return [
        *(
            Row(bench=NAME, name=f"phase: {name}", value=median(column), unit="ms")
            for name, column in zip(names, columns, strict=True)
        ),
        Row(
            bench=NAME,
            name="otelgpu attach -p PID until it observes",
            value=median(commands),
            unit="ms",
            note=f"attach: {spread(commands)}, read off its output every 20 ms",
        ),
    ]


# -- a library that comes late --------------------------------------------------------------------


def _late(rounds: int) -> list[Row]:
    """A library that no one has probed yet is opened; reported against the truth of the calls it got."""
    build_load()
    blind, missed, windows, heard = [], [], [], 0
    with tempfile.TemporaryDirectory(dir=BUILD) as folder:
        source = LiveSource({"cuda": registry.families()["cuda"]}, Scope(), LiveSettings(ring_bytes={}))
        try:
            for turn in range(rounds):
                library = Path(folder, f"{turn}", "libcudart.so.12")
                library.parent.mkdir()
                shutil.copyfile(BUILD / "libcudart.so.12", library)
                result, recorded = _open_late(source, library)
                placed = [p for p in source.probed_files if p.path == str(library)]
                if not placed:
                    raise BenchError("a late library got no probes")
                blind.append(placed[0].blind_ns / 1e3)
                heard += len(recorded)
                missed.append(result.calls["cudaLaunchKernel"] - len(recorded))
                # Nothing recorded: the machine was so busy that the program was over before.
                windows.append((min(recorded, default=result.end_ns) - result.opened_ns) / 1e3)
        finally:
            source.close()
    if not heard:
        raise BenchError("no call into a late library was recorded")
    return [
        Row(
            bench=NAME,
            name="late dlopen: blind window as reported",
            value=median(blind),
            unit="µs",
            note=f"blind window: {spread(blind)}; from the mapping to the last probe",
        ),
        Row(
            bench=NAME,
            name="late dlopen: dlopen's return to the first recorded call",
            value=median(windows),
            unit="µs",
            note=f"calls that were made meanwhile and not recorded: median {median(missed):.0f}, most {max(missed)}",
        ),
    ]


def _open_late(source: LiveSource, library: Path) -> tuple[CudaClientResult, list[int]]:
    with start_cuda_client(calls=LATE_CALLS, sleep_us=200, late_ms=5, library=library, times=True) as client:
        source.observe(client.pid)
        results: list[CudaClientResult] = []
        thread = threading.Thread(target=lambda: results.append(client.finish()))
        thread.start()
        while thread.is_alive():
            source.wait(0.05)
        thread.join()
    recorded = [
        int(time_ns)
        for item in source.collect()
        if isinstance(item, Batch)
        for time_ns in item.heads["time_ns"][item.heads["kind"] == OperationKind.LAUNCH]
    ]
    return results[0], recorded


# -- the end --------------------------------------------------------------------------------------


def _detach(rounds: int) -> list[Row]:
    """What the user waits for: from the program's end, or Ctrl-C, until otelgpu has flushed and is gone."""
    after_program, after_interrupt = [], []
    for _ in range(rounds):
        command = otelgpu("run", "--quiet", "--export", "file:/dev/null", "--", str(build_load()))
        with subprocess.Popen([*command, "launch 0 10", "hello"], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline(), process.stdout.readline()
            began = _now_ns()
            process.wait()
            after_program.append((_now_ns() - began) / 1e6)
        with running_load() as load, attached(load.pid) as process:
            process.send_signal(2)
            began = _now_ns()
            process.wait()
            after_interrupt.append((_now_ns() - began) / 1e6)
    return [
        Row(
            bench=NAME,
            name="end of the program to end of otelgpu run",
            value=median(after_program),
            unit="ms",
            note=f"end: {spread(after_program)} after the program, {spread(after_interrupt)} after Ctrl-C",
        ),
        Row(bench=NAME, name="Ctrl-C to end of otelgpu attach", value=median(after_interrupt), unit="ms"),
    ]
