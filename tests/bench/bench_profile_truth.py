"""How true profiles are: programs that know how their CPU time divides, under otelgpu, perf and py-spy.

Two threads burn 60, 30 and 10 parts in turns of no one length, and say at the end what each function took by its
thread's own clock. What is compared is the share that differs most from that, in points.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from tests.bench.bench_profile import py_spy
from tests.bench.programs import BUILD, BenchError, otelgpu
from tests.bench.rows import Row, not_measured

NAME: Final = "profile_truth"
HZ: Final = 997
FUNCTIONS: Final = ("burns_sixty", "burns_thirty", "burns_ten")
SECONDS: Final = 8  # longer than the program runs: profilers end with it
_DATA: Final = Path(__file__).parent.parent / "kernel" / "data"
_Counts = Mapping[str, float]


def rows(quick: bool) -> list[Row]:
    """All of it."""
    programs = {"C": [str(_native()), "cpu"], "Python": [sys.executable, str(_DATA / "known_shares.py")]}
    asked = [
        (language, name, command, profiler)
        for language, command in programs.items()
        for name, profiler in _PROFILERS.items()
    ]
    with ThreadPoolExecutor(len(asked) if quick else 1) as pool:  # each lasts as long as its program
        return list(pool.map(lambda arguments: _row(*arguments), asked))


def _native() -> Path:
    program = BUILD / "known_times"
    BUILD.mkdir(parents=True, exist_ok=True)
    command = [
        "gcc",
        "-O1",
        "-fno-omit-frame-pointer",
        "-pthread",
        "-o",
        str(program),
        str(_DATA / "known_times.c"),
    ]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode:
        raise BenchError(f"gcc failed:\n{made.stderr}")
    return program


# -- profilers: (pid, folder) -> the command, and what it found ---------------------------------------------


def _otelgpu(pid: int, folder: Path) -> list[str]:
    arguments = ("profile", "-p", str(pid), "-t", "cpu", "--frequency", str(HZ), "-d", str(SECONDS))
    return otelgpu(*arguments, "--force", "-o", str(folder / "out.folded"))


def _perf(pid: int, folder: Path) -> list[str]:
    perf = shutil.which("perf")
    return (
        [
            perf,
            "record",
            "-q",
            "-e",
            "cpu-clock",
            "-g",
            "-F",
            str(HZ),
            "-p",
            str(pid),
            "-o",
            str(folder / "out"),
        ]
        if perf
        else []
    )


def _py_spy(pid: int, folder: Path) -> list[str]:
    spy = py_spy()
    arguments = ("record", "-p", str(pid), "-r", str(HZ), "-d", str(SECONDS), "-f", "raw", "--nonblocking")
    return [spy, *arguments, "-o", str(folder / "out.raw")] if spy else []


def _of_folded(lines: Iterable[str]) -> _Counts:
    found: Counter[str] = Counter()
    for line in lines:
        stack, _, value = line.rpartition(" ")
        for name in FUNCTIONS:
            found[name] += int(value) if re.search(rf"\b{name}\b", stack) else 0
    return found


def _of_perf(folder: Path) -> _Counts:
    command = ["perf", "script", "-i", str(folder / "out"), "-F", "ip,sym"]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return _of_folded(" ".join(sample.split()) + " 1" for sample in said.split("\n\n") if sample.strip())


_Profiler = tuple[Callable[[int, Path], list[str]], Callable[[Path], _Counts]]
_PROFILERS: Final[Mapping[str, _Profiler]] = {
    "otelgpu profile": (
        _otelgpu,
        lambda folder: _of_folded((folder / "out.folded").read_text().splitlines()),
    ),
    "perf record -g": (_perf, _of_perf),
    "py-spy": (_py_spy, lambda folder: _of_folded((folder / "out.raw").read_text().splitlines())),
}


def _row(language: str, name: str, command: Sequence[str], profiler: _Profiler) -> Row:
    title = f"{language}: worst share, {name}"
    asked, read = profiler
    if (language, name) in (("C", "py-spy"), ("Python", "perf record -g")):
        return not_measured(NAME, title, "points", "it does not see these functions")
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        program = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            assert program.stdin and program.stdout and program.stderr
            program.stderr.readline()
            argv = asked(program.pid, folder)
            if not argv:
                return not_measured(NAME, title, "points", "it is not installed")
            with subprocess.Popen(
                argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
            ) as process:
                try:
                    process.wait(timeout=2)  # until it is there
                    return not_measured(NAME, title, "points", _last_line(process.communicate()[1]))
                except subprocess.TimeoutExpired:
                    pass
                program.stdin.write("\n")
                program.stdin.flush()
                true: Counter[str] = Counter()
                for line in iter(program.stdout.readline, "done 0 0\n"):
                    function, _, ns = line.split()
                    true[function] += int(ns)
                program.communicate("\n", timeout=30)
                said = process.communicate(timeout=60)[1]
        finally:
            program.kill()
            program.wait()
        found = read(folder)
    total, all_true = sum(found.values()), sum(true.values())
    if not total:
        return not_measured(NAME, title, "points", f"it found none of them: {_last_line(said)}")
    off = {each: 100 * abs(found[each] / total - true[each] / all_true) for each in FUNCTIONS}
    shares = ", ".join(
        f"{100 * found[each] / total:.1f} ({100 * true[each] / all_true:.1f})" for each in FUNCTIONS
    )
    return Row(
        bench=NAME,
        name=title,
        value=max(off.values()),
        unit="points",
        note=f"{HZ} Hz, shares found (true): {shares}",
    )


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it says nothing"])[-1]
