"""Parquet files of ``ops`` are read where they lie; what is not of its column's type is taken for nothing else."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from otelgpu.store import StoreError, open_inputs
from otelgpu.store.batches import Batches
from tests.unit.store.otlp_spans import job
from tests.unit.store.parquet_files import ops, row, rows

MANY = """
    SELECT i % 1000 AS step, (i // 1000) % 100 AS rank, 'compute' AS kind, i * 1e-3 AS t0, i * 1e-3 + 1e-4 AS t1
    FROM range({count}) r(i)
"""


def test_a_million_rows_stay_in_their_file(tmp_path: Path) -> None:
    path = ops(tmp_path / "a.parquet", MANY.format(count=1_000_000))
    with open_inputs([path]) as store:
        found = store.connection.sql(
            "SELECT count(*), count(DISTINCT rank), round(sum(t1 - t0)) FROM ops"
        ).fetchall()
        assert found == [(1_000_000, 100, 100.0)]
        assert store.connection.sql("SELECT count(*) FROM ops_read").fetchall() == [(0,)]
        assert not store.rejected


def test_files_of_unlike_columns_are_one_table(tmp_path: Path) -> None:
    ops(tmp_path / "a.parquet", row(rank=1, name="kernel"))
    ops(
        tmp_path / "b.parquet",
        "SELECT 'x' AS more, 2.0 AS t1, 1.0 AS T0, 'host' AS kind, 2 AS rank, 1 AS step",
    )
    with open_inputs([str(tmp_path)]) as store:
        assert [(each[2], each[7], each[8]) for each in rows(store)] == [
            (2, "host", ""),
            (1, "compute", "kernel"),
        ]


@pytest.mark.parametrize(
    ("cell", "accepted"),
    [
        ("3.0::DOUBLE", True),  # as pandas writes integers of a column that lacks some
        ("2.5::DOUBLE", False),
        ("'3'", True),
        ("'three'", False),
        ("3000000000::BIGINT", False),
        ("[3]", False),
    ],
)
def test_a_rank_of_another_type_is_a_whole_number_or_rejected(
    tmp_path: Path, cell: str, accepted: bool
) -> None:
    path = ops(
        tmp_path / "a.parquet", f"SELECT 1 AS step, {cell} AS rank, 'host' AS kind, 1.0 AS t0, 2.0 AS t1"
    )
    with open_inputs([path]) as store:
        assert [each[2] for each in rows(store)] == [3] * accepted
        assert store.rejected == ({} if accepted else {"rows_incomplete": 1})


def test_an_optional_value_of_another_type_is_not_taken_for_a_missing_one(tmp_path: Path) -> None:
    common = "1 AS step, 0 AS rank, 'host' AS kind, 1.0 AS t0, 2.0 AS t1"
    path = ops(tmp_path / "a.parquet", f"SELECT {common}, 'much' AS bytes", f"SELECT {common}, NULL AS bytes")
    with open_inputs([path]) as store:
        assert [each[-1] for each in rows(store)] == [0]
        assert store.rejected == {"rows_incomplete": 1}


def test_a_copy_of_a_file_is_not_read_again(tmp_path: Path) -> None:
    path = Path(ops(tmp_path / "a.parquet", row(rank=1)))
    (tmp_path / "copy.parquet").write_bytes(path.read_bytes())
    ops(tmp_path / "b.parquet", row(rank=2))
    with open_inputs([str(tmp_path)]) as store:
        assert [each[2] for each in rows(store)] == [1, 2]
        assert store.rejected == {"files_repeated": 1}


def test_of_several_files_the_broken_one_is_left_out(tmp_path: Path) -> None:
    for rank in range(3):
        ops(
            tmp_path / f"{rank}.parquet",
            f"SELECT * REPLACE ({rank} AS rank) FROM ({MANY.format(count=5000)})",
        )
    whole = (tmp_path / "1.parquet").read_bytes()
    (tmp_path / "1.parquet").write_bytes(whole[:4] + bytes(len(whole) // 2) + whole[4 + len(whole) // 2 :])
    with open_inputs([str(tmp_path)]) as store:
        assert {each[2] for each in rows(store)} == {0, 2}
        assert store.rejected == {"files_unreadable": 1}


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    path = ops(tmp_path / "a.parquet", row())
    with open_inputs([path]) as store, pytest.raises(StoreError, match="cannot be written"):
        store.keep(Path(path) / "kept")


def test_no_room_for_tables_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"".join(rank.line() for rank in job()))
    monkeypatch.setattr(Batches, "flush", _no_room)
    with pytest.raises(StoreError, match="tables cannot be made: no room"):
        open_inputs([str(tmp_path)])


def _no_room(_: Batches) -> None:
    raise duckdb.OutOfMemoryException("no room")


def test_what_was_kept_is_an_input_again(tmp_path: Path) -> None:
    path = ops(tmp_path / "a.parquet", row(rank=1), row(rank=2, kind="coll", grp="g", seq=4, n=8))
    with open_inputs([path]) as store:
        store.connection.execute("INSERT INTO evidence VALUES ('j', 1, 'h', 1, 2, 'xid', 79, 'off the bus')")
        wanted = rows(store)
        store.keep(tmp_path / "kept")
    with open_inputs([str(tmp_path / "kept")]) as store:
        assert rows(store) == wanted
        assert store.connection.sql("SELECT name, value FROM evidence").fetchall() == [("xid", 79.0)]
        assert [path.name for path in store.keep(tmp_path / "kept")] == [
            *("ops.parquet", "evidence.parquet", "step_spans.parquet")
        ]
        assert rows(store) == wanted  # the files that it reads were written anew
    assert duckdb.read_parquet(str(tmp_path / "kept" / "ops.parquet")).count("*").fetchall() == [(2,)]


@pytest.mark.parametrize("end", [None, "NaN", "Infinity"])
def test_a_call_without_an_end_is_pending(tmp_path: Path, end: str | None) -> None:
    call = {"kind": "coll", "name": "AllReduce", "grp": "dp", "seq": 7, "n": 2}
    path = ops(
        tmp_path / "a.parquet",
        row(rank=0, t0=1.0, t1=end, **call),
        row(rank=1, t0=1.0, t1=5.0),
        row(rank=1, t0=1.0, t1=end),
    )
    with open_inputs([path]) as store:
        select = store.connection.sql
        assert select("SELECT rank, kind, t1 FROM ops ORDER BY ALL").fetchall() == [
            (0, "coll", 5.0),
            (1, "compute", 5.0),
        ]
        assert select("SELECT rank, name, value, t0, t1 FROM evidence").fetchall() == [
            (0, "collective_pending", 7.0, 1.0, 5.0)
        ]
        assert store.rejected.total() == 1  # that which computes
