"""ClickHouse with the operations of a Parquet file, in a process of its own, for as long as its input is open.

Run: ``python -m tests.bench.clickhouse_table FILE``. It prints the URL of the table once all rows are in it and merged.
It is chDB behind :mod:`tests.rig.clickhouse_server`: ClickHouse's engine, and an imitation of its HTTP interface.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Final

from otelgpu.store.clickhouse.tables import TYPES
from otelgpu.store.tables import OPS
from tests.bench.programs import BenchError
from tests.rig.clickhouse import ClickHouse
from tests.rig.clickhouse_server import serving

_DATABASE: Final = "bench"
_MERGED_EVERY_S: Final = 0.5


def _fill(engine: ClickHouse, path: Path) -> None:
    """As a fleet would keep them: texts that recur are coded, rows are in the order of steps and ranks."""
    cells = ", ".join(
        f"{each.name} {'LowCardinality(String)' if each.type == 'VARCHAR' else TYPES[each.type]}"
        for each in OPS
    )
    names = ", ".join(each.name for each in OPS)
    engine.ask(f"CREATE DATABASE {_DATABASE}")
    engine.ask(f"CREATE TABLE {_DATABASE}.ops ({cells}) ENGINE = MergeTree ORDER BY (job, step, rank)")
    engine.ask(f"INSERT INTO {_DATABASE}.ops SELECT {names} FROM file('{path}', Parquet)")
    while engine.run("SELECT count() AS n FROM system.merges")["n"].tolist() != [0]:
        time.sleep(_MERGED_EVERY_S)


class Served:
    """``url``: of the table."""

    def __init__(self, url: str, pid: int) -> None:
        self.url = url
        self._process = Path(f"/proc/{pid}")

    def confine(self, processors: set[int]) -> None:
        """All its threads to these, and its peak of memory counts from now on."""
        for thread in (self._process / "task").iterdir():
            os.sched_setaffinity(int(thread.name), processors)
        (self._process / "clear_refs").write_text("5")

    @property
    def cpu_s(self) -> float:
        """Seconds of a processor until now."""
        of_user, of_system = (self._process / "stat").read_text().rpartition(")")[2].split()[11:13]
        return (int(of_user) + int(of_system)) / os.sysconf("SC_CLK_TCK")

    @property
    def peak_bytes(self) -> int:
        """Of resident memory since then."""
        lines = (self._process / "status").read_text().splitlines()
        (peak,) = (line.split()[1] for line in lines if line.startswith("VmHWM:"))
        return int(peak) * 1024


@contextmanager
def table(path: Path) -> Iterator[Served]:
    """Its files are beside ``path`` meanwhile. Raises `BenchError`."""
    command = [sys.executable, "-m", "tests.bench.clickhouse_table", str(path)]
    environ = os.environ | {"TMPDIR": str(path.parent)}
    with Popen(command, stdin=PIPE, stdout=PIPE, text=True, env=environ) as child:
        assert child.stdin is not None and child.stdout is not None
        url = child.stdout.readline().strip()
        if not url:
            raise BenchError("ClickHouse did not take the rows")
        yield Served(url, child.pid)
        child.stdin.close()


def main() -> None:
    with serving() as server:
        _fill(server.engine, Path(sys.argv[1]))
        print(server.url(f"{_DATABASE}/ops"), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
