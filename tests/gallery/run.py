"""``python -m tests.gallery.run [NAME…]``: run programs of the gallery under ``otelgpu diagnose stall``; a table of
what was said.

Each is started under the command, or, with a quota, in a control group of its own; the verdict that comes first
counts.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from otelgpu.diagnose.stall.causes import CPU_CONTENTION
from otelgpu.diagnose.stall.sentences import sentence
from otelgpu.diagnose.stall.verdicts import StallReport
from tests.gallery.cases import CASES, Case
from tests.rig import ROOT

NOTHING: Final = "nothing"
_V1: Final = Path("/sys/fs/cgroup/cpu")
_V2: Final = Path("/sys/fs/cgroup")


class Said(Struct, frozen=True, kw_only=True):
    """What was said of a program: the cause that came first, ``nothing`` or ``inconclusive``."""

    cause: str
    sentence: str
    text: str


def diagnose(name: str, case: Case, recording: Path | None = None) -> Said:
    """Run one program under the command; one with a quota is attached to, when it is in its control group.

    ``recording``: a file that what was recorded goes to.
    """
    command = ["-m", "otelgpu", "diagnose", "stall"]
    if recording is not None:
        command = ["-m", "tests.gallery.recordings", str(recording)]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder, quota(case.quota) as prefix, ExitStack() as stack:
        program = [*prefix, sys.executable, "-m", "tests.gallery.programs", name, folder]
        target, device = ["--", *program], ["--device-calls"] if case.device else []
        if case.quota:
            running = stack.enter_context(subprocess.Popen(program, cwd=ROOT, env=environ))
            stack.callback(running.kill)
            time.sleep(1.0)
            target = ["-p", str(running.pid), "-d", "5"]
        done = subprocess.run(
            [sys.executable, *command, "--json", *device, *target],
            cwd=ROOT,
            env=environ,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
    if done.returncode not in (0, 3, 4):
        raise AssertionError(f"{name}: exit code {done.returncode}: {done.stderr[-2000:]}")
    return said_of(json.loads(done.stdout), is_busy=case.cause != CPU_CONTENTION and machine_is_busy())


def machine_is_busy() -> bool:
    """Others use its CPUs: then each program waits for one indeed, and that verdict is not what is tested."""
    return os.getloadavg()[0] > 0.6 * len(os.sched_getaffinity(0))


def said_of(report: Mapping[str, Any], *, is_busy: bool = False) -> Said:
    """By the first verdict of a document; on a busy machine, but for waits for its CPUs."""
    made = msgspec.convert(report, StallReport)
    verdicts = [each for each in made.verdicts if not (is_busy and each.cause == CPU_CONTENTION)]
    first = verdicts[0] if verdicts else None
    cause = NOTHING if first is None else first.cause or first.klass
    text = "\n".join(sentence(each) for each in verdicts)
    return Said(
        cause=cause,
        sentence=sentence(first) if first is not None else "",
        text=text,
    )


@contextmanager
def quota(cpus: float) -> Iterator[list[str]]:
    """How a program is started in a control group that has so many CPUs; 0: as it is."""
    if not cpus:
        yield []
        return
    folder = (_V1 if _V1.is_dir() else _V2) / f"otelgpu-gallery-{os.getpid()}"
    folder.mkdir()
    try:
        if _V1.is_dir():
            (folder / "cpu.cfs_period_us").write_text("100000")
            (folder / "cpu.cfs_quota_us").write_text(str(round(cpus * 100_000)))
        else:
            (folder / "cpu.max").write_text(f"{round(cpus * 100_000)} 100000")
        yield ["sh", "-c", f'echo $$ > {folder}/cgroup.procs; exec "$@"', "sh"]
    finally:
        folder.rmdir()


def confusion(said: Mapping[str, str]) -> list[tuple[str, dict[str, int]]]:
    """A row for each label: how often each cause was named first."""
    rows: dict[str, Counter[str]] = {}
    for name, cause in said.items():
        rows.setdefault(CASES[name].cause or NOTHING, Counter())[cause] += 1
    return [(label, dict(counts)) for label, counts in rows.items()]


def write_confusion(said: Mapping[str, str]) -> None:
    """The table of the manual."""
    print("\n| Label | Programs | Named first |\n| --- | --- | --- |")
    for label, counts in confusion(said):
        named = ", ".join(f"{cause} {count}" for cause, count in counts.items())
        print(f"| {label} | {sum(counts.values())} | {named} |")


def main(names: Iterable[str], folder: Path | None = None) -> int:
    """How many programs of those had another cause named first."""
    wrong, named = 0, {}
    for name in names or CASES:
        case = CASES[name]
        said = diagnose(name, case, None if folder is None else folder / f"{name}.json.xz")
        want = case.cause or NOTHING
        missing = [each for each in case.says if each not in said.sentence]
        named[name] = said.cause
        is_right = said.cause == want and not missing
        wrong += not is_right
        print(
            f"{'ok   ' if is_right else 'WRONG'} {name:22} {want:20} {said.cause:20} {said.text or '-'}",
            flush=True,
        )
        if missing:
            print(f"      not said: {missing}", flush=True)
    write_confusion(named)
    return wrong


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="run the gallery")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--recordings", type=Path, help="a folder that what was recorded goes to")
    given = parser.parse_args()
    sys.exit(min(main(given.names, given.recordings), 1))
