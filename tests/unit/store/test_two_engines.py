"""Every query gives the same on DuckDB and on ClickHouse."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import pytest

pytest.importorskip("duckdb")
pytest.importorskip("chdb", reason="chdb-core is not installed; make setup does it")

from otelgpu.store import Store, open_inputs
from otelgpu.store.queries import columns_of, named
from otelgpu.store.rank_checks import exclude
from otelgpu.store.row_checks import REASON
from tests.rig.clickhouse import ClickHouse, clickhouse, differences
from tests.rig.jobs.simulation import simulate
from tests.rig.jobs.table import write
from tests.unit.store.parquet_files import ops, row

pytestmark = pytest.mark.slow

RANKS = "otelgpu.diagnose.ranks"
PACKAGES = (RANKS, "otelgpu.topology")
QUERIES = [
    (package, each.name.removesuffix(".sql"))
    for package in PACKAGES
    for each in sorted(resources.files(package).iterdir(), key=lambda each: each.name)
    if each.name.endswith(".sql")
]
VALUES = {
    "computations": {"steps": "1, 2", "ranks": "0, 1"},
    "step_links": {
        **{"kinds": "'compute', 'step'", "first": "0", "last": "9", "ranks": "s.rank IN (0, 1)"},
        **{"each": "2", "most": "3"},
    },
}
"""What stands in braces in a query."""
DATABASE = "two_engines"
Engines = tuple[Store, ClickHouse]


@pytest.fixture(scope="module", params=["one link", "a stage with more layers", "by hand"])
def engines(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    """Both with the operations of a job: of simulated ones, or rows with all that those do not have."""
    folder = tmp_path_factory.mktemp("job")
    if request.param == "by hand":
        by_hand(folder)
    else:
        write(folder / "ops.parquet", simulate(request.param, 1))
    with open_inputs([str(folder)]) as store:
        other = clickhouse()
        other.copy(store.connection, DATABASE)
        yield store, other


def by_hand(folder: Path) -> None:
    """Calls without numbers, or without an end, quotes and signs in names, and what was seen on hosts."""
    calls = [
        row(
            kind="coll",
            name="All'Reduce é",
            grp='g"1',
            seq=seq,
            n=2,
            rank=rank,
            t1=2.0 + rank + seq / 7,
            bytes=64,
        )
        for seq in (-1, -1, 3, 4)
        for rank in range(2)
    ]
    pending = row(kind="coll", name="hangs", grp="g", seq=9, step=-1, t1=None)
    units = [row(unit=unit, rank=rank, t1=2 + unit / 3) for unit in range(3) for rank in range(2)]
    marked = [
        row(kind="step", name=name, rank=rank) for rank, name in enumerate(("checkpoint", "evaluation", ""))
    ]
    ops(folder / "ops.parquet", *calls, *units, *marked, pending)
    seen = "SELECT 'j' AS job, -1::INTEGER AS rank, 'h' AS host, {0}.5 AS t0, {0}.75 AS t1, 'xid' AS name, {0} AS value"
    ops(folder / "evidence.parquet", *(seen.format(number) for number in (79, 48)))
    of_step = "SELECT 'j' AS job, {0}::INTEGER AS rank, 1::BIGINT AS step, '{1}' AS link"
    ops(folder / "spans.parquet", *(of_step.format(rank, f"span {rank}") for rank in (0, 1, 7)))


@pytest.mark.parametrize(("package", "name"), QUERIES)
def test_a_query_gives_the_same(engines: Engines, package: str, name: str) -> None:
    store, other = engines
    values = VALUES.get(name, {})
    found = named(columns_of(store.connection), package)(name, **values)
    there = named(lambda query: other.run(query, DATABASE), package)(name, **values)
    assert list(found), "a query without columns compares nothing"
    assert differences(found, there) == []


def test_of_the_rows_by_hand_no_query_is_empty(tmp_path: Path) -> None:
    """Elsewise two engines agree about nothing."""
    by_hand(tmp_path)
    with open_inputs([str(tmp_path)]) as store:
        run = columns_of(store.connection)
        found = [named(run, package)(name, **VALUES.get(name, {})) for package, name in QUERIES]
        assert all(len(next(iter(each.values()))) for each in found)


def test_differences_are_seen() -> None:
    run = clickhouse().run
    one = run("SELECT number AS n, number / 3 AS x FROM numbers(5)")
    assert differences(one, run("SELECT number AS n, number / 3 AS x FROM numbers(5) ORDER BY n DESC")) == []
    assert differences(one, run("SELECT number AS n, number / 3.0001 AS x FROM numbers(5)"))
    assert differences(one, run("SELECT number AS n, number / 3 AS x FROM numbers(4)"))
    assert differences(one, run("SELECT number AS n, number / 3 AS y FROM numbers(5)"))


WRONG = {
    "nothing": {},
    "no end of a call": {"kind": "coll", "t1": None},
    "no end": {"t1": None},
    "no host": {"host": None},
    "rank": {"rank": -1},
    "step": {"step": -2},
    "kind": {"kind": "x"},
    "infinite": {"t0": "-inf"},
    "not a number": {"t1": "nan"},
    "reversed": {"t0": 3.0},
    "milliseconds": {"t0": 1e12, "t1": 1e12},
    "a day": {"t1": 86_500.0},
    "size": {"bytes": -1},
    "number": {"seq": -2},
}


def test_rows_are_rejected_for_the_same_reasons(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    ops(path, *(f"SELECT '{name}' AS what, * FROM ({row(**wrong)})" for name, wrong in WRONG.items()))
    checked = f"SELECT what, {REASON} AS reason FROM"
    with Store() as store:
        found = columns_of(store.connection)(f"{checked} read_parquet('{path}')")
    assert len(set(found["reason"].tolist())) > 8
    assert differences(found, clickhouse().run(f"{checked} file('{path}', Parquet)")) == []


def test_ranks_are_left_out_alike(tmp_path: Path) -> None:
    hours = [row(rank=1, step=step, t1=1.0 + 5e3 * (step % 3)) for step in range(9)]
    twice = [row(rank=2, step=step, host=host, t1=1.5) for step in range(3) for host in "hk"]
    moved = [row(rank=3, step=step, host="hk"[step], t0=step, t1=step + 0.5) for step in range(2)]
    path = ops(tmp_path / "ops.parquet", *hours, *twice, *moved)
    with open_inputs([path]) as store:
        found, limits = dict(store.rejected), store.limits
        store.connection.execute("CREATE OR REPLACE VIEW ops AS SELECT * FROM ops_read")
        store.connection.execute(f"INSERT INTO ops_read SELECT * FROM read_parquet('{path}')")
        clickhouse().copy(store.connection, "left_out")
    assert found == {"times_not_in_seconds": 9, "ranks_on_two_hosts": 6}
    there: Counter[str] = Counter()
    said: list[str] = []
    exclude(lambda query: clickhouse().run(query, "left_out"), there, said)
    assert (dict(there), said) == (found, limits)


@pytest.mark.parametrize("seq", [1, -1], ids=["numbered", "not numbered"])
def test_of_ranks_that_were_as_fast_the_lowest_came_last(seq: int, tmp_path: Path) -> None:
    calls = [row(kind="coll", grp="g", seq=seq, rank=rank, t1=1.5) for rank in (3, 1, 2)]
    with open_inputs([ops(tmp_path / "ops.parquet", *calls)]) as store:
        clickhouse().copy(store.connection, "alike")
        engines = (store.run, lambda query: clickhouse().run(query, "alike"))
        found = [named(run, RANKS)("transfers")["last_rank"].tolist() for run in engines]
    assert found == [[1], [1]]
