"""What a probe pair on ncclAllReduce costs the thread that calls it, with the communicator read at each call.

One process for each tracer, each with its own copy of the fake library, take turns within milliseconds. Only
ratios travel between machines. The bare call is the fake's: far shorter than a real one's 5 to 20 µs.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.bench import tracers
from tests.bench.programs import BUILD, FAST_DEVICE, BenchError, at_once, attached
from tests.bench.rows import Budget, Row, median, not_measured, spread
from tests.rig import build_fakes, fake_nccl_path, ranks_environment

NAME = "nccl"
SOURCE = Path(__file__).with_name("nccl_load.c")
BARE, OURS, BPFTRACE = "bare", "otelgpu", "bpftrace, a line per call"
TRACERS = {"traps alone (empty bpftrace probes)": tracers.NCCL_EMPTY, BPFTRACE: tracers.NCCL_PRINTED}


class NcclLoad:
    """A running nccl_load on its own copy of the library."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.library = folder / "libnccl.so.2"
        shutil.copyfile(fake_nccl_path(), self.library)
        environment = ranks_environment(folder, env={**FAST_DEVICE, "FAKE_NCCL_LATENCY_US": "0"})
        environment["LD_LIBRARY_PATH"] = f"{folder}:{environment['LD_LIBRARY_PATH']}"
        environment["FAKE_NCCL_GB_PER_S"] = "1000000"
        self._process = subprocess.Popen(
            [_build()], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self.pid = self._process.pid
        self._answer()

    def _answer(self) -> int:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise BenchError(f"the load ended with exit code {self._process.wait()}")
        return int(line)

    def measure(self, calls: int) -> float:
        """Nanoseconds a call."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{calls}\n")
        return self._answer() / calls

    def close(self) -> None:
        self._process.communicate()


def _build() -> Path:
    program = BUILD / "nccl_load"
    BUILD.mkdir(parents=True, exist_ok=True)
    if not program.exists() or program.stat().st_mtime < SOURCE.stat().st_mtime:
        command = ["gcc", "-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-o", str(program), str(SOURCE)]
        made = subprocess.run(
            [*command, str(fake_nccl_path())],
            capture_output=True,
            text=True,
            check=False,
            env=dict(os.environ),
        )
        if made.returncode:
            raise BenchError(f"gcc failed on {SOURCE}:\n{made.stderr}")
    return program


@contextlib.contextmanager
def _load(folder: Path) -> Iterator[NcclLoad]:
    load = NcclLoad(folder)
    try:
        yield load
    finally:
        load.close()


def rows(quick: bool) -> list[Row]:
    rounds, calls = (2, 300) if quick else (25, 2_000)
    build_fakes()
    with tempfile.TemporaryDirectory(dir=BUILD.parent) as folder, contextlib.ExitStack() as stack:
        names = (BARE, OURS, *TRACERS)
        loads = {name: stack.enter_context(_load(Path(folder, str(i)))) for i, name in enumerate(names)}
        observers = {
            name: tracers.bpftrace(program, library=loads[name].library, pid=loads[name].pid)
            for name, program in TRACERS.items()
        }
        why_not = stack.enter_context(at_once(observers))
        for name in why_not:
            del loads[name]
        stack.enter_context(attached(loads[OURS].pid, "--families", "nccl"))
        times: dict[str, list[float]] = {name: [] for name in loads}
        for _ in range(rounds):
            for name, load in loads.items():
                times[name].append(load.measure(calls))
    return _rows(times) + [not_measured(NAME, name, "ns/call", why) for name, why in why_not.items()]


def _rows(times: dict[str, list[float]]) -> list[Row]:
    bare = median(times[BARE])
    cost = {name: median(values) - bare for name, values in times.items()}
    ours = median(times[OURS])
    found = [
        Row(bench=NAME, name="bare ncclAllReduce of the fake", value=bare, unit="ns/call"),
        Row(
            bench=NAME,
            name="ncclAllReduce with probes",
            value=ours,
            unit="ns/call",
            baseline=BARE,
            baseline_value=bare,
            note=f"otelgpu {spread(times[OURS])}",
        ),
    ]
    for name in (name for name in TRACERS if name in times):
        found.append(
            Row(
                bench=NAME,
                name=f"otelgpu adds, by: {name}",
                value=cost[OURS],
                unit="ns/call",
                baseline=name,
                baseline_value=cost[name],
                budget=Budget(limit=1, kind="at most", of="ratio") if name == BPFTRACE else None,
            )
        )
    return found
