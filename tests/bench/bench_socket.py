"""What a write() costs the thread that makes it: a token of a streamed completion, which is copied, and bytes that need
not be: of a protocol that nobody knows, of a file, of a pipe.

Processor time of the writing thread, its states in turns: bare, with empty programs on the same tracepoints (bpftrace,
the least there is), with the programs of family http whose ring nobody reads, with bpftrace and what a record holds.
Then the whole agent: what it and the server spend while tokens come as fast as they go, and at a rate that a server of
64 streams has. While a tracer is on a syscall tracepoint every process's calls take the kernel's slow path: somebody
else's tracer spoils a round, so each state's value is that of its quietest round.
"""

from __future__ import annotations

import contextlib
import functools
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from otelgpu.engine import registry
from otelgpu.kernel.scope import Scope
from otelgpu.sources.live import LiveSettings, LiveSource
from tests.bench import tracers
from tests.bench.bench_probe import bpf_statistics, program_times
from tests.bench.machine import programs_of_others
from tests.bench.programs import BUILD, BenchError, attached, cpu_seconds
from tests.bench.rows import Budget, Row, not_measured, spread

NAME: Final = "socket_cost"
SOURCE: Final = Path(__file__).with_name("socket_load.c")
BYTES: Final = 120
RATE: Final = 50_000  # writes/s
RING_BYTES: Final = 64 << 20  # more than a round writes
COPIED: Final = "http"
CASES: Final = {
    COPIED: "a token of a stream",
    "other": "a write to a connection of no known protocol",
    "null": "a write to /dev/null",
    "pipe": "a write to a pipe",
}
IDLE_WITHIN_S, LOOK_S, IDLE_SHARE = 30.0, 1.0, 0.1
MOST_NS: Final = 700.0
BARE, EMPTY, OURS, BPFTRACE = "bare", "empty programs", "otelgpu", "bpftrace, a line per write"

Times = dict[tuple[str, str], list[float]]


class Load:
    """A running socket_load."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [_build()], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self.pid = self._answer()

    def write(self, what: str, writes: int, rate: int = 0) -> float:
        """Processor time of the thread, ns a write."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{what} {writes} {BYTES} {rate}\n")
        return self._answer() / writes

    def _answer(self) -> int:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise BenchError(f"socket_load ended with exit code {self._process.wait()}")
        return int(line)

    def __enter__(self) -> Load:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(timeout=30)


@functools.cache
def _build() -> Path:
    BUILD.mkdir(parents=True, exist_ok=True)
    program = BUILD / "socket_load"
    command = ["gcc", "-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-o", str(program), str(SOURCE)]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode:
        raise BenchError(f"gcc failed on {SOURCE}:\n{made.stderr}")
    return program


def rows(quick: bool) -> list[Row]:
    rounds, writes, streamed = (1, 5_000, 20_000) if quick else (5, 50_000, 500_000)
    times: Times = {}
    absent: list[Row] = []
    others = 0
    with Load() as load:
        states = _states(load.pid)
        for _ in range(rounds):
            others = max(others, programs_of_others())
            for state, opened in list(states.items()):
                try:
                    with opened():
                        for case in CASES:
                            times.setdefault((state, case), []).append(load.write(case, writes))
                except BenchError as error:
                    absent.append(not_measured(NAME, state, "ns/write", str(error).splitlines()[0]))
                    del states[state]
        spoilt = f"; {others} BPF programs of others were loaded: NOT USABLE" if others else ""
        return [*_rows(times, spoilt), *absent, *_in_bpf(load, writes), *_with_agent(load, streamed)]


def _states(pid: int) -> dict[str, Callable[[], contextlib.AbstractContextManager[object]]]:
    return {
        BARE: contextlib.nullcontext,
        EMPTY: lambda: tracers.bpftrace(tracers.WRITES_EMPTY),
        OURS: lambda: _observed(pid),
        BPFTRACE: lambda: tracers.bpftrace(tracers.WRITES_PRINTED, pid=pid),
    }


@contextlib.contextmanager
def _observed(pid: int) -> Iterator[None]:
    """By the programs alone: nobody reads what they record before the block ends."""
    settings = LiveSettings(ring_bytes={}, default_ring_bytes=RING_BYTES, return_probes=False)
    source = LiveSource(registry.select(("http",)), Scope(), settings)
    try:
        source.observe(pid)
        yield
    finally:
        source.close()


def _rows(times: Times, spoilt: str) -> list[Row]:
    found = []
    for case, name in CASES.items():
        quietest = {state: min(values) for (state, each), values in times.items() if each == case}
        bare = quietest[BARE]
        note = "; ".join(f"{state}: {spread(times[state, case])}" for state in quietest) + spoilt
        found.append(Row(bench=NAME, name=f"{name}: bare", value=bare, unit="ns/write", note=note))
        if EMPTY in quietest:
            found.append(
                Row(
                    bench=NAME,
                    name=f"{name}: otelgpu adds to empty programs",
                    value=quietest[OURS] - quietest[EMPTY],
                    unit="ns/write",
                    baseline="empty programs add to the bare write",
                    baseline_value=quietest[EMPTY] - bare,
                    budget=Budget(limit=MOST_NS, kind="at most") if case != COPIED else None,
                )
            )
        if BPFTRACE in quietest:
            found.append(
                Row(
                    bench=NAME,
                    name=f"{name}: otelgpu adds to the bare write",
                    value=quietest[OURS] - bare,
                    unit="ns/write",
                    baseline=BPFTRACE,
                    baseline_value=quietest[BPFTRACE] - bare,
                    budget=Budget(limit=1, kind="at most", of="ratio") if case == COPIED else None,
                )
            )
    return found


def _when_idle(pid: int) -> float:
    """Processor time of the agent once it has done what waits for it."""
    deadline = time.monotonic() + IDLE_WITHIN_S
    while True:
        before = cpu_seconds(pid)
        time.sleep(LOOK_S)
        spent = cpu_seconds(pid)
        if spent - before < IDLE_SHARE * LOOK_S or time.monotonic() > deadline:
            return spent


def _in_bpf(load: Load, writes: int) -> list[Row]:
    """The two programs' own run time, which other tracers of the same system call are no part of."""
    if shutil.which("bpftool") is None:
        return [not_measured(NAME, "in BPF", "ns/run", "bpftool is not installed")]
    found = []
    with _observed(load.pid), bpf_statistics():
        mine = _own_programs()
        for case, name in CASES.items():
            before = program_times()
            load.write(case, writes)
            for key, (spent, runs) in sorted(program_times().items(), key=lambda item: item[0][1]):
                spent, runs = spent - before.get(key, (0, 0))[0], runs - before.get(key, (0, 0))[1]
                if key[0] in mine and key[1] in ("enter_call", "exit_call") and runs:
                    found.append(Row(bench=NAME, name=f"{name}: {key[1]}", value=spent / runs, unit="ns/run"))
    return found


def _own_programs() -> set[int]:
    """Ids of the BPF programs that this process has open."""
    described = [_read(path) for path in Path("/proc/self/fdinfo").iterdir()]
    return {
        int(match[1]) for text in described if (match := re.search(r"^prog_id:\s*(\d+)", text, re.MULTILINE))
    }


def _read(path: Path) -> str:
    """Nothing, where the descriptor is closed already: that of the folder itself."""
    with contextlib.suppress(FileNotFoundError):
        return path.read_text()
    return ""


def _with_agent(load: Load, writes: int) -> list[Row]:
    """The whole of it: what the agent spends on a token, and what the server's thread does meanwhile."""
    found = []
    for rate, name in ((0, "as fast as it goes"), (RATE, f"at {RATE:,}/s")):
        bare = load.write(COPIED, writes, rate)
        with attached(load.pid, "--families=http") as agent:
            before, began = cpu_seconds(agent.pid), time.monotonic()
            written = load.write(COPIED, writes, rate)
            seconds = time.monotonic() - began
            spent = _when_idle(agent.pid) - before
        found += [
            Row(
                bench=NAME,
                name=f"tokens {name}, with the agent: the server's thread",
                value=written,
                unit="ns/write",
                baseline="bare",
                baseline_value=bare,
            ),
            Row(
                bench=NAME,
                name=f"tokens {name}: the agent",
                value=1e6 * spent / writes,
                unit="µs/write",
                note=f"{writes / seconds:,.0f} writes/s; what its ring had no room for cost it nothing",
            ),
        ]
    return found
