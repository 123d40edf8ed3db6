"""Thousands of processes with the library mapped: they are all looked at, and few of them make calls.

The figures are printed (`pytest -s`); what is asserted is that counts are exact and that nothing grows with the
number of processes beyond a bound.
"""

from __future__ import annotations

import math
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.kernel.observing import Session, cuda_calls, probed, read_metrics, read_spans
from tests.rig import fake_cudart_path, run_program
from tests.rig.cpu_time import cpu_s
from tests.rig.spans import Span

SOURCE: Final = Path(__file__).parent / "data" / "many_processes.c"
PROCESSES: Final = {"agent": 10_000, "attach": 2000}
"""By command: a host's, and the children of one process."""
CALLERS: Final = 307
CALLS: Final = 23
IDLE_S: Final = 1.0
NEEDED_BYTES: Final = 4 << 30  # twice what they took
MOST_RSS_BYTES: Final = 160 << 20  # 120 MiB is for a host as others are


@dataclass(frozen=True)
class Crowd:
    """The processes, that have mapped the library and wait."""

    process: subprocess.Popen[str]

    def call(self) -> None:
        """Have those that are to make calls make them."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"

    def end(self) -> None:
        """All at once."""
        stdout, _ = self.process.communicate(timeout=60)
        assert stdout == "ended\n"


@pytest.fixture
def crowd(tmp_path: Path, command: str) -> Iterator[Crowd]:
    lines = Path("/proc/meminfo").read_text().splitlines()
    available = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    if available < NEEDED_BYTES:
        pytest.skip(f"needs {NEEDED_BYTES >> 20} MiB of memory, {available >> 20} MiB are available")
    program = tmp_path / "many_processes"
    subprocess.run(["gcc", "-O1", "-Wall", "-Wextra", "-Werror", "-o", program, SOURCE], check=True)
    arguments = (fake_cudart_path(), PROCESSES[command], CALLERS, CALLS)
    process = subprocess.Popen(
        [program, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield Crowd(process)
    finally:
        if process.poll() is None:
            process.kill()  # and its children die with it
        process.communicate()


def most_rss(pid: int) -> int:
    """The most memory that it ever had, in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))


def of_crowd(span: Span) -> bool:
    return bool(span["resource"].get("process.executable.name") == "many_processes")


def all_described(session: Session) -> None:
    """It has looked at everybody who called, before they are gone."""
    seen: set[int] = set()

    def is_of_another(span: Span) -> bool:
        before = len(seen)
        if of_crowd(span):
            seen.add(span["resource"]["process.pid"])
        return len(seen) > before

    session.spans(is_of_another, CALLERS)


@pytest.mark.alone(reason="10,000 processes end at once: for seconds nobody else gets a processor")
@pytest.mark.parametrize("command", PROCESSES)
def test_thousands_of_processes_are_observed_exactly_and_within_bounds(
    crowd: Crowd, tmp_path: Path, command: str
) -> None:
    traces = tmp_path / "traces.jsonl"
    began = time.monotonic()
    session = Session(command, *([f"-p{crowd.process.pid}"] if command == "attach" else []), traces=traces)
    with session:
        pid = session.process.pid
        start_s, start_cpu_s, start_rss = time.monotonic() - began, cpu_s(pid), most_rss(pid)
        time.sleep(IDLE_S)
        idle = (cpu_s(pid) - start_cpu_s) / IDLE_S
        crowd.call()
        all_described(session)
        before_s, rss, end_cpu_s = cpu_s(pid), most_rss(pid), math.nan
        crowd.end()
        if command == "attach":
            session.process.wait(60)  # nobody is left
        else:
            time.sleep(2)
            end_cpu_s, rss = cpu_s(pid) - before_s, most_rss(pid)
            (said,) = run_program("shared", "--launches=29")  # it still works
        stopping = time.monotonic()
    stop_s = time.monotonic() - stopping
    print(
        f"\n{command}, {PROCESSES[command]} processes: start {start_s:.1f} s ({start_cpu_s:.1f} s of CPU, "
        f"{start_rss / 2**20:.0f} MiB), idle {idle:.1%} of a core, their end {end_cpu_s:.2f} s of CPU, "
        f"peak {rss / 2**20:.0f} MiB, stop {stop_s:.2f} s"
    )
    spans = read_spans(traces)
    by_process: dict[int, Counter[str]] = {}
    for span in filter(of_crowd, spans):
        calls = by_process.setdefault(span["resource"]["process.pid"], Counter())
        calls.update(cuda_calls([span]))
    assert list(by_process.values()) == [{"cudaDeviceSynchronize": CALLS}] * CALLERS
    points = read_metrics(traces)["gpu.cuda.device.synchronize.calls"]
    reported = {point["resource"]["process.pid"]: int(point["asInt"]) for point in points}
    assert {pid: reported[pid] for pid in by_process} == dict.fromkeys(by_process, CALLS)
    if command == "agent":
        assert cuda_calls([s for s in spans if s["resource"].get("process.pid") == said.pid]) == probed(
            dict(said.calls)
        )
    assert rss < MOST_RSS_BYTES
    full = (
        "cuda.ring_full",
        "process.ring_full",
        "scope_table_full",
    )  # of other families others fill the rings
    assert not any(each in session.said for each in full), session.said
