"""What profiles of waits cost the observed program: a system call, and a switch to another process and back."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from tests.bench.machine import programs_of_others
from tests.bench.programs import observer, otelgpu, running_load
from tests.bench.rows import Row, median, spread

NAME = "profile_waits"

# Two processes that hand a byte to and fro, on one CPU: each turn is two switches. Says ns a turn for each line.
PINGPONG = """
import os, sys, time
os.sched_setaffinity(0, {0})
there, back = os.pipe(), os.pipe()
if os.fork() == 0:
    os.close(there[1])
    os.close(1)
    while os.read(there[0], 1):
        os.write(back[1], b"x")
    os._exit(0)
for line in sys.stdin:
    turns = int(line)
    begin = time.monotonic_ns()
    for _ in range(turns):
        os.write(there[1], b"x")
        os.read(back[0], 1)
    print((time.monotonic_ns() - begin) / turns, flush=True)
"""


class PingPong:
    """The two processes."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", PINGPONG], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.pid = self._process.pid

    def ask(self, turns: int) -> float:
        """Nanoseconds a turn."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{turns}\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())


@contextlib.contextmanager
def ping_pong() -> Iterator[PingPong]:
    """Until the end of the block."""
    running = PingPong()
    try:
        running.ask(100)
        yield running
    finally:
        running._process.kill()
        running._process.communicate()


def rows(quick: bool) -> list[Row]:
    """Each kind against nothing, in turn."""
    rounds, calls = (1, 5_000) if quick else (3, 50_000)
    found = []
    with running_load() as load:
        found += _costs(
            "a system call", ("syscall",), lambda: load.ask(f"pipe {calls}") / (2 * calls), load.pid, rounds
        )
    with ping_pong() as turns:
        found += _costs(
            "a turn of two switches", ("offcpu",), lambda: turns.ask(calls // 5), turns.pid, rounds
        )
    return found


def _costs(what: str, kinds: tuple[str, ...], ask: Callable[[], float], pid: int, rounds: int) -> list[Row]:
    times: dict[str, list[float]] = {}
    others = 0
    for _ in range(rounds):
        others = max(others, programs_of_others())
        for kind in ("", *kinds):
            with _profiled(pid, kind):
                times.setdefault(kind, []).append(median([ask() for _ in range(3)]))
    spoilt = f"; {others} BPF programs of others were loaded: NOT USABLE" if others else ""
    bare = min(times[""])
    return [
        Row(
            bench=NAME,
            name=f"-t {kind} adds to {what}",
            value=min(times[kind]) - bare,
            unit="ns",
            baseline=f"{what}, bare",
            baseline_value=bare,
            note=f"with it: {spread(times[kind])}; bare: {spread(times[''])}{spoilt}",
        )
        for kind in kinds
    ]


def _profiled(pid: int, kind: str) -> AbstractContextManager[object]:
    if not kind:
        return contextlib.nullcontext()
    command = otelgpu(
        "profile", "-p", str(pid), "-t", kind, "-d", "600", "--force", "-o", "/tmp/otelgpu-bench-waits.folded"
    )
    return observer(command, "profiling", settle_s=1.5)
