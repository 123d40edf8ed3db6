"""``open_inputs``: what a command line names becomes tables."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from otelgpu.store import StoreError, open_inputs


def parquet(path: Path, query: str) -> str:
    duckdb.sql(query).write_parquet(str(path))
    return str(path)


def test_columns_that_a_parquet_file_lacks_have_their_defaults(tmp_path: Path) -> None:
    path = parquet(
        tmp_path / "it's [1]*.parquet",
        "SELECT 1 AS step, 0 AS rank, 'compute' AS kind, 1.0 AS t0, 2.0 AS t1",
    )
    with open_inputs([path]) as store:
        assert store.connection.sql("SELECT * FROM ops").fetchall() == [
            ("", 1, 0, "", "", "", 0, "compute", "", "", -1, 0, 1.0, 2.0, 0)
        ]
        assert not store.rejected


def test_an_input_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no such file"):
        open_inputs([str(tmp_path / "none")])
