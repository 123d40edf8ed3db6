"""Recordings with a planted cause, made by what makes them elsewhere: simulated jobs, profiles, golden captures."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct

from otelgpu.model import memory_failures
from tests.rig import ROOT
from tests.rig.jobs.shape import Shape
from tests.rig.jobs.simulation import simulate
from tests.rig.jobs.table import write
from tests.unit.diagnose.stall_timelines import MS
from tests.unit.diagnose.test_stall_observations import columns, job, written
from tests.unit.view.otlp_lines import attributes

GOLDEN: Final = ROOT / "tests" / "golden"
SHAPE: Final = Shape(steps=60, replicas=8, ranks_per_host=2, unit_s=0.01)


class Planted(Struct, frozen=True, kw_only=True):
    """``make`` writes the recordings, each with a name that begins as it is told; ``says``: of the cause, in words."""

    make: Callable[[Path], None]
    says: tuple[str, ...]


def ranks(fault: str, *says: str) -> Planted:
    return Planted(
        make=lambda path: write(path.with_suffix(".parquet"), simulate(fault, 4, SHAPE)), says=says
    )


def log(line: str, *says: str) -> Planted:
    lines = [f"step {step}: loss 2.{step}" for step in range(50)]
    return Planted(
        make=lambda path: void(path.with_suffix(".log").write_text("\n".join([*lines, line, *lines]))),
        says=says,
    )


def void(_: object) -> None:
    """Of what a writer gives nothing."""


def stalls(path: Path) -> None:
    written(path.with_suffix(".jsonl"), job())


def syncs(path: Path) -> None:
    """A journal that every third step waits for."""
    loop, save = "py:train:12", "py:commit:44"
    sleeps, waits, now = [], [], 0
    for step in range(40):
        sleeps.append((now + 60, 20 * MS))
        now += 80
        if step % 3 == 2:
            waits.append((now, 120 * MS))
            now += 120
    names = {"otelgpu.file.call": "fsync", "file.name": "journal.bin"}
    written(
        path.with_suffix(".jsonl"),
        [
            columns(
                "syscall_time", sleeps, (loop, "k:[syscall]"), **{"otelgpu.syscall.name": "clock_nanosleep"}
            ),
            columns("syscall_time", waits, (loop, save), **{"otelgpu.syscall.name": "fsync"}),
            columns("file_time", waits, (loop, save), **names),
            columns(
                "off_cpu", waits, (loop, save, "k:vfs_fsync"), **{"otelgpu.thread.state": "uninterruptible"}
            ),
        ],
    )


def two_profiles(path: Path) -> None:
    """What was fast, and the same with a function that was not there."""
    path.with_name(f"{path.name}-1.folded").write_text("main;train;forward 80\nmain;train;backward 90\n")
    path.with_name(f"{path.name}-2.folded").write_text(
        "main;train;forward 80\nmain;train;backward 90\nmain;train;tokenize 400\n"
    )


def out_of_memory(path: Path) -> None:
    """A profile that says nothing, and the event of an allocation that failed."""
    whole = written(
        path.with_suffix(".jsonl"), [columns("gpu_memory_in_use", [(0, 400)], ("py:train:12", "cudaMalloc"))]
    )
    given = {
        memory_failures.OUTCOME: memory_failures.UNMET,
        memory_failures.CAUSE: "own_memory",
        memory_failures.REQUESTED: 700 << 20,
        memory_failures.NEXT: "halve the batch",
    }
    record = {"timeUnixNano": "5", "eventName": memory_failures.EVENT, "attributes": attributes(given)}
    owner = {"attributes": attributes({"process.pid": 4242})}
    line = {"resourceLogs": [{"resource": owner, "scopeLogs": [{"logRecords": [record]}]}]}
    with whole.open("a") as file:
        file.write(json.dumps(line) + "\n")


def llm(path: Path) -> None:
    shutil.copyfile(GOLDEN / "llm_session.capture", path.with_suffix(".capture"))


CASES: Final[Mapping[str, Planted]] = {
    "slow-compute": ranks("slow compute", "Slow rank 4", "computing"),
    "slow-input": ranks("slow input", "Slow rank 1 ", "waiting for input"),
    "slow-host": ranks("a host's ranks", "Slow host host-0 (ranks 0, 1)", "file I/O"),
    "all-slower": ranks("all ranks at once", "All ranks became slower", "computing"),
    "hang": ranks("a hang", "rank 4"),
    "checkpoint": Planted(make=stalls, says=("writes 50.0 MB to checkpoint.bin", "every 5th of 40 steps")),
    "journal": Planted(make=syncs, says=("journal.bin", "every 3rd of 40 steps", "commit")),
    "memory": Planted(make=out_of_memory, says=("Out of memory", "asked for 700.0 MiB", "halve the batch")),
    "tokenizer": Planted(make=two_profiles, says=("tokenize",)),
    "bus": log(
        "[4242.1] NVRM: Xid (PCI:0000:3b:00): 79, pid=0, GPU has fallen off the bus.", "fallen off the bus"
    ),
    "llm": Planted(make=llm, says=("synchronous_launches: 80%", "the very next call waited for")),
}
"""By the beginning of their recordings' names."""


def record_all(folder: Path) -> None:
    """Those of all cases, side by side."""
    folder.mkdir(exist_ok=True)
    for name, case in CASES.items():
        case.make(folder / f"case-{name}")
