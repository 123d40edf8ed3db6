"""What family ``sched`` costs a Python program whose threads wait for one another: its futexes and semaphores.

The program runs each case in turn, bare and observed by that family alone; the value is the difference of the
quietest runs. The agent's own work on what it reads is left out: nothing is read until the run is over.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from otelgpu.engine import registry
from otelgpu.kernel.scope import Scope
from otelgpu.sources.live import LiveSettings, LiveSource
from tests.bench.programs import BenchError
from tests.bench.rows import Row, spread

NAME: Final = "handoff_cost"
_RING_BYTES: Final = 64 << 20


def uncontended(times: int) -> None:
    """A lock that nobody else wants."""
    lock = threading.Lock()
    for _ in range(times):
        with lock:
            pass


def turns(times: int) -> None:
    """Two threads that compute, and take turns with the interpreter's lock."""

    def compute() -> None:
        for _ in range(times // 2):
            pass

    other = threading.Thread(target=compute)
    other.start()
    compute()
    other.join()


def contended(times: int) -> None:
    """Two threads, and a lock that each holds while it gives up the interpreter's."""
    lock = threading.Lock()

    def take() -> None:
        for _ in range(times // 2):
            with lock:
                time.sleep(0)

    other = threading.Thread(target=take)
    other.start()
    take()
    other.join()


def results(times: int) -> None:
    """A job for a pool, and its result."""
    with ThreadPoolExecutor(2) as pool:
        for _ in range(times):
            pool.submit(int).result()


CASES: Final[dict[str, tuple[Callable[[int], None], int]]] = {
    "a lock that nobody else wants": (uncontended, 500_000),
    "a step of two threads that take turns": (turns, 20_000_000),
    "a lock that another thread wants": (contended, 20_000),
    "a job for a pool and its result": (results, 3_000),
}


def rows(quick: bool) -> list[Row]:
    repeats = 1 if quick else 9
    found = []
    with subprocess.Popen(
        [sys.executable, "-m", "tests.bench.bench_handoffs"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as program:
        for name in CASES:
            bare, observed = [], []
            for _ in range(repeats):
                bare.append(_ask(program, name))
                observed.append(_observed(program, name))
            found.append(
                Row(
                    bench=NAME,
                    name=f"otelgpu adds to {name}",
                    value=min(observed) - min(bare),
                    unit="ns",
                    baseline="bare",
                    baseline_value=min(bare),
                    note=f"bare: {spread(bare)}; observed: {spread(observed)}",
                )
            )
        program.communicate("")
    return found


def _observed(program: subprocess.Popen[str], name: str) -> float:
    settings = LiveSettings(ring_bytes={}, default_ring_bytes=_RING_BYTES, return_probes=False)
    source = LiveSource(registry.select(("sched",)), Scope(), settings)
    try:
        source.observe(program.pid)
        return _ask(program, name)
    finally:
        source.close()


def _ask(program: subprocess.Popen[str], name: str) -> float:
    assert program.stdin is not None
    assert program.stdout is not None
    print(name, file=program.stdin, flush=True)
    answer = program.stdout.readline()
    if not answer:
        raise BenchError("the program that is measured has ended")
    return float(answer)


def _serve() -> None:
    for line in sys.stdin:
        run, times = CASES[line.strip()]
        began = time.perf_counter_ns()
        run(times)
        print((time.perf_counter_ns() - began) / times, flush=True)


if __name__ == "__main__":
    _serve()
