"""What everybody else pays: write() and read() of one byte on a pipe, in a process that is not observed; and what
family file adds to one that is.

While a tracer is on a syscall tracepoint every process's system calls take the kernel's slow path: somebody
else's tracer spoils a round. So each state's value is that of its quietest round, a median of several runs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from tests.bench import tracers
from tests.bench.machine import programs_of_others
from tests.bench.programs import Load, attached, observer, otelgpu, running_load
from tests.bench.rows import Row, median, spread

NAME = "syscall_cost"
_OF_THE_OBSERVED = ("files", "http")


def rows(quick: bool) -> list[Row]:
    rounds, repeats, calls = (1, 2, 5_000) if quick else (5, 5, 50_000)
    with running_load() as unrelated, running_load() as observed:
        times: dict[str, list[float]] = {}
        others = 0
        for _ in range(rounds):
            others = max(others, programs_of_others())
            for name, opened in _states(observed).items():
                with opened():
                    load = observed if name in _OF_THE_OBSERVED else unrelated
                    runs = [load.ask(f"pipe {calls}") / (2 * calls) for _ in range(repeats)]
                    times.setdefault(name, []).append(median(runs))
    spoilt = f"; {others} BPF programs of others were loaded: NOT USABLE" if others else ""
    bare = min(times["bare"])
    theirs = min(times["bpftrace"]) - bare
    return [
        Row(bench=NAME, name="bare read() or write()", value=bare, unit="ns/call"),
        *(
            Row(
                bench=NAME,
                name=f"otelgpu adds, {name}",
                value=min(times[name]) - bare,
                unit="ns/call",
                baseline="bpftrace: read, write of another process",
                baseline_value=theirs,
                note=f"with otelgpu, {name}: {spread(times[name])}; bare: {spread(times['bare'])}{spoilt}",
            )
            for name in ("it observes another process", "it observes everything")
        ),
        Row(
            bench=NAME,
            name="family file adds, in the observed process",
            value=min(times["files"]) - bare,
            unit="ns/call",
            baseline="family http, in the observed process",
            baseline_value=min(times["http"]) - bare,
            note=f"with family file: {spread(times['files'])}; http: {spread(times['http'])}{spoilt}",
        ),
    ]


def _states(observed: Load) -> dict[str, Callable[[], contextlib.AbstractContextManager[object]]]:
    everything = otelgpu("agent", "--quiet", "--export", "file:/dev/null")
    return {
        "bare": contextlib.nullcontext,
        "it observes another process": lambda: attached(observed.pid),
        "it observes everything": lambda: observer(everything, "observing"),
        "files": lambda: attached(observed.pid, "--families=file"),
        "http": lambda: attached(observed.pid, "--families=http"),
        "bpftrace": lambda: tracers.bpftrace(tracers.SYSCALLS, pid=observed.pid),
    }
