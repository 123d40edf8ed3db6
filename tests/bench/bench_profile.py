"""What profiling costs: a sample, the profiler's own CPU time, and the observed program.

Beside otelgpu the same program is sampled by py-spy (``pip install -e .[bench]``, as ``make setup`` does) and by
``perf record -g`` (package linux-perf), in turns; a turn with no profiler at all shows what such a difference is worth.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Self

from tests.bench.bench_probe import bpf_statistics
from tests.bench.programs import BUILD, BenchError, observer, otelgpu
from tests.bench.rows import Budget, Row, median, not_measured, number, spread

NAME: Final = "profile"
HZ: Final = 99
THREADS: Final = 50
OTELGPU: Final = "otelgpu profile -t python,cpu"
NOBODY: Final = "no profiler"
SETTLE_S: Final = 1.0
_PERF_EVENT: Final = 7  # BPF_PROG_TYPE_PERF_EVENT
_TRACING: Final = 26  # BPF_PROG_TYPE_TRACING
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
    """One that is attached to a process until the end of a block; ``missing``: why it cannot be, "" if it can.

    ``own``: its CPU time has a row, in percent of a core, of which no more than ``budget`` is meant to be.
    """

    name: str
    attach: Callable[[int, Path], AbstractContextManager[subprocess.Popen[bytes] | None]]
    missing: str = ""
    note: str = ""
    own: bool = True
    budget: float | None = None


def _nothing(settle_s: float, pid: int, folder: Path) -> AbstractContextManager[None]:
    del pid, folder
    time.sleep(settle_s)
    return nullcontext()


def _otelgpu(
    settle_s: float, pid: int, folder: Path, kinds: str
) -> AbstractContextManager[subprocess.Popen[bytes]]:
    command = otelgpu("profile", "-p", str(pid), "-t", kinds, "--frequency", str(HZ), "-d", "600")
    return observer(
        [*command, "--force", "-o", str(folder / "otelgpu.folded")], "profiling", settle_s=settle_s
    )


def _agent(
    settle_s: float, pid: int, folder: Path, kinds: str, frequency_hz: int
) -> AbstractContextManager[subprocess.Popen[bytes]]:
    """What an agent does, of one process: its spans and profiles are encoded, and thrown away."""
    command = otelgpu("attach", "-p", str(pid), "--quiet", "--export", "file:/dev/null")
    profiles = {"OTELGPU_PROFILES": kinds, "OTELGPU_PROFILE_FREQUENCY_HZ": str(frequency_hz)}
    return observer(command, "observing", settle_s=settle_s, env=profiles)


def _perf(settle_s: float, pid: int, folder: Path) -> AbstractContextManager[subprocess.Popen[bytes]]:
    command = ["perf", "record", "-g", "-F", str(HZ), "-p", str(pid), "-o", str(folder / "perf.data")]
    return observer(command, "", settle_s=settle_s)


def _py_spy(
    settle_s: float, program: str, pid: int, folder: Path
) -> AbstractContextManager[subprocess.Popen[bytes]]:
    command = [program, "record", "-p", str(pid), "-r", str(HZ), "-d", "600", "-n", "-t", "-f", "raw"]
    return observer([*command, "-o", str(folder / "py-spy.raw")], "", settle_s=settle_s)


def py_spy() -> str:
    """The program: that of this environment, or on PATH; "" where there is none."""
    return shutil.which("py-spy", path=str(Path(sys.executable).parent)) or shutil.which("py-spy") or ""


def profilers(settle_s: float) -> list[Profiler]:
    """Those that are to be compared, and nothing, with which to compare; ``settle_s``: before and after each."""
    spy = py_spy()
    return [
        Profiler(
            name=NOBODY,
            attach=partial(_nothing, settle_s),
            note="the same stretches, for how much they differ",
            own=False,
        ),
        Profiler(
            name=OTELGPU,
            attach=partial(_otelgpu, settle_s, kinds="python,cpu"),
            note="on-CPU and waiting; Python, native and kernel frames, named as they come",
            budget=4.0,
        ),
        Profiler(
            name="otelgpu profile -t cpu",
            attach=partial(_otelgpu, settle_s, kinds="cpu"),
            note="on-CPU; Python, native and kernel frames, named as they come",
            budget=5.0,
        ),
        Profiler(
            name="perf record -g",
            attach=partial(_perf, settle_s),
            missing=_why_no_perf(),
            note="on-CPU; frame pointers only, no Python; names later",
        ),
        Profiler(
            name="py-spy --native",
            attach=partial(_py_spy, settle_s, spy),
            missing="" if spy else "py-spy is not installed: pip install -e .[bench]",
            note="on-CPU; Python and native frames; stops the program for each sample",
        ),
        Profiler(name="the agent, no profiles", attach=partial(_agent, settle_s, kinds="", frequency_hz=19)),
        Profiler(
            name="the agent, cpu at 19 Hz", attach=partial(_agent, settle_s, kinds="cpu", frequency_hz=19)
        ),
        Profiler(
            name=f"the agent, cpu at {HZ} Hz",
            attach=partial(_agent, settle_s, kinds="cpu", frequency_hz=HZ),
            budget=5.0,
        ),
    ]


def _why_no_perf() -> str:
    perf = shutil.which("perf")
    if perf is None:
        return "perf is not installed (Debian: apt-get install linux-perf)"
    with tempfile.TemporaryDirectory() as folder:
        tried = subprocess.run(
            [perf, "record", "-g", "-o", f"{folder}/perf.data", "--", "true"],
            capture_output=True,
            check=False,
        )
    return "" if tried.returncode == 0 else "perf record fails here: " + _last_line(tried.stderr)


def _last_line(output: bytes) -> str:
    return (output.decode(errors="replace").strip().splitlines() or ["it says nothing"])[-1]


# -- rows ------------------------------------------------------------------------------------------


def rows(quick: bool) -> list[Row]:
    """All of it."""
    seconds, settle_s = (0.5, 0.3) if quick else (4.0, SETTLE_S)
    with bpf_statistics(), ThreadPoolExecutor(len(LOADS) if quick else 1) as pool:
        found = list(pool.map(lambda load: _cost_of_a_sample(*load, seconds), LOADS.items()))
        found.append(_cost_of_a_switch(seconds, settle_s))
    return [*found, *_comparison("mixed", THREADS, seconds, settle_s, rounds=1 if quick else 3)]


def _cost_of_a_sample(name: str, load: Callable[[int], Load], seconds: float) -> Row:
    """Time in the BPF program, by the kernel's own clock, for each sample that arrived."""
    with load(2) as running, tempfile.TemporaryDirectory() as folder:
        command = otelgpu("profile", "-p", str(running.pid), "-t", "python,cpu", "--frequency", "997")
        command += ["-d", str(seconds), "-o", f"{folder}/out.folded"]
        spent = 0
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        try:
            until = time.monotonic() + 60
            while process.poll() is None and time.monotonic() < until:
                spent = max(spent, sum(ns for ns, _ in _spent(process.pid, _PERF_EVENT).values()))
                time.sleep(0.2)
            said = process.communicate(timeout=30)[1]
        finally:
            process.kill()
    found = re.search(r"\bcpu ([\d,]+)", said)
    if process.returncode or found is None:
        raise BenchError(f"otelgpu profile ended with {process.returncode}: {said[-500:]}")
    samples = int(found[1].replace(",", ""))
    if not samples or not spent:
        why = "none of its time was seen" if samples else "no sample was taken"
        return not_measured(NAME, f"a sample, {name}", "µs", why)
    return Row(
        bench=NAME,
        name=f"a sample, {name}",
        value=spent / samples / 1e3,
        unit="µs",
        note=f"{name}: time in the program that takes them (kernel.bpf_stats_enabled), clock ticks of "
        f"other processes and of idle CPUs included, for each of {number(samples)} samples",
    )


def _cost_of_a_switch(seconds: float, settle_s: float) -> Row:
    """Time in the program that looks at each switch between threads, of which kind python learns who waits."""
    name = f"a switch between threads, mixed, {THREADS} of them"
    with (
        LOADS["mixed"](THREADS) as load,
        tempfile.TemporaryDirectory() as folder,
        _otelgpu(settle_s, load.pid, Path(folder), "python") as process,
    ):
        before = _spent(process.pid, _TRACING)
        time.sleep(seconds)
        after = _spent(process.pid, _TRACING)
    spent = [
        (ns - before.get(program, (0, 0))[0], runs - before.get(program, (0, 0))[1])
        for program, (ns, runs) in after.items()
    ]
    ns, runs = max(spent, default=(0, 0))
    if not runs:
        return not_measured(NAME, name, "µs", "no switch was seen")
    note = f"time in the program that looks at it, for each of {number(runs / seconds)} a second"
    return Row(bench=NAME, name=name, value=ns / runs / 1e3, unit="µs", note=note)


def _spent(pid: int, kind: int) -> dict[str, tuple[int, int]]:
    """Nanoseconds and runs of a process's programs of one BPF_PROG_TYPE, by their numbers: fdinfo of descriptors."""
    found = {}
    for path in Path(f"/proc/{pid}/fdinfo").glob("*"):
        try:
            facts = dict(line.split(":", 1) for line in path.read_text().splitlines() if ":" in line)
        except OSError:
            continue  # it is closed by now
        if facts.get("prog_type", "").strip() == str(kind):
            found[facts["prog_id"]] = int(facts.get("run_time_ns", "0")), int(facts.get("run_cnt", "0"))
    return found


def _comparison(kind: str, threads: int, seconds: float, settle_s: float, *, rounds: int) -> list[Row]:
    """Profilers in turn, each between two bare stretches of the same running program."""
    taken: dict[str, list[_Turn]] = {}
    asked = profilers(settle_s)
    with LOADS[kind](threads) as load, tempfile.TemporaryDirectory() as folder:
        time.sleep(1)
        for _ in range(rounds):
            for each in asked:
                if not each.missing:
                    taken.setdefault(each.name, []).append(_turn(each, load, Path(folder), seconds))
    return [row for each in asked for row in _rows_of(each, taken, f"{threads} threads, {kind}")]


def _rows_of(profiler: Profiler, taken: Mapping[str, Sequence[_Turn]], load: str) -> list[Row]:
    name = profiler.name
    titles = {
        f"CPU of {name}": ("% of a core", "share"),
        f"CPU per round, under {name}": ("% more", "costlier"),
        f"time per round, under {name}": ("% more", "slower"),
    }
    if not profiler.own:
        del titles[f"CPU of {name}"]
    found = []
    for title, (unit, column) in titles.items():
        if profiler.missing:
            found.append(not_measured(NAME, title, unit, profiler.missing))
            continue
        values = [getattr(turn, column) for turn in taken[name]]
        own = column == "share"
        compared = own and name != OTELGPU
        note = f"{name}: {HZ} Hz, {load}" if "agent" not in name else f"{name}: {load}"
        parts = [note, profiler.note, f"{title.partition(',')[0]}: {spread(values)}"]
        if own:
            parts.append(f"in the seconds before: {number(median([turn.first for turn in taken[name]]))}")
        found.append(
            Row(
                bench=NAME,
                name=title,
                value=median(values),
                unit=unit,
                budget=Budget(limit=profiler.budget, kind="at most") if own and profiler.budget else None,
                note="; ".join(filter(None, parts)),
                baseline=OTELGPU if compared else "",
                baseline_value=median([turn.share for turn in taken[OTELGPU]]) if compared else None,
            )
        )
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Turn:
    """Of one profiler, in percent: its CPU time of a core, and what a round of the program took more."""

    first: float  # in the seconds before, of which it learns names and makes unwind tables
    share: float
    costlier: float
    slower: float


def _turn(profiler: Profiler, load: Load, folder: Path, seconds: float) -> _Turn:
    before = _pace(load, seconds / 2)
    with profiler.attach(load.pid, folder) as process:
        began = _Used.by(process)
        time.sleep(seconds)
        settled = _Used.by(process)
        during = _pace(load, seconds)
        ended = _Used.by(process)
        if process is not None and process.poll() is not None:
            raise BenchError(f"{profiler.name} ended with {process.returncode}")
    after = _pace(load, seconds / 2)
    return _Turn(
        first=settled.share_since(began),
        share=ended.share_since(settled),
        costlier=100 * (2 * during.cpu_s / (before.cpu_s + after.cpu_s) - 1),
        slower=100 * (2 * during.wall_s / (before.wall_s + after.wall_s) - 1),
    )


@dataclass(frozen=True, slots=True)
class _Used:
    """CPU time of a process, at a time; none of no process."""

    at_s: float
    cpu_s: float

    @classmethod
    def by(cls, process: subprocess.Popen[bytes] | None) -> Self:
        return cls(time.monotonic(), _used_s(process.pid) if process is not None else 0.0)

    def share_since(self, before: Self) -> float:
        """Percent of a core."""
        return 100 * (self.cpu_s - before.cpu_s) / (self.at_s - before.at_s)


def _used_s(pid: int) -> float:
    """CPU time of a process's threads and of its children's, to the nanosecond; of those that live."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            total += int((task / "schedstat").read_text().split()[0])
            total += sum(int(1e9 * _used_s(int(child))) for child in (task / "children").read_text().split())
        except OSError:
            continue  # it has ended
    return total / 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """What a round of the program takes: of its own CPU time, and of time between two rounds."""

    cpu_s: float
    wall_s: float


def _pace(load: Load, seconds: float) -> Pace:
    """Over a while. CPU time does not count what others of this machine take; a program that is stopped has none."""
    began, used, before = time.monotonic(), _used_s(load.pid), load.rounds()
    time.sleep(seconds)
    done = max(load.rounds() - before, 1)
    return Pace(cpu_s=(_used_s(load.pid) - used) / done, wall_s=(time.monotonic() - began) / done)
