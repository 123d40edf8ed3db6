"""What a probe pair costs the thread that makes the call, in otelgpu and in other tracers.

One program calls cudaLaunchKernel of several copies of the fake library in turn. Each copy carries the
probes of one tracer, so all are up at once and take turns within milliseconds. Only ratios travel between
machines: a trap is 1–3 µs on bare metal and many times that where virtual machines are nested.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.bench import tracers
from tests.bench.programs import BUILD, BenchError, Load, at_once, attached, build_load, running_load
from tests.bench.rows import Budget, Row, median, not_measured, number, spread

NAME = "probe_cost"
STATS = Path("/proc/sys/kernel/bpf_stats_enabled")
BPFTRACE = "bpftrace, a line per call"


@dataclass(frozen=True, slots=True)
class Variant:
    """A tracer on a copy of the library; ``number`` is the copy's in the load."""

    name: str
    number: int


def rows(quick: bool) -> list[Row]:
    rounds, calls = (2, 500) if quick else (25, 3_000)
    build_load()
    with (
        tempfile.TemporaryDirectory(dir=BUILD) as folder,
        running_load() as load,
        contextlib.ExitStack() as stack,
    ):
        tracers_of = _tracers(load.pid)
        libraries = {name: Path(folder, f"lib{index}.copy") for index, name in enumerate(tracers_of)}
        numbers = {name: _copy(load, library) for name, library in libraries.items()}
        why_not = stack.enter_context(
            at_once({name: begin(libraries[name]) for name, begin in tracers_of.items()})
        )
        variants = [Variant("bare", _copy(load, Path(folder, "bare.copy"))), Variant("otelgpu", 0)]
        variants += [Variant(name, number) for name, number in numbers.items() if name not in why_not]
        absent = [not_measured(NAME, name, "ns/call", why) for name, why in why_not.items()]
        stack.enter_context(attached(load.pid))
        times: dict[str, list[float]] = {variant.name: [] for variant in variants}
        for _ in range(rounds):
            for variant in variants:
                times[variant.name].append(load.ask(f"launch {variant.number} {calls}") / calls)
        inside = _in_bpf(load, calls)
    return _rows(times) + absent + inside


def _copy(load: Load, target: Path) -> int:
    """A copy that otelgpu does not take for a shared library, for its name, opened in the load.

    ``target`` must be new: a file overwritten while it is mapped loses the relocated pages of its readers.
    """
    shutil.copyfile(BUILD / "libcudart.so.12", target)
    return int(load.ask(f"open {target}"))


def _tracers(pid: int) -> dict[str, Callable[[Path], contextlib.AbstractContextManager[object]]]:
    return {
        "traps alone (empty bpftrace probes)": lambda library: tracers.bpftrace(
            tracers.EMPTY, library=library
        ),
        BPFTRACE: lambda library: tracers.bpftrace(tracers.PRINTED, library=library, pid=pid),
        "bpftrace, all fields in maps, no output": lambda library: tracers.bpftrace(
            tracers.COUNTED, library=library, pid=pid
        ),
        "bpftrace, two fields, no output": lambda library: tracers.bpftrace(
            tracers.AGGREGATED, library=library, pid=pid
        ),
        "bcc, the same record": lambda library: tracers.bcc(library, pid),
    }


def _rows(times: dict[str, list[float]]) -> list[Row]:
    bare = median(times["bare"])
    cost = {name: median(values) - bare for name, values in times.items() if name != "bare"}
    ours = cost["otelgpu"]
    found = [Row(bench=NAME, name="bare call", value=bare, unit="ns/call")]
    for name in cost:
        if name == "otelgpu":
            continue
        found.append(
            Row(
                bench=NAME,
                name="otelgpu adds" if name == BPFTRACE else f"otelgpu adds, by: {name}",
                value=ours,
                unit="ns/call",
                baseline=name,
                baseline_value=cost[name],
                budget=Budget(limit=1, kind="at most", of="ratio") if name == BPFTRACE else None,
                note=f"otelgpu {spread(times['otelgpu'])}" if name == BPFTRACE else "",
            )
        )
    return found


# -- inside the kernel ----------------------------------------------------------------------------


@contextlib.contextmanager
def bpf_statistics() -> Iterator[None]:
    """Let the kernel time every BPF program, which costs some 20 ns a run; put back as it was."""
    before = STATS.read_text()
    STATS.write_text("1")
    try:
        yield
    finally:
        STATS.write_text(before)


def program_times() -> dict[tuple[int, str], tuple[int, int]]:
    """(id, name) → (run time in ns, runs) of every loaded program."""
    listed = subprocess.run(["bpftool", "prog", "show", "-j"], capture_output=True, check=False)
    if listed.returncode:
        raise BenchError(f"bpftool prog show failed: {listed.stderr.decode().strip()}")
    return {
        (program["id"], program.get("name", "")): (program.get("run_time_ns", 0), program.get("run_cnt", 0))
        for program in json.loads(listed.stdout)
    }


def _in_bpf(load: Load, calls: int) -> list[Row]:
    """The programs' own run time: what is left of the cost when the traps are taken away."""
    if shutil.which("bpftool") is None:
        return [not_measured(NAME, "in BPF", "ns/run", "bpftool is not installed")]
    with bpf_statistics():
        before = program_times()
        load.ask(f"launch 0 {calls}")
        after = program_times()
    found = []
    for key, (spent, runs) in sorted(after.items(), key=lambda item: item[0][1]):
        spent, runs = spent - before.get(key, (0, 0))[0], runs - before.get(key, (0, 0))[1]
        if key[1].startswith("cudaLaunchKern") and runs >= calls // 2:
            found.append(
                Row(
                    bench=NAME,
                    name=f"in BPF: {key[1]}",
                    value=spent / runs,
                    unit="ns/run",
                    note=f"kernel.bpf_stats_enabled, {number(runs)} runs; the name is cut by the kernel",
                )
            )
    return found
