"""What profiling costs: a sample, the profiler's own CPU time, and the observed program.

Beside otelgpu the same program is sampled by py-spy and by ``perf record -g``, where they are: on PATH, or py-spy in
``build/bench/py-spy`` (``python -m venv build/bench/py-spy && build/bench/py-spy/bin/pip install py-spy``).
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Self

from tests.bench.bench_probe import bpf_statistics
from tests.bench.programs import BUILD, BenchError, cpu_seconds, observer, otelgpu
from tests.bench.rows import Row, median, not_measured, number, spread

NAME: Final = "profile"
HZ: Final = 99
THREADS: Final = 50
OTELGPU: Final = "otelgpu profile"
_SOURCE: Final = Path(__file__).with_name("profile_load.c")
_SCRIPT: Final = Path(__file__).with_name("profile_load.py")


class Load:
    """A program that computes until the end of the block, and says how much it has done."""

    def __init__(self, argv: list[str]) -> None:
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = self._process.pid
        self.rounds()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def rounds(self) -> int:
        """Done so far."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise BenchError("the load ended")
        return int(line)


def native(threads: int) -> Load:
    """C without frame pointers."""
    program = BUILD / "profile_load"
    if not program.exists() or program.stat().st_mtime < _SOURCE.stat().st_mtime:
        BUILD.mkdir(parents=True, exist_ok=True)
        command = [
            "gcc",
            "-std=gnu11",
            "-O2",
            "-fomit-frame-pointer",
            "-pthread",
            "-o",
            str(program),
            str(_SOURCE),
        ]
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        if made.returncode:
            raise BenchError(f"gcc failed on {_SOURCE}:\n{made.stderr}")
    return Load([str(program), str(threads), "20"])


def python(kind: str, threads: int) -> Load:
    """This interpreter."""
    return Load([sys.executable, str(_SCRIPT), kind, str(threads)])


LOADS: Final[dict[str, Callable[[int], Load]]] = {
    "native": native,
    "Python": partial(python, "python"),
    "mixed": partial(python, "mixed"),
}


# -- profilers -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiler:
    """One that is attached to a process until the end of a block; ``missing``: why it cannot be, "" if it can."""

    name: str
    attach: Callable[[int, Path], AbstractContextManager[subprocess.Popen[bytes]]]
    missing: str = ""
    note: str = ""


def _otelgpu(
    pid: int, folder: Path, kinds: str = "python,cpu"
) -> AbstractContextManager[subprocess.Popen[bytes]]:
    command = otelgpu("profile", "-p", str(pid), "-t", kinds, "--frequency", str(HZ), "-d", "600")
    return observer([*command, "-o", str(folder / "otelgpu.folded")], "profiling", settle_s=1.0)


def _perf(pid: int, folder: Path) -> AbstractContextManager[subprocess.Popen[bytes]]:
    command = ["perf", "record", "-g", "-F", str(HZ), "-p", str(pid), "-o", str(folder / "perf.data")]
    return observer(command, "", settle_s=1.0)


def _py_spy(program: str, pid: int, folder: Path) -> AbstractContextManager[subprocess.Popen[bytes]]:
    command = [program, "record", "-p", str(pid), "-r", str(HZ), "-d", "600", "-n", "-t", "-f", "raw"]
    return observer([*command, "-o", str(folder / "py-spy.raw")], "", settle_s=1.5)


def profilers() -> list[Profiler]:
    """Those that are to be compared."""
    perf, reason = shutil.which("perf"), ""
    if perf is None:
        reason = "perf is not installed"
    else:
        with tempfile.TemporaryDirectory() as folder:
            tried = subprocess.run(
                [perf, "record", "-g", "-o", f"{folder}/perf.data", "--", "true"],
                capture_output=True,
                check=False,
            )
            reason = "" if tried.returncode == 0 else "perf record fails here: " + _last_line(tried.stderr)
    spy = shutil.which("py-spy") or shutil.which(str(BUILD / "py-spy" / "bin" / "py-spy"))
    return [
        Profiler(
            name="otelgpu profile",
            attach=_otelgpu,
            note="Python, native and kernel frames, named as they come",
        ),
        Profiler(
            name="perf record -g",
            attach=_perf,
            missing=reason,
            note="frame pointers only, no Python; names later",
        ),
        Profiler(
            name="py-spy --native",
            attach=partial(_py_spy, spy or ""),
            missing="" if spy else "py-spy is not installed: pip install py-spy",
            note="stops the program for each sample",
        ),
    ]


def _last_line(output: bytes) -> str:
    return (output.decode(errors="replace").strip().splitlines() or ["it says nothing"])[-1]


# -- rows ------------------------------------------------------------------------------------------


def rows(quick: bool) -> list[Row]:
    """All of it."""
    seconds = 2.0 if quick else 5.0
    found = [row for name, load in LOADS.items() for row in _cost_of_a_sample(name, load, seconds)]
    return [*found, *_comparison("mixed", THREADS, seconds, rounds=1 if quick else 2)]


def _cost_of_a_sample(name: str, load: Callable[[int], Load], seconds: float) -> list[Row]:
    """Time in the BPF program, by the kernel's own clock, for each sample that arrived."""
    with load(2) as running, tempfile.TemporaryDirectory() as folder, bpf_statistics():
        command = otelgpu("profile", "-p", str(running.pid), "-t", "python,cpu", "--frequency", "997")
        command += ["-d", str(seconds), "-o", f"{folder}/out.folded"]
        spent = 0
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        try:
            until = time.monotonic() + 60
            while process.poll() is None and time.monotonic() < until:
                spent = max(spent, _clock_program_ns(process.pid))
                time.sleep(0.2)
            said = process.communicate(timeout=30)[1]
        finally:
            process.kill()
    found = re.search(r"\bcpu ([\d,]+)", said)
    if process.returncode or found is None:
        raise BenchError(f"otelgpu profile ended with {process.returncode}: {said[-500:]}")
    samples = int(found[1].replace(",", ""))
    if not samples:
        return [not_measured(NAME, f"a sample, {name}", "µs", "no sample was taken")]
    return [
        Row(
            bench=NAME,
            name=f"a sample, {name}",
            value=spent / samples / 1e3,
            unit="µs",
            note=f"{name}: time in the program that takes them (kernel.bpf_stats_enabled), clock ticks of "
            f"other processes and of idle CPUs included, for each of {number(samples)} samples",
        )
    ]


def _clock_program_ns(pid: int) -> int:
    """Run time of the process's programs that perf events start (BPF_PROG_TYPE_PERF_EVENT), by its descriptors."""
    spent = 0
    for path in Path(f"/proc/{pid}/fdinfo").glob("*"):
        try:
            facts = dict(line.split(":", 1) for line in path.read_text().splitlines() if ":" in line)
        except OSError:
            continue  # it is closed by now
        if facts.get("prog_type", "").strip() == "7":
            spent += int(facts.get("run_time_ns", "0"))
    return spent


def _comparison(kind: str, threads: int, seconds: float, *, rounds: int) -> list[Row]:
    """Profilers in turn, each between two bare stretches of the same running program."""
    found = []
    with LOADS[kind](threads) as load, tempfile.TemporaryDirectory() as folder:
        time.sleep(1)
        shares: dict[str, float] = {}
        for each in profilers():
            titles = (
                f"CPU of {each.name}",
                f"CPU per round, under {each.name}",
                f"time per round, under {each.name}",
            )
            if each.missing:
                found += [not_measured(NAME, title, "%", each.missing) for title in titles]
                continue
            share, costlier, slower = [], [], []
            for _ in range(rounds):
                before = _pace(load, seconds / 2)
                with each.attach(load.pid, Path(folder)) as process:
                    began, used = time.monotonic(), cpu_seconds(process.pid)
                    during = _pace(load, seconds)
                    if process.poll() is not None:
                        raise BenchError(f"{each.name} ended with {process.returncode}")
                    share.append(100 * (cpu_seconds(process.pid) - used) / (time.monotonic() - began))
                after = _pace(load, seconds / 2)
                costlier.append(100 * (2 * during.cpu_s / (before.cpu_s + after.cpu_s) - 1))
                slower.append(100 * (2 * during.wall_s / (before.wall_s + after.wall_s) - 1))
            shares[each.name] = median(share)
            note = f"{each.name}: {HZ} Hz, {threads} threads, {kind}; {each.note}"
            for title, values, unit in zip(
                titles, (share, costlier, slower), ("% of a core", "% more", "% more"), strict=True
            ):
                compared = title == titles[0] and each.name != OTELGPU
                found.append(
                    Row(
                        bench=NAME,
                        name=title,
                        value=median(values),
                        unit=unit,
                        note=f"{note}; {title.partition(',')[0]}: {spread(values)}",
                        baseline=OTELGPU if compared else "",
                        baseline_value=shares[OTELGPU] if compared else None,
                    )
                )
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """What a round of the program takes: of its own CPU time, and of time between two rounds."""

    cpu_s: float
    wall_s: float


def _pace(load: Load, seconds: float) -> Pace:
    """Over a while. CPU time does not count what others of this machine take; a program that is stopped has none."""
    began, used, before = time.monotonic(), cpu_seconds(load.pid), load.rounds()
    time.sleep(seconds)
    done = max(load.rounds() - before, 1)
    return Pace(cpu_s=(cpu_seconds(load.pid) - used) / done, wall_s=(time.monotonic() - began) / done)
