"""Jobs of real PyTorch on CPUs (gloo), one rank of which is slow, against the verdicts on their profiler's traces,
or on what an agent saw of them.

``python -m tests.rig.jobs.torch_gloo --python PYTHON [--observed]``, where ``PYTHON`` has torch (its build for CPUs
does): four ranks, once for each fault and once without any. Needs root for the fault ``cpu``, a quota of a cgroup.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from otelgpu.cli.rank_reports import look
from otelgpu.diagnose.ranks.verdicts import RanksReport
from tests.rig.cgroup import remove_cgroup
from tests.rig.ports import free_ports

FAULTS: Final = ("none", "host", "input", "cpu")
CAUSES: Final = {"host": {"host"}, "input": {"input"}, "cpu": {"compute", "host", "mixed"}}
"""A quota strikes wherever the rank is when it is spent."""
RANKS: Final = 4
LATE_RANK: Final = 2
LATE_FROM: Final = 40
STEPS: Final = 120
LATE_MS: Final = 40
QUOTA: Final = "1000 20000"
"""Of the fault ``cpu``: 5 % of a processor."""

_CGROUPS: Final = Path("/sys/fs/cgroup")
_RANK: Final = Path(__file__).with_name("torch_rank.py")


def run(python: str, fault: str, *, observed: bool = False) -> RanksReport:
    """A job, and what is said of it: by traces of its own profiler, or ``observed`` by an agent.

    Raises CalledProcessError.
    """
    with tempfile.TemporaryDirectory(prefix="torch-") as folder, _quota(fault) as cgroup:
        if observed:
            spans, tables = f"file:{folder}/spans.jsonl", f"parquet:{folder}/tables"
            agent = [sys.executable, "-m", "otelgpu", "run", f"--export={spans}", f"--export={tables}", "--"]
            ranks = " & ".join(_commands(python, fault, cgroup, ["--steps=300", "--late-from=120"]))
            subprocess.run([*agent, "sh", "-c", f"{ranks} & wait"], check=True, capture_output=True)
            report = look([f"{folder}/spans.jsonl"], None, None, None)[1]
            of_tables = look([f"{folder}/tables"], None, None, None)[1]
            assert said_of(report) == said_of(of_tables), (report, of_tables)
            return report
        options = [f"--traces={folder}", f"--steps={STEPS}", f"--late-from={LATE_FROM}"]
        ranks = " & ".join(_commands(python, fault, cgroup, options))
        subprocess.run(["sh", "-c", f"{ranks} & wait"], check=True, capture_output=True)
        return look([folder], None, None, None)[1]


def _commands(python: str, fault: str, cgroup: Path | None, options: Sequence[str]) -> list[str]:
    """Of each rank, for a shell."""
    (port,) = free_ports(1)
    found = []
    for rank in range(RANKS):
        late = rank == LATE_RANK and fault in {"host", "input"}
        command = [python, str(_RANK), *options, f"--late-ms={LATE_MS if late else 0}"]
        command += [f"--late-in={fault}"] if late else []
        command += [f"--cgroup={cgroup}"] if rank == LATE_RANK and cgroup else []
        env: dict[str, object] = {"RANK": rank, "WORLD_SIZE": RANKS, "LOCAL_RANK": rank}
        env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        found.append(" ".join(f"{name}={value}" for name, value in env.items()) + " " + shlex.join(command))
    return found


@contextlib.contextmanager
def _quota(fault: str) -> Iterator[Path | None]:
    """A cgroup that has little of a processor, of the version that has the controller here."""
    if fault != "cpu":
        yield None
        return
    is_first = (_CGROUPS / "cpu" / "cpu.cfs_quota_us").exists()
    folder = _CGROUPS / ("cpu" if is_first else "") / f"otelgpu-torch-{os.getpid()}"
    folder.mkdir()
    quota_us, period_us = QUOTA.split()
    settings = (
        {"cpu.cfs_period_us": period_us, "cpu.cfs_quota_us": quota_us} if is_first else {"cpu.max": QUOTA}
    )
    try:
        for name, value in settings.items():
            (folder / name).write_text(value)
        yield folder
    finally:
        remove_cgroup(folder)


def is_right(fault: str, report: RanksReport) -> bool:
    """One verdict, on the late rank, for the reason that it was given; of a healthy job none."""
    if fault == "none":
        return not report.verdicts
    said = [(each.klass, list(each.ranks), each.cause in CAUSES[fault]) for each in report.verdicts]
    return said == [("slow_worker", [LATE_RANK], True)]


def evidence_of(report: RanksReport) -> list[str]:
    """What was seen beside operations."""
    return [each.text for verdict in report.verdicts for each in verdict.evidence if "." in each.name]


def said_of(report: RanksReport) -> list[tuple[str, str, list[int], str]]:
    """What, why, who and when."""
    return [
        (each.klass, each.cause, list(each.ranks), f"{each.first_step}-{each.last_step}")
        for each in report.verdicts
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--observed", action="store_true", help="by an agent, not by traces of a profiler")
    parser.add_argument("faults", nargs="*", default=FAULTS)
    options = parser.parse_args()
    if subprocess.run([options.python, "-c", "import torch"], capture_output=True, check=False).returncode:
        sys.exit(f"{options.python} has no torch: name one that has (--python), or pip install torch")
    for fault in options.faults:
        report = run(options.python, fault, observed=options.observed)
        said = said_of(report)
        print(
            f"{fault}: {'right' if is_right(fault, report) else 'WRONG'}: {said} {evidence_of(report)}",
            flush=True,
        )


if __name__ == "__main__":
    main()
