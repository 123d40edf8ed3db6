"""How long a fleet's operations take to become verdicts, and how much memory: linear in rows, or not.

Run: ``.venv/bin/python -m tests.bench.bench_diagnose [--rows N]``. A job of 1,024 ranks with 200 operations in a step:
150 of computing, 40 collectives in groups of 8 and of 128, 10 of the host; one rank computes 10 % longer. It is
Parquet, read by ``otelgpu diagnose ranks`` in a process of its own, on one thread.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from rich.console import Console

from tests.bench.programs import BenchError
from tests.bench.rows import Budget, Row, show

RANKS: Final = 1024
OPERATIONS: Final = 200
SLOW: Final = 517
FULL: Final = 200_000_000
BUDGET_S: Final = 60.0
BUDGET_BYTES: Final = 4_000_000_000
SIZES: Final = (2_000_000, 20_000_000)

_TABLE: Final = f"""
COPY (
    SELECT
        'job' AS job, step, rank, 'host-' || rank // 8 AS host, '' AS role, 'lane ' || rank // 8 AS lane,
        0::BIGINT AS unit, kind, kind || operation AS name,
        CASE WHEN kind <> 'coll' THEN '' WHEN operation < 180 THEN 'tp ' || rank // 8 ELSE 'dp ' || rank % 8 END AS grp,
        CASE WHEN kind = 'coll' THEN step * {OPERATIONS} + operation ELSE -1 END AS seq,
        CASE WHEN kind <> 'coll' THEN 0 WHEN operation < 180 THEN 8 ELSE {RANKS // 8} END::INTEGER AS n,
        1e9 + step + operation * 0.004 AS t0,
        1e9 + step + operation * 0.004 + 0.003 * (1 + 0.02 * random())
            * CASE WHEN rank = {SLOW} AND kind = 'compute' THEN 1.1 ELSE 1 END
            * CASE WHEN rank <> {SLOW} AND kind = 'coll' THEN 1.1 ELSE 1 END AS t1,
        0::BIGINT AS bytes
    FROM (
        SELECT
            step, rank, operation,
            CASE WHEN operation < 150 THEN 'compute' WHEN operation < 190 THEN 'coll' ELSE 'host' END AS kind
        FROM range(?) AS steps(step), range({RANKS}) AS ranks(rank), range({OPERATIONS}) AS operations(operation)
    )
) TO '{{path}}' (FORMAT parquet)
"""


def write(path: Path, rows: int) -> int:
    """How many there are."""
    import duckdb

    steps = max(8, rows // (RANKS * OPERATIONS))
    with duckdb.connect() as connection:
        connection.execute(_TABLE.format(path=path), [steps])
    return steps * RANKS * OPERATIONS


def diagnose(path: Path) -> tuple[float, int]:
    """Seconds and the most bytes. Raises `BenchError` where the verdict is not the one."""
    began = time.monotonic()
    command = [sys.executable, "-m", "otelgpu", "diagnose", "ranks", str(path), "--json"]
    one = {min(os.sched_getaffinity(0))}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, preexec_fn=lambda: os.sched_setaffinity(0, one)
    ) as child:
        assert child.stdout is not None
        document = child.stdout.read()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.monotonic() - began
    found = [each["ranks"] for each in json.loads(document)["verdicts"]] if document else []
    if found != [[SLOW]]:
        raise BenchError(f"exit code {child.returncode}, the verdicts are {found}")
    return seconds, usage.ru_maxrss * 1024


def rows(quick: bool, sizes: tuple[int, ...] = SIZES) -> list[Row]:
    """Each size; the baseline of the later ones is the first, at the same speed."""
    found: list[Row] = []
    rate = 0.0
    with tempfile.TemporaryDirectory(prefix="otelgpu-bench-") as folder:
        for size in sizes[:1] if quick else sizes:
            path = Path(folder) / "ops.parquet"
            count = write(path, size)
            seconds, peak = diagnose(path)
            budget = Budget(limit=BUDGET_S * count / FULL + 5, kind="at most")
            same = "rows at the first one's speed"
            found.append(
                Row(
                    bench="diagnose",
                    name=f"{count:,} rows",
                    value=seconds,
                    unit="s",
                    baseline=same if rate else "",
                    baseline_value=count / rate if rate else None,
                    budget=budget,
                )
            )
            memory = Budget(limit=BUDGET_BYTES / 1e6, kind="at most")
            found.append(
                Row(
                    bench="diagnose",
                    name=f"{count:,} rows, memory",
                    value=peak / 1e6,
                    unit="MB",
                    budget=memory,
                )
            )
            rate = rate or count / seconds
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="*", default=list(SIZES))
    show(rows(quick=False, sizes=tuple(parser.parse_args().rows)), Console(width=150))


if __name__ == "__main__":
    main()
