"""How long a fleet's operations take to become verdicts, and how much memory: linear in rows, or not.

Run: ``.venv/bin/python -m tests.bench.bench_diagnose [--rows N…] [--engines DuckDB ClickHouse]``. A job of 1,024 ranks
with 200 operations in a step: 150 of computing, 40 collectives in groups of 8 and of 128, 10 of the host; one rank
computes 10 % longer. It is Parquet, read by ``otelgpu diagnose ranks`` in a process of its own, or a table of
ClickHouse that this asks; all on one processor.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from rich.console import Console

from tests.bench.clickhouse_table import table
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


class Measured(NamedTuple):
    """``seconds`` that passed, those of a processor, and the most resident bytes: of all processes together."""

    seconds: float
    cpu_s: float
    peak_bytes: int


def in_duckdb(path: Path) -> Measured:
    """Raises `BenchError` where the verdict is not the one."""
    return _diagnose(str(path))


def in_clickhouse(path: Path) -> Measured:
    """Likewise; its table is made before. What it costs is of the server and of who asks it."""
    with table(path) as served:
        served.confine(_one_processor())
        before_s = served.cpu_s
        asked = _diagnose(served.url)
        return Measured(
            asked.seconds, asked.cpu_s + served.cpu_s - before_s, asked.peak_bytes + served.peak_bytes
        )


ENGINES: Final[Mapping[str, Callable[[Path], Measured]]] = {
    "DuckDB": in_duckdb,
    "ClickHouse": in_clickhouse,
}


def _one_processor() -> set[int]:
    return {min(os.sched_getaffinity(0))}


def _diagnose(what: str) -> Measured:
    """By a process of its own, on one processor."""
    began = time.monotonic()
    command = [sys.executable, "-m", "otelgpu", "diagnose", "ranks", what, "--json"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, preexec_fn=lambda: os.sched_setaffinity(0, _one_processor())
    ) as child:
        assert child.stdout is not None
        document = child.stdout.read()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.monotonic() - began
    found = [each["ranks"] for each in json.loads(document)["verdicts"]] if document else []
    if found != [[SLOW]]:
        raise BenchError(f"exit code {child.returncode}, the verdicts are {found}")
    return Measured(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)


def rows(quick: bool, sizes: Sequence[int] = SIZES, engines: Sequence[str] = tuple(ENGINES)) -> list[Row]:
    """Each size; the baseline of the later ones is the first of the same engine, at the same speed."""
    found: list[Row] = []
    if quick:
        sizes, engines = sizes[:1], engines[:1]
    rates: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="otelgpu-bench-") as folder:
        for size in sizes:
            path = Path(folder) / "ops.parquet"
            count = write(path, size)
            for engine in engines:
                measured = ENGINES[engine](path)
                found += _rows(engine, count, measured, rates.get(engine))
                rates.setdefault(engine, count / measured.seconds)
    return found


def _rows(engine: str, count: int, measured: Measured, rate: float | None) -> list[Row]:
    name = f"{count:,} rows, {engine}"
    seconds = Row(
        bench="diagnose",
        name=name,
        value=measured.seconds,
        unit="s",
        baseline="rows at the first one's speed" if rate else "",
        baseline_value=count / rate if rate else None,
        budget=Budget(limit=BUDGET_S * count / FULL + 5, kind="at most"),
        note=f"{measured.cpu_s:.1f} s of a processor",
    )
    memory = Row(
        bench="diagnose",
        name=f"{name}, memory",
        value=measured.peak_bytes / 1e6,
        unit="MB",
        budget=Budget(limit=BUDGET_BYTES / 1e6, kind="at most"),
    )
    return [seconds, memory]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="*", default=list(SIZES))
    parser.add_argument("--engines", nargs="*", choices=tuple(ENGINES), default=list(ENGINES))
    options = parser.parse_args()
    show(rows(quick=False, sizes=options.rows, engines=options.engines), Console(width=150))


if __name__ == "__main__":
    main()
